"""The consumer for programs with an event loop: `async for message in consumer`."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Self

from talweg.client.consumer_settings import ConsumerSettings, Partitions, Reset, read_partitions, read_topics
from talweg.client.consuming import Consuming
from talweg.client.dropped import end_in_loop
from talweg.client.message import Message, Place
from talweg.client.offsets import Where, read_where
from talweg.client.prefetched import Ends
from talweg.client.received import ReceivedBatch
from talweg.client.servers import Servers, read_servers
from talweg.errors import Closed


class AsyncConsumer:
    """Reads topics, every message once and in order within its partition, for one task at a time.

    It begins with `async with`, with `start`, or with the first call. See `Consumer` for the settings.
    """

    _consuming: Consuming | None = None  # until it has begun

    def __init__(
        self,
        *topics: str,
        servers: Servers = None,
        group: str | None = None,
        partitions: Partitions = None,
        auto_offset_reset: Reset = "earliest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        max_poll_records: int | None = None,
        fetch_bytes: int = 4 << 20,
        fetch_wait_ms: int = 1_000,
        prefetch_bytes: int = 64 << 20,
        request_timeout_ms: int = 10_000,
        api_timeout_ms: int = 60_000,
    ) -> None:
        self._settings = ConsumerSettings(
            topics=read_topics(topics),
            partitions=read_partitions(topics, partitions),
            group=group,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            max_poll_records=max_poll_records,
            fetch_bytes=fetch_bytes,
            fetch_wait_ms=fetch_wait_ms,
            prefetch_bytes=prefetch_bytes,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
        )
        self._servers = read_servers(servers)
        self._process = os.getpid()
        self._beginning: Consuming | None = None  # while it begins
        self._starting = asyncio.Lock()
        self._news = asyncio.Event()
        self._closed = False

    # Beginning and end

    async def start(self) -> Self:
        """Find out where to begin, and read ahead. Raises TopicNotFound and PartitionNotFound."""
        await self._started()
        return self

    async def _started(self) -> Consuming:
        async with self._starting:
            if self._closed:
                raise Closed("the consumer is closed")
            if self._consuming is None:
                self._consuming = await self._begin()
        return self._consuming

    async def _begin(self) -> Consuming:
        consuming = self._beginning = Consuming(self._settings, self._servers, decode_in_thread=True)
        consuming.prefetched.notify = self._news.set
        try:
            await consuming.start()
            if self._closed:
                raise Closed("the consumer is closed")
        except BaseException:
            await consuming.close(clean=False)
            raise
        finally:
            self._beginning = None
        return consuming

    async def close(self) -> None:
        """End, and commit what was handed out if that is automatic. Who waits for messages is woken."""
        await self._close(clean=True)

    async def _close(self, *, clean: bool) -> None:
        if self._closed:
            return
        self._closed = True
        consuming = self._consuming or self._beginning
        if consuming is not None:
            await consuming.close(clean=clean)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(clean=kind is None)

    def __del__(self) -> None:
        if self._consuming is not None and not self._closed and os.getpid() == self._process:
            end = partial(self._consuming.close, clean=False)
            end_in_loop(self, "a consumer", self._consuming.loop, end)

    # Messages

    async def poll_batch(self, timeout: float | None = None) -> ReceivedBatch | None:  # noqa: ASYNC109
        """The next batch of some partition; None after `timeout` seconds, or when it is closed meanwhile."""
        consuming = await self._started()
        deadline = _deadline(timeout)
        while (batch := consuming.hand.take_batch()) is None:
            if not await self._wait(consuming, deadline):
                return None
        return batch

    def __aiter__(self) -> AsyncIterator[Message]:
        """Every message, for ever: until it is closed."""
        return self.messages()

    async def messages(self, timeout: float | None = None) -> AsyncIterator[Message]:  # noqa: ASYNC109
        """Every message; ends when none came for `timeout` seconds, or when it is closed."""
        consuming = await self._started()
        deadline = _deadline(timeout)
        while True:
            made = consuming.hand.take_messages()
            if made is not None:
                for message in made:
                    yield message
                deadline = _deadline(timeout)
            elif not await self._wait(consuming, deadline):
                return

    async def read_to_end(self) -> AsyncIterator[Message]:
        """Every message that is there now; ends behind the last of them."""
        consuming = await self._started()
        ends: Ends = await consuming.ends()
        while consuming.is_before(ends):
            made = consuming.hand.take_messages(ends)
            if made is not None:
                for message in made:
                    yield message
            elif not await self._wait(consuming, None):
                return

    async def _wait(self, consuming: Consuming, deadline: float | None) -> bool:
        """For news; false when time is up, or it is closed."""
        if consuming.prefetched.closed:
            return False
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return not consuming.prefetched.closed

    # Where it is

    @property
    def assignment(self) -> tuple[Place, ...]:
        """The partitions that are read, as (topic, number); empty before it has begun."""
        return () if self._consuming is None else self._consuming.assignment

    async def seek(self, topic: str, partition: int, where: Where) -> None:
        """Go on from an offset, `earliest`, `latest`, or the first message not older than a moment."""
        consuming = await self._started()
        await consuming.seek([consuming.check(topic, partition)], read_where(where))

    async def seek_all(self, where: Where) -> None:
        """The same, in every partition."""
        consuming = await self._started()
        await consuming.seek(consuming.assignment, read_where(where))

    async def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next message that will be handed out."""
        consuming = await self._started()
        return consuming.position(consuming.check(topic, partition))

    async def lag(self) -> dict[Place, int]:
        """How many messages there are that were not handed out yet, by partition."""
        return await (await self._started()).lag()

    async def buffered(self) -> dict[Place, int]:
        """How many of them were read ahead: they can be handed out without waiting. By partition."""
        return (await self._started()).buffered()

    async def pause(self, topic: str, partition: int) -> None:
        """Hand out nothing of a partition until it is resumed."""
        consuming = await self._started()
        consuming.pause(consuming.check(topic, partition))

    async def resume(self, topic: str, partition: int) -> None:
        """Hand out messages of a paused partition again."""
        consuming = await self._started()
        consuming.prefetched.pause(consuming.check(topic, partition), paused=False)

    # Positions of the group

    async def commit(self) -> None:
        """Commit everything that was handed out; returns when a majority has it on disk."""
        await (await self._started()).commit(all_handed_out=True)

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's position: the first offset that it has not finished with; None if it has none."""
        consuming = await self._started()
        return await consuming.committed(consuming.check(topic, partition))


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout
