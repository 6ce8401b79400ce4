"""Following a store: what changed since a version, in which order, and that a copy misses nothing."""

import threading
from random import Random

import msgspec
import pytest

from metadata.conftest import NOW_US
from talweg.errors import TopicExists, TopicNotFound
from talweg.metadata import (
    BrokerStatus,
    MetadataCopy,
    MetadataStore,
    RemovedTopic,
    fetch_changes,
)


def test_from_0_everything_is_told(store: MetadataStore, epoch: int) -> None:
    topic = store.create_topic("orders", [[0], [1]], now_us=NOW_US, epoch=epoch)
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    producer = store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    consumer = store.register_consumer("orders", now_us=NOW_US, epoch=epoch)
    changes = store.changes(0)
    assert changes.topics == (topic,)
    assert changes.assignments == tuple(store.assignments())
    assert changes.brokers == (broker,)
    assert changes.producers == (producer,)
    assert changes.consumers == (consumer,)
    assert (changes.removed, changes.more, changes.restart) == ((), False, False)


def test_only_what_changed_since_is_told_and_once(store: MetadataStore, epoch: int) -> None:
    store.create_topic("orders", [[0], [1]], now_us=NOW_US, epoch=epoch)
    since = store.changes(0).version
    assert store.changes(since) == msgspec.structs.replace(store.changes(since), version=since)
    first, _ = store.assignments()
    for target in ((1,), (2,)):
        (first,) = store.update_assignments([msgspec.structs.replace(first, target=target)], epoch=epoch)
    changes = store.changes(since)
    assert changes.assignments == (first,)
    assert changes.version == first.version
    assert changes.topics == ()


def test_every_change_raises_the_version(store: MetadataStore, epoch: int) -> None:
    versions = [store.changes(0).version]

    def changed() -> None:
        versions.append(store.changes(0).version)
        assert versions[-1] > versions[-2]

    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    changed()
    store.update_assignments(store.assignments(), epoch=epoch)
    changed()
    store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    changed()
    store.register_consumer("orders", now_us=NOW_US, epoch=epoch)
    changed()
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    changed()
    store.update_broker(msgspec.structs.replace(broker, status=BrokerStatus.DRAINING), epoch=epoch)
    changed()
    store.delete_topic("orders", epoch=epoch)
    changed()


def test_a_deleted_topic_is_told_as_removed(store: MetadataStore, epoch: int) -> None:
    topic = store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    since = store.changes(0).version
    store.delete_topic("orders", epoch=epoch)
    changes = store.changes(since)
    assert changes.removed == (RemovedTopic(name="orders", incarnation=topic.incarnation, partitions=1),)
    assert (changes.topics, changes.assignments, changes.producers) == ((), (), ())


def test_long_answers_come_in_pages_and_topics_after_their_assignments(
    store: MetadataStore, epoch: int
) -> None:
    for name in ("a", "b"):
        store.create_topic(name, [[0]] * 5, now_us=NOW_US, epoch=epoch)
    copy, version, sizes = MetadataCopy(), 0, []
    while True:
        page = store.changes(version, limit=4)
        copy.apply(page)
        for name in copy.topics:
            assert len(copy.assignments[name]) == 5, "a topic that is known is known in full"
        sizes.append(len(page.assignments) + len(page.topics))
        assert page.version > version
        version = page.version
        if not page.more:
            break
    assert sizes == [4, 4, 4]
    assert set(copy.topics) == {"a", "b"}


def test_who_knows_more_than_the_store_begins_anew(store: MetadataStore, epoch: int) -> None:
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    version = store.changes(0).version
    changes = store.changes(version + 1)
    assert changes.restart
    assert (changes.version, changes.topics) == (0, ())
    restarted, *pages = fetch_changes(store, version + 1)
    assert restarted.restart
    assert [topic.name for page in pages for topic in page.topics] == ["orders"]


def test_a_copy_that_begins_anew_forgets_what_it_knew(store: MetadataStore, epoch: int) -> None:
    copy, fresh = MetadataCopy(), MetadataCopy()
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    copy.follow(store)
    phantom = msgspec.structs.replace(copy.topics["orders"], name="phantom")
    copy.topics["phantom"] = phantom
    copy.version += 1
    assert copy.follow(store)
    fresh.follow(store)
    assert vars(copy) == vars(fresh)
    assert not copy.follow(store)


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_that_follows_now_and_then_is_what_a_fresh_copy_is(
    store: MetadataStore, epoch: int, seed: int
) -> None:
    random, copy = Random(seed), MetadataCopy()
    for _ in range(25):
        _change_something(store, epoch, random)
        if random.random() < 0.2:
            page = store.changes(copy.version, limit=random.randint(1, 10))
            copy.apply(page)
    while (page := store.changes(copy.version, limit=3)).more or page.version != copy.version:
        copy.apply(page)
    fresh = MetadataCopy()
    fresh.follow(store)
    assert vars(copy) == vars(fresh)
    assert list(fresh.topics.values()) or fresh.removed
    assert sorted(fresh.topics) == [topic.name for topic in store.topics()]
    told = [a for _, partitions in sorted(fresh.assignments.items()) for _, a in sorted(partitions.items())]
    assert told == store.assignments()


def _change_something(store: MetadataStore, epoch: int, random: Random) -> None:
    name = random.choice("abc")
    try:
        match random.randrange(6):
            case 0 | 1:
                store.create_topic(name, [[0, 1]] * random.randint(1, 3), now_us=NOW_US, epoch=epoch)
            case 2:
                store.delete_topic(name, epoch=epoch)
            case 3:
                store.register_producer(name, now_us=NOW_US, epoch=epoch)
                store.register_consumer(name, now_us=NOW_US, epoch=epoch)
            case 4:
                moved = [msgspec.structs.replace(a, target=(2, 3)) for a in store.assignments(name)]
                store.update_assignments(moved, epoch=epoch)
            case _:
                store.register_broker(
                    f"http://{random.random()}", random.choice("xyz"), now_us=NOW_US, epoch=epoch
                )
    except (TopicExists, TopicNotFound):
        pass


def test_who_follows_while_others_write_misses_nothing(store: MetadataStore, epoch: int) -> None:
    # A version that becomes visible after a greater one was read would never be told.
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    copy, fresh = MetadataCopy(), MetadataCopy()
    numbers: list[int] = []

    def register() -> None:
        numbers.extend(store.register_producer("orders", now_us=NOW_US, epoch=epoch).id for _ in range(10))

    threads = [threading.Thread(target=register) for _ in range(10)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        copy.follow(store)
    copy.follow(store)
    fresh.follow(store)
    assert vars(copy) == vars(fresh)
    assert sorted(numbers) == sorted(copy.producers) == list(range(100)), "unique, and without gaps"
