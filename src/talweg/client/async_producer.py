"""The producer for programs with an event loop: everything happens in that loop.

async with AsyncProducer("http://127.0.0.1:8000") as producer:
    delivery = await producer.send("logs", b"GET / 200")  # accepted
    sent = await delivery  # on disk on a majority
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

from talweg.client.async_transaction import AsyncTransaction
from talweg.client.cluster import Cluster
from talweg.client.columns import checked_columns, columns_of
from talweg.client.delivery import Deliveries, Delivery, wait_in_loop
from talweg.client.draft import Content, Draft, Headers, draft, drafts_of
from talweg.client.dropped import EXIT_SECONDS_MAX, end_in_loop
from talweg.client.failures import Failures
from talweg.client.gathered import Gathered
from talweg.client.portions import Portions, Run, halfway
from talweg.client.producer_settings import (
    BATCH_BYTES,
    MESSAGE_BYTES,
    ONE_BY_ONE_MAX,
    Acks,
    buffer_is_full,
    read_settings,
)
from talweg.client.sending import Sending, Wanted
from talweg.client.servers import Servers
from talweg.errors import Closed, TalwegError

_INLINE_BYTES_MAX: Final = 64 << 10  # what is smaller is encoded quicker than handed to a thread

A = TypeVar("A")


class AsyncProducer:
    """Sends messages to topics, in the event loop in which it was made. Close it, or use `async with`."""

    _closed = True  # until there is something to close: also when Python refuses an argument

    def __init__(
        self,
        servers: Servers = None,  # managers; None: TALWEG_URL, or this machine
        *,
        acks: Acks = "all",
        linger_ms: float = 5,
        batch_bytes: int = BATCH_BYTES,
        compression: str = "lz4",
        buffer_bytes: int = 64 << 20,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 5_000,
        message_bytes_max: int = 8 << 20,
    ) -> None:
        self._settings = read_settings(
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            compression=compression,
            buffer_bytes=buffer_bytes,
            max_block_ms=max_block_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            message_bytes_max=message_bytes_max,
        )
        self._process = os.getpid()
        self._failures = Failures()
        self._cluster = Cluster(servers)
        self._sending = Sending(self._cluster, self._settings, self._failures.add)
        self._hot = self._sending.gathering.hot
        self._transactions: WeakSet[AsyncTransaction] = WeakSet()
        self._closed = False

    async def send(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Accept a message, and deliver it soon. Waits only for room in the buffer, and for a new topic."""
        if (
            type(value) is bytes
            and key is None
            and partition is None
            and timestamp is None
            and headers is None
        ):
            batch = self._hot.get(topic)  # without the lock: nobody else is in this loop now
            if batch is not None:
                room = batch.room - len(value) - MESSAGE_BYTES
                if room >= 0:
                    batch.room = room
                    batch.values.append(value)
                    return Delivery(batch, len(batch.values) - 1)
        made = draft(
            value, key, partition, timestamp, headers, message_bytes_max=self._settings.message_bytes_max
        )
        return Delivery(*await self._accept(topic, made))

    async def send_many(
        self,
        topic: str,
        values: Iterable[Content],
        *,
        keys: Iterable[Content] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Accept many messages at once. Without keys, whole batches go to one partition after another.

        An error that ends it halfway says how many were `accepted`, as that of `send_arrow` does.
        """
        columns = columns_of(values, keys, timestamps)
        if columns.num_rows > ONE_BY_ONE_MAX:
            return await self.send_arrow(topic, columns, partition=partition)
        drafts = drafts_of(columns, partition, self._settings.message_bytes_max)
        runs: list[Run] = []
        try:
            for each in drafts:
                runs.append((*await self._accept(topic, each), 1))  # noqa: PERF401 - it is told if it fails
        except TalwegError as error:
            raise halfway(error, len(runs), [columns.slice(len(runs))]) from error
        return Deliveries(runs)

    async def send_arrow(self, topic: str, columns: Any, *, partition: int | None = None) -> Deliveries:
        """Accept a RecordBatch or Table: `value`, and `key`, `timestamp`, `headers` where present.

        Rows with a key go where it belongs; the others in whole batches to one partition after another. An
        error that ends it halfway says how many were `accepted`, and holds the others, its `rest`.
        """
        batches = checked_columns(columns, self._settings.message_bytes_max)
        portions = Portions(batches, partition, self._settings.batch_bytes)
        try:
            while portions.left:
                partitions = len((await self._sending.register(topic)).lanes) if portions.keyed else 0
                portions.accepted(await self._accept_columns(topic, *portions.next(partitions)))
        except TalwegError as error:
            raise portions.halfway(error) from error
        return Deliveries(portions.runs)

    def transaction(self) -> AsyncTransaction:
        """Messages to any topics that are published together, or not at all: send them through what this
        returns, in an `async with` statement."""
        if self._sending.gathering.refusal is not None:
            raise self._sending.gathering.refusal
        made = AsyncTransaction(self._cluster, self._settings)
        self._transactions.add(made)
        return made

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as its twin has it
        """Wait until everything that was accepted so far is delivered.

        Raises DeliveryFailed if some of it, or of what was sent before, could not be and nobody looked at
        its delivery; and TimeoutError after so many seconds.
        """
        await wait_in_loop(self._sending.seal_all(), timeout)
        self._tell_failures()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as its twin has it
        """Deliver everything that was accepted, then stop. Raises DeliveryFailed, as `flush` does.

        After so many seconds, what is left is given up, and counts as failed.
        """
        if self._closed:
            return
        refusal = Closed("the producer cannot be used: it is closed")
        self._sending.gathering.refusal = refusal
        with suppress(TimeoutError):  # what is left is given up, and told below
            await wait_in_loop(self._sending.seal_all(), timeout)
        self._closed = True
        await self._sending.close()
        for transaction in list(self._transactions):
            await transaction.end(refusal)
        await self._cluster.close()
        self._tell_failures()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._closed or os.getpid() != self._process:
            return
        finish = partial(_finish, self._sending, self._cluster)
        tell = partial(_tell_left, self._sending, self._failures)
        if not end_in_loop(self, "a producer", self._sending.loop, finish, tell):
            tell()  # its event loop is gone, so all that can be done is to say so

    def _tell_failures(self) -> None:
        failed = self._failures.take()
        if failed is not None:
            raise failed

    async def _accept(self, topic: str, made: Draft) -> tuple[Gathered, int]:
        batch, index, full = await self._accepted(topic, lambda tell: self._sending.accept(topic, made, tell))
        if full is not None:
            if full.granted_bytes <= _INLINE_BYTES_MAX:
                self._sending.encode(full)
            else:
                self._sending.encode_soon(full)
            await asyncio.sleep(0)  # a program that only sends would never let anything be sent
        return batch, index

    async def _accept_columns(
        self, topic: str, partition: int | None, columns: Any, columns_bytes: int
    ) -> Gathered:
        accepted = await self._accepted(
            topic,
            lambda tell: self._sending.accept_columns(topic, partition, columns, columns_bytes, tell),
        )
        await asyncio.sleep(0)
        return accepted

    async def _accepted(self, topic: str, accept: Callable[[Callable[[], None] | None], A | Wanted]) -> A:
        seconds_max = self._settings.block_seconds_max
        deadline = self._sending.loop.time() + seconds_max
        while True:
            room = asyncio.Event()
            got = accept(room.set)
            if not isinstance(got, Wanted):
                return got
            if got is Wanted.REGISTRATION:
                await self._sending.register(topic)
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await room.wait()
            except TimeoutError:
                raise buffer_is_full(self._settings) from None
            finally:
                self._sending.gathering.wait_no_more(room.set)


async def _finish(sending: Sending, cluster: Cluster) -> None:
    """Nobody can close the producer any more: deliver what is left, in bounded time."""
    with suppress(TimeoutError):
        await wait_in_loop(sending.seal_all(), EXIT_SECONDS_MAX)
    await sending.close()
    await cluster.close()


def _tell_left(sending: Sending, failures: Failures) -> None:
    """Say what of a producer that nobody closed was not delivered, if that is so."""
    failed = failures.take()
    left = sum(batch.count for batch in sending.gathering.live()) + (failed.count if failed else 0)
    if left:
        some = "1 message was" if left == 1 else f"{left} messages were"
        sys.stderr.write(f"talweg: a producer was not closed, and {some} not delivered\n")
