"""How consumers end: closed in the midst of a loop, by an exception while the cluster is away, or dropped."""

import asyncio
import gc
import threading
import warnings
from typing import Any

import pytest

from client.consuming import CONSUMERS, create, numbered, produce
from talweg.client.async_consumer import AsyncConsumer
from talweg.client.consumer import Consumer
from talweg.errors import Closed, Unavailable
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


def next_offset(topic: str, servers: list[str], group: str) -> int:
    """Of the message that a group is given next."""
    with Consumer(topic, servers=servers, group=group, enable_auto_commit=False) as consumer:
        return next(iter(consumer)).offset


def test_a_loop_ends_where_it_is_closed(cluster: LocalCluster, topic: str, servers: list[str]) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(5000))
    consumer = Consumer(topic, servers=servers, group="g")
    seen = []
    for message in consumer:
        seen.append(message.offset)
        if len(seen) == 3:
            consumer.close()
    assert seen == [0, 1, 2]
    assert next_offset(topic, servers, "g") == 3
    with pytest.raises(Closed):
        iter(consumer)


def test_a_loop_in_an_event_loop_ends_where_it_is_closed(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(5000))

    async def read(group: str, *, to_end: bool) -> list[int]:
        consumer = AsyncConsumer(topic, servers=servers, group=group)
        seen = []
        async for message in consumer.read_to_end() if to_end else consumer:
            seen.append(message.offset)
            if len(seen) == 3:
                await consumer.close()
        with pytest.raises(Closed):
            await consumer.poll_batch()
        return seen

    for group, to_end in (("g", False), ("h", True)):
        assert asyncio.run(read(group, to_end=to_end)) == [0, 1, 2]
        assert next_offset(topic, servers, group) == 3


def test_a_loop_that_another_thread_closes_hands_out_what_is_committed_and_no_more(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(5000))
    consumer = Consumer(topic, servers=servers, group="g")
    begun, closed = threading.Event(), threading.Event()

    def close() -> None:
        begun.wait(30)
        consumer.close()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    seen = 0
    for _ in consumer:
        seen += 1
        if seen == 10:
            begun.set()
            assert closed.wait(30)
    closing.join()
    assert seen == 10
    assert next_offset(topic, servers, "g") == 10


def test_a_consumer_that_is_closed_while_it_begins_does_not_begin(servers: list[str]) -> None:
    async def test() -> None:
        consumer = AsyncConsumer("there-is-none", servers=servers)
        starting = asyncio.ensure_future(consumer.start())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(Unavailable):
            await starting
        with pytest.raises(Closed):
            await consumer.start()

    asyncio.run(test())


class OwnMistake(Exception):
    """Of whoever consumes."""


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_an_exception_is_seen_though_the_cluster_is_away(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(10))

    def consume() -> None:
        with kind(topic, servers=servers, group="g", api_timeout_ms=1000) as consumer:
            for message in consumer:
                if message.offset == 3:
                    for broker in cluster.brokers:
                        cluster.pause(broker)
                    raise OwnMistake

    with pytest.raises(OwnMistake):
        consume()


def test_a_consumer_in_an_event_loop_that_is_dropped_ends_by_itself(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))

    async def read_two_and_forget_it() -> None:
        consumer = AsyncConsumer(topic, servers=servers, group="g", fetch_wait_ms=100)
        async for message in consumer:
            if message.offset == 1:
                break

    async def test() -> None:
        before = len(asyncio.all_tasks())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            await read_two_and_forget_it()
            for _ in range(1000):
                gc.collect()
                if told and len(asyncio.all_tasks()) <= before:
                    break
                await asyncio.sleep(0.01)
        assert ["a consumer was not closed" in str(each.message) for each in told] == [True]
        assert len(asyncio.all_tasks()) <= before, "its tasks ended"

    asyncio.run(test())
    assert next_offset(topic, servers, "g") == 1, "what was at hand is given again"


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_what_is_paused_in_a_loop_is_handed_out_when_it_is_resumed_and_once(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic, 2)
    for partition in range(2):
        produce(cluster, topic, numbered(3000), partition)
    with kind(topic, servers=servers, group="g") as consumer:
        seen: dict[int, list[int]] = {0: [], 1: []}
        paused: int | None = None
        for message in consumer.messages(timeout=1):
            assert message.partition != paused
            seen[message.partition].append(message.offset)
            if paused is None and len(seen[message.partition]) == 5:
                paused = message.partition
                consumer.pause(topic, paused)
                assert consumer.position(topic, paused) == 5
        assert paused is not None
        assert (seen[paused], seen[1 - paused]) == (list(range(5)), list(range(3000)))
        assert consumer.poll_batch(timeout=0.1) is None
        consumer.commit()
        assert consumer.committed(topic, paused) == 5
        consumer.resume(topic, paused)
        seen[paused] += [message.offset for message in consumer.read_to_end()]
        assert seen[paused] == list(range(3000))
        wait_until(lambda: sum(consumer.lag().values()) == 0, "all to be handed out", 10)
