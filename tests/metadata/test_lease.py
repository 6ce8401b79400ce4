"""One primary at a time: who gets the lease, when another may take it, and that the former can do no harm."""

import threading
from collections.abc import Callable

import msgspec
import pytest

from metadata.conftest import NOW_US, SECOND_US
from talweg.errors import LeaseLost
from talweg.metadata import Lease, MemberKind, MetadataCopy, MetadataStore, open_metadata

DURATION_US = 10 * SECOND_US
EXPIRES_US = NOW_US + DURATION_US


def acquire(store: MetadataStore, holder: str, now_us: int = NOW_US) -> Lease | None:
    return store.acquire_lease(holder, f"http://{holder}", now_us=now_us, duration_us=DURATION_US)


def test_the_first_to_ask_gets_the_lease(store: MetadataStore) -> None:
    lease = acquire(store, "first")
    assert lease is not None
    assert lease == Lease(holder="first", endpoint="http://first", epoch=lease.epoch, expires_us=EXPIRES_US)
    assert store.lease() == store.changes(0).lease == lease


def test_another_gets_it_from_the_moment_it_has_lapsed(store: MetadataStore, lease: Lease) -> None:
    assert acquire(store, "second", EXPIRES_US - 1) is None
    assert store.lease() == lease
    taken = acquire(store, "second", EXPIRES_US)
    assert taken is not None
    assert taken.epoch > lease.epoch
    assert store.lease() == taken


def test_who_renews_keeps_it(store: MetadataStore, lease: Lease) -> None:
    renewed = store.renew_lease(lease.epoch, now_us=EXPIRES_US - 1, duration_us=DURATION_US)
    assert renewed == msgspec.structs.replace(lease, expires_us=EXPIRES_US - 1 + DURATION_US)
    assert store.lease() == renewed
    assert acquire(store, "second", EXPIRES_US) is None


def test_a_holder_that_asks_again_gets_another_epoch(store: MetadataStore, lease: Lease) -> None:
    again = acquire(store, "first", NOW_US + 1)
    assert again is not None
    assert again.epoch > lease.epoch
    with pytest.raises(LeaseLost):
        store.renew_lease(lease.epoch, now_us=NOW_US + 2, duration_us=DURATION_US)


def test_a_lease_that_is_given_back_is_free_at_once(store: MetadataStore, lease: Lease) -> None:
    store.release_lease(lease.epoch)
    assert store.lease() is None
    with pytest.raises(LeaseLost):
        store.create_topic("orders", [[0]], now_us=NOW_US, epoch=lease.epoch)
    taken = acquire(store, "second")
    assert taken is not None
    assert taken.epoch > lease.epoch


def test_giving_back_what_another_holds_does_nothing(store: MetadataStore, lease: Lease) -> None:
    taken = acquire(store, "second", EXPIRES_US)
    store.release_lease(lease.epoch)
    assert store.lease() == taken


def test_a_lapsed_lease_that_nobody_took_still_holds(store: MetadataStore, lease: Lease) -> None:
    topic = store.create_topic("orders", [[0]], now_us=EXPIRES_US + 1, epoch=lease.epoch)
    assert store.topics() == [topic]
    renewed = store.renew_lease(lease.epoch, now_us=EXPIRES_US + 1, duration_us=DURATION_US)
    assert store.lease() == renewed


def test_of_ten_that_ask_at_once_one_gets_it(url: str, store: MetadataStore) -> None:
    stores = [open_metadata(url) for _ in range(10)]
    start = threading.Barrier(10)
    leases: list[Lease | None] = []

    def ask(number: int) -> None:
        start.wait()
        leases.append(acquire(stores[number], f"manager-{number}"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for opened in stores:
        opened.close()
    assert [lease for lease in leases if lease] == [store.lease()]
    assert len(leases) == 10


Write = Callable[[MetadataStore, int], object]
WRITES: dict[str, Write] = {
    "renew": lambda s, epoch: s.renew_lease(epoch, now_us=NOW_US, duration_us=DURATION_US),
    "create": lambda s, epoch: s.create_topic("new", [[0]], now_us=NOW_US, epoch=epoch),
    "restore": lambda s, epoch: s.restore_topic(
        msgspec.structs.replace(s.topic("orders"), name="old", incarnation=500),
        [msgspec.structs.replace(a, topic="old", incarnation=500) for a in s.assignments("orders")],
        epoch=epoch,
    ),
    "assign": lambda s, epoch: s.update_assignments(s.assignments(), epoch=epoch),
    "broker": lambda s, epoch: s.register_broker("http://new", "new", now_us=NOW_US, epoch=epoch),
    "broker again": lambda s, epoch: s.register_broker("http://new", "disk", now_us=NOW_US, epoch=epoch),
    "broker status": lambda s, epoch: s.update_broker(s.brokers()[0], epoch=epoch),
    "producer": lambda s, epoch: s.register_producer("orders", now_us=NOW_US, epoch=epoch),
    "consumer": lambda s, epoch: s.register_consumer("orders", now_us=NOW_US, epoch=epoch),
    "heartbeat": lambda s, epoch: s.record_heartbeats(
        MemberKind.BROKER, [0], at_us=NOW_US + SECOND_US, epoch=epoch
    ),
    "delete": lambda s, epoch: s.delete_topic("orders", epoch=epoch),
}


def test_a_paused_primary_writes_nothing_when_it_wakes(store: MetadataStore, epoch: int) -> None:
    store.create_topic("orders", [[0, 1, 2]], now_us=NOW_US, epoch=epoch)
    store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    taken = acquire(store, "second", EXPIRES_US)
    assert taken is not None
    before, after = MetadataCopy(), MetadataCopy()
    before.follow(store)
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost):
            write(store, epoch)
        assert store.lease() == taken, name
    after.follow(store)
    assert vars(after) == vars(before)
    for write in WRITES.values():  # nothing else was wrong with any of them
        write(store, taken.epoch)


def test_nobody_writes_before_the_lease_was_taken(store: MetadataStore) -> None:
    for epoch in (0, 1):
        with pytest.raises(LeaseLost):
            store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
