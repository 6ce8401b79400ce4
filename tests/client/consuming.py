"""What tests of consumers need: messages to consume, and both consumers as if they were one."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from talweg.client.async_consumer import AsyncConsumer
from talweg.client.background import Background
from talweg.client.consumer import Consumer
from talweg.errors import NotFound, NotLeader, TooFewBrokers, Unavailable
from talweg.http import error_of
from talweg.protocol.batches import FRAMES
from talweg.records import encode_values
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

TIMESTAMP = 1_700_000_000_000_000
PATIENCE_SECONDS = 60.0


def create(cluster: LocalCluster, topic: str, partitions: int = 1, **settings: int) -> None:
    def is_created() -> bool:
        try:
            manager.post("/topics", name=topic, partitions=partitions, replication=3, **settings)
        except (TooFewBrokers, Unavailable):
            # On a busy machine a broker may have missed its heartbeats, or the primary have lost its lease.
            return False
        return True

    with cluster.ask() as manager:
        wait_until(is_created, f"topic {topic} to be created", 20)


def produce(
    cluster: LocalCluster,
    topic: str,
    values: Sequence[bytes | None],
    partition: int = 0,
    timestamp: int = TIMESTAMP,
    **columns: Any,
) -> int:
    """Append a batch, whoever leads; returns its first offset."""
    frame = encode_values(list(values), timestamp=timestamp, **columns)
    offsets: list[int] = []

    def sent() -> bool:
        leader = cluster.leader(topic, partition)
        if leader is None:
            return False
        try:
            with Asker(cluster.endpoint(leader), seconds_max=1.0) as broker:
                target = f"/v1/topics/{topic}/partitions/{partition}/records"
                offsets.append(broker_offset(broker, target, frame))
        except (NotLeader, Unavailable, NotFound):
            return False
        return True

    wait_until(sent, f"{topic}-{partition} to take messages", PATIENCE_SECONDS)
    return offsets[-1]


def broker_offset(broker: Asker, target: str, frame: bytes) -> int:
    status, content = broker.request("POST", target, frame, FRAMES)
    if status != 200:
        raise error_of(status, content)
    return int(msgspec.json.decode(content)["offset"])


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(begin, begin + count)]


class Twin:
    """An AsyncConsumer in a loop of its own, to be used as a Consumer is."""

    def __init__(self, *topics: str, **settings: Any) -> None:
        self._background = Background("twin")
        self._closed = False

        async def make() -> AsyncConsumer:
            return await AsyncConsumer(*topics, **settings).start()

        try:
            self._twin = self._background.run(make())
        except BaseException:
            self._background.close()
            raise

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._twin, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            made = found(*arguments, **named)
            return self._background.run(made) if asyncio.iscoroutine(made) else self._iterate(made)

        return call

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._twin))

    def _iterate(self, messages: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._background.run(anext(messages))
            except StopAsyncIteration:
                return

    def close(self) -> None:
        self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._background.run(self._twin.__aexit__(kind, None, None))
            finally:
                self._background.close()


CONSUMERS: list[Any] = [Consumer, Twin]


def taken(consumer: Any, count: int) -> list[Any]:
    """So many messages; what does not come is missed."""
    return list(itertools.islice(consumer.messages(timeout=PATIENCE_SECONDS), count))
