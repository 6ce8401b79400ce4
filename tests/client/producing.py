"""What tests of producers share: both producers behind one face, and a topic read whole from its leaders."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from talweg.client.async_producer import AsyncProducer
from talweg.client.async_transaction import AsyncTransaction
from talweg.client.background import Background
from talweg.client.cluster import Cluster
from talweg.client.delivery import Deliveries, Delivery
from talweg.client.producer import Producer
from talweg.protocol.batches import FRAMES
from talweg.records import Batch, Message, frames


class AsyncFace:
    """An AsyncProducer in a loop of its own, called as a Producer is."""

    def __init__(self, servers: Any, **settings: Any) -> None:
        self._background = Background("test")

        async def make() -> AsyncProducer:
            return AsyncProducer(servers, **settings)

        try:
            self._producer = self._background.run(make())
        except BaseException:
            self._background.close()
            raise

    def send(self, *arguments: Any, **named: Any) -> Delivery:
        return self._background.run(self._producer.send(*arguments, **named))

    def send_many(self, *arguments: Any, **named: Any) -> Deliveries:
        return self._background.run(self._producer.send_many(*arguments, **named))

    def send_arrow(self, *arguments: Any, **named: Any) -> Deliveries:
        return self._background.run(self._producer.send_arrow(*arguments, **named))

    def transaction(self) -> "AsyncTransactionFace":
        return AsyncTransactionFace(self._background, self._producer.transaction())

    def flush(self, timeout: float | None = None) -> None:
        self._background.run(self._producer.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        try:
            self._background.run(self._producer.close(timeout))
        finally:
            self._background.close()


class AsyncTransactionFace:
    """An AsyncTransaction in the loop of its producer, called as a Transaction is."""

    def __init__(self, background: Background, transaction: AsyncTransaction) -> None:
        self._background = background
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._transaction, name)
        if not callable(found):
            return found
        return lambda *arguments, **named: self._background.run(found(*arguments, **named))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._transaction.__aexit__(kind, error, trace))


FACES = {"Producer": Producer, "AsyncProducer": AsyncFace}


@contextmanager
def closing(producer: Any) -> Iterator[Any]:
    try:
        yield producer
    finally:
        producer.close()


def read_topic(servers: list[str], topic: str) -> list[list[Message]]:
    """Every message, by partition, in order; offsets have no gaps."""

    async def read() -> list[list[Message]]:
        cluster = Cluster(servers)
        try:
            metadata = await cluster.fresh_topic(topic, seconds_max=10)
            return [await read_partition(cluster, topic, each.partition) for each in metadata.partitions]
        finally:
            await cluster.close()

    return asyncio.run(read())


async def read_partition(cluster: Cluster, topic: str, partition: int) -> list[Message]:
    found: list[Message] = []
    while True:
        answer = await cluster.ask_leader(
            topic,
            partition,
            "GET",
            f"/records?offset={len(found)}&max_bytes={8 << 20}",
            headers={"accept": FRAMES},
            seconds_max=20,
        )
        before = len(found)
        for _, frame in frames(answer.body, bytes_max=len(answer.body)):
            batch = Batch.from_frame(frame)
            found += (batch.message(index) for index in range(len(batch)))
        if len(found) == before and int(answer.headers["talweg-high-watermark"]) == before:
            assert [message.offset for message in found] == list(range(before))
            return found


def values_of(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value for message in messages]
