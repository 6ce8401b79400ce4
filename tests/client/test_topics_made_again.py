"""Topics that are deleted and made again under the same name: old offsets mean nothing in the new one."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from client.consuming import CONSUMERS, PATIENCE_SECONDS, create, numbered, produce, taken
from talweg.cli.reading import Reading, Span
from talweg.client.admin import Admin
from talweg.client.consumer import Consumer
from talweg.client.partition_log import PartitionLogs
from talweg.errors import PartitionNotFound, TopicNotFound, TopicReplaced
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

BOTH = pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
NARROW = {"fetch_bytes": 64 << 10, "prefetch_bytes": 64 << 10}  # so that it is full soon, and asks no more


def make_again(cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
    with cluster.ask() as manager:
        manager.delete(f"/topics/{topic}")
    create(cluster, topic, partitions)


def produce_old(cluster: LocalCluster, topic: str, partition: int = 0) -> None:
    """More than a narrow consumer reads ahead."""
    for _ in range(10):
        produce(cluster, topic, [b"old" + os.urandom(3000) for _ in range(30)], partition)


def wait_until_full(consumer: Any) -> None:
    """It has read ahead as much as it may: of what becomes of the topic it hears nothing. (A batch is in
    hand, and the next one fills what it may read ahead.)"""
    wait_until(lambda: sum(consumer.buffered().values()) >= 50, "messages to be read ahead", PATIENCE_SECONDS)


def new_messages(consumer: Any, count: int) -> list[Any]:
    """The first so many of the new topic; for a moment there may be none."""
    found: list[Any] = []
    while len(found) < count:
        try:
            found += [message for message in taken(consumer, 1) if message.value[:3] != b"old"]
        except TopicNotFound:
            continue
    return found


@BOTH
def test_a_position_of_the_old_one_is_not_committed_in_the_new_one(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce_old(cluster, topic)
    settings = {"servers": servers, "group": "g", "enable_auto_commit": False, "fetch_wait_ms": 100, **NARROW}
    with kind(topic, **settings) as consumer:
        taken(consumer, 7)
        consumer.commit()
        assert consumer.committed(topic, 0) == 7
        taken(consumer, 3)
        wait_until_full(consumer)
        make_again(cluster, topic)
        produce(cluster, topic, numbered(50))
        consumer.commit()
        with kind(topic, servers=servers, group="g", enable_auto_commit=False) as other:
            # If it has heard of the new one after all, it has read nothing of that.
            assert other.committed(topic, 0) in (None, 0)
        # It goes on with the new one, from its beginning, and commits there.
        assert [message.value for message in new_messages(consumer, 50)] == numbered(50)
        consumer.commit()
        assert consumer.committed(topic, 0) == 50


@BOTH
def test_what_is_committed_at_the_end_is_not_either(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce_old(cluster, topic)
    with kind(topic, servers=servers, group="g", **NARROW) as consumer:
        taken(consumer, 10)
        wait_until_full(consumer)
        make_again(cluster, topic)
        produce(cluster, topic, numbered(50))
    with kind(topic, servers=servers, group="g") as consumer:
        assert [message.value for message in taken(consumer, 50)] == numbered(50)


def test_positions_of_a_query_are_not_either(cluster: LocalCluster, topic: str, servers: list[str]) -> None:
    create(cluster, topic, 2)
    logs = PartitionLogs(servers, seconds_max=PATIENCE_SECONDS)
    try:
        old = logs.topic(topic).incarnation
        make_again(cluster, topic, 2)
        produce(cluster, topic, numbered(5), 1)
        with pytest.raises(TopicReplaced):
            logs.commit("g", topic, {1: 3}, incarnation=old, seconds_max=PATIENCE_SECONDS)
        with Consumer(topic, servers=servers, group="g") as consumer:
            assert consumer.committed(topic, 1) is None
        new = logs.topic(topic).incarnation
        logs.commit("g", topic, {1: 3}, incarnation=new, seconds_max=PATIENCE_SECONDS)
        with Consumer(topic, servers=servers, group="g") as consumer:
            assert consumer.committed(topic, 1) == 3
    finally:
        logs.close()


@BOTH
def test_reading_to_the_end_of_the_old_one_ends(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce_old(cluster, topic)
    with kind(topic, servers=servers, fetch_wait_ms=100, **NARROW) as consumer:
        messages = consumer.read_to_end()
        list(itertools.islice(messages, 10))
        wait_until_full(consumer)
        make_again(cluster, topic)
        produce(cluster, topic, numbered(3))
        # What was read ahead may come; nothing of the new one was there when it began.
        assert {message.value[:3] for message in messages} <= {b"old"}
        assert [message.value for message in consumer.read_to_end()] == numbered(3)


@BOTH
def test_reading_to_the_end_of_the_new_one_reads_it(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce_old(cluster, topic)
    with kind(topic, servers=servers, fetch_wait_ms=100, **NARROW) as consumer:
        taken(consumer, 10)
        wait_until_full(consumer)
        make_again(cluster, topic)
        produce(cluster, topic, numbered(3))
        # It has yet to hear of the new one; whoever asks for what is there now means that one.
        assert [message.value for message in consumer.read_to_end()] == numbered(3)
        assert consumer.lag() == {(topic, 0): 0}


@pytest.mark.parametrize("count", [0, 5, 1000], ids=["empty", "shorter", "longer"])
def test_a_range_of_the_old_one_that_was_not_read_is_missed(
    cluster: LocalCluster, topic: str, servers: list[str], count: int
) -> None:
    def open_consumer(partitions: list[int]) -> Consumer:
        return Consumer(topic, servers=servers, partitions=partitions, fetch_wait_ms=100, **NARROW)

    create(cluster, topic)
    produce_old(cluster, topic)
    with Admin(servers) as admin:
        batches = Reading(admin, topic, {0: Span(0, 300)}).batches(open_consumer)
        assert next(batches).first_offset == 0
        make_again(cluster, topic)
        if count:
            produce(cluster, topic, numbered(count))
        seen: list[Any] = []
        with pytest.raises(TopicNotFound):  # which TopicReplaced is; for a moment there may have been none
            seen += (batch.values() for batch in batches)
        assert {value[:3] for values in seen for value in values} <= {b"old"}


def raised(call: Callable[[], object], meanwhile: type[Exception]) -> Exception:
    """What a call raises in the end, after what it raises for a moment."""
    while True:
        try:
            call()
        except meanwhile:
            continue
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            return error


@BOTH
def test_partitions_that_the_new_one_does_not_have_are_missed_until_it_has_them(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic, 4)
    produce(cluster, topic, numbered(3))
    with kind(topic, servers=servers, partitions=[0, 3], fetch_wait_ms=100) as consumer:
        assert len(taken(consumer, 3)) == 3
        make_again(cluster, topic)
        produce(cluster, topic, numbered(5, 10))
        for _ in range(3):
            error = raised(lambda: consumer.poll_batch(timeout=PATIENCE_SECONDS), TopicNotFound)
            assert isinstance(error, PartitionNotFound)
            assert "partition 3" in str(error)
        make_again(cluster, topic, 4)
        produce(cluster, topic, numbered(5, 20), 3)
        seen: list[bytes] = []
        while len(seen) < 5:
            try:
                seen += [message.value for message in taken(consumer, 5 - len(seen))]
            except (TopicNotFound, PartitionNotFound):
                continue
        assert seen == numbered(5, 20)
        assert consumer.assignment == ((topic, 0), (topic, 3))
