"""What only Redis does: it can run out of an epoch's versions, lose one place of three, or lose it all."""

import pytest

from metadata.conftest import NOW_US
from talweg.errors import LeaseLost
from talweg.metadata import MetadataCopy
from talweg.metadata.redis import VERSIONS_OF_AN_EPOCH, RedisMetadata
from talweg.metadata.redis_sequences import Numbered

pytestmark = pytest.mark.parametrize("url", ["redis-cluster"], indirect=True)


def acquire(store: RedisMetadata) -> int:
    lease = store.acquire_lease("first", "http://first", now_us=NOW_US, duration_us=1)
    assert lease is not None
    return lease.epoch


def run(store: RedisMetadata, command: str, key: str, *arguments: str | int) -> object:
    return store._nodes.run(key, (command, key, *arguments))


def test_a_primary_that_has_used_up_its_epochs_versions_takes_the_lease_anew(
    store: RedisMetadata, epoch: int
) -> None:
    last = (epoch + 1) * VERSIONS_OF_AN_EPOCH - 1
    run(store, "HSET", store._key("state"), "version", last - 2)
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    assert store.changes(0).version == last
    with pytest.raises(LeaseLost):
        store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    store.register_producer("orders", now_us=NOW_US, epoch=acquire(store))
    assert store.changes(0).version > last


@pytest.mark.parametrize("place", range(3))
def test_a_place_that_was_wiped_hands_out_nothing_again(store: RedisMetadata, url: str, place: int) -> None:
    assert store._sequences.take(Numbered.PRODUCER, 10) == 0
    run(store, "DEL", store._sequences._keys[place])
    with RedisMetadata(url) as other:  # one that remembers nothing itself
        assert other._sequences.take(Numbered.PRODUCER) == 10


def test_metadata_that_was_wiped_is_written_anew_under_new_numbers(store: RedisMetadata, epoch: int) -> None:
    topic = store.create_topic("orders", [[0], [0]], now_us=NOW_US, epoch=epoch)
    copy = MetadataCopy()
    copy.follow(store)
    before = copy.version
    for key in store._keys:
        run(store, "DEL", key)
    with pytest.raises(LeaseLost):
        store.renew_lease(epoch, now_us=NOW_US, duration_us=1)
    newer = acquire(store)
    assert newer > epoch
    copy.follow(store)
    assert copy.topics == {}
    again = store.create_topic("orders", [[0]], now_us=NOW_US, epoch=newer)
    assert again.incarnation >= topic.groups.stop
    copy.follow(store)
    assert copy.version > before
