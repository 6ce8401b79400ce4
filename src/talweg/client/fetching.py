"""Reads partitions ahead: one long poll for each under way at its leader, whoever that is.

Each partition is read in order from an offset on, until it is read from elsewhere. A leader that is gone
costs a delay; an offset that is gone is put right as `auto_offset_reset` says; whatever else is wrong goes to
the consumer, and is tried again when that asks again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from talweg.client.cluster import PAUSE_SECONDS_MAX, Cluster
from talweg.client.consumer_settings import ConsumerSettings
from talweg.client.message import Place
from talweg.client.offsets import ends_of
from talweg.client.prefetched import NOWHERE, Prefetched
from talweg.client.received import ReceivedBatch, received
from talweg.errors import OffsetOutOfRange, TopicNotFound
from talweg.http import HttpResponse
from talweg.protocol.batches import FRAMES, GROUP_HEADER

_log = logging.getLogger("talweg.client")

_SUSPICION_SECONDS: Final = 1.0  # longer than an answer may take, and the leader may be another by now
_INLINE_BYTES_MAX: Final = 64 << 10  # what is smaller is not worth a thread
_PARTITION_BYTES_MIN: Final = 64 << 10  # read at once, however many partitions share the memory
_HEADERS: Final = {"accept": FRAMES}


class _Reader:
    """One partition, and how far it was read ahead."""

    __slots__ = ("asked_at", "asked_leader", "group", "offset", "place", "room", "task")

    def __init__(self, place: Place, group: int, offset: int | None) -> None:
        self.place = place
        self.group = group  # the incarnation that is read
        self.offset = offset  # the first one that was not read ahead; None: nobody has said where to begin
        self.room = asyncio.Event()
        self.asked_at: float | None = None  # by the loop's clock; None: nothing is under way
        self.asked_leader: str | None = None
        self.task: asyncio.Task[None] | None = None  # None, or done: it stands still


def gone(error: TopicNotFound) -> TopicNotFound:
    """For whoever reads a topic that is no more."""
    return TopicNotFound(f"{error} any more: it was deleted while it was read")


class Fetching:
    """The readers of a consumer. Lives in one event loop; `prefetched` is what they fill."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        decode_in_thread: bool,  # so that the loop is free meanwhile
        made_again: Callable[[str], None],  # a topic is another one by now
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._decode_in_thread = decode_in_thread
        self._made_again = made_again
        self._loop = asyncio.get_running_loop()
        self._readers: dict[Place, _Reader] = {}
        self._watching: asyncio.Task[None] | None = None
        self.prefetched = Prefetched(settings.prefetch_bytes, self._tell)

    # What is read

    def open(self, place: Place, group: int, offset: int | None, *, error: Exception | None = None) -> None:
        """Read a partition from an offset on, whatever was read of it before; without one, whoever consumes
        is told so. With an error, whoever consumes is told of it first, and then it is tried."""
        self.stop(place)
        self.prefetched.open(place, NOWHERE if offset is None else offset, group)
        reader = self._readers[place] = _Reader(place, group, offset)
        self._share()
        if error is None:
            self._start(reader)
        else:
            self.prefetched.fail(place, error)
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())

    def seek(self, place: Place, offset: int) -> None:
        """Read a partition from elsewhere."""
        self.open(place, self._readers[place].group, offset)

    def stop(self, place: Place) -> None:
        """Read a partition no more. What was read ahead of it stays."""
        reader = self._readers.pop(place, None)
        if reader is not None and reader.task is not None:
            reader.task.cancel()

    async def close(self) -> None:
        """Stop everything."""
        tasks = [reader.task for reader in self._readers.values() if reader.task is not None]
        tasks += [self._watching] if self._watching is not None else []
        for task in tasks:
            task.cancel()
        self.prefetched.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _share(self) -> None:
        self.prefetched.share_bytes = max(
            self._settings.prefetch_bytes // len(self._readers), _PARTITION_BYTES_MIN
        )

    def _start(self, reader: _Reader) -> None:
        reader.room.set()
        reader.task = self._loop.create_task(self._run(reader))

    def _tell(self, place: Place) -> None:
        """There is room, or somebody was told of an error: go on. From any thread."""
        if not self.prefetched.closed:
            self._loop.call_soon_threadsafe(self._go_on, place)

    def _go_on(self, place: Place) -> None:
        reader = self._readers.get(place)
        if reader is not None:
            reader.room.set()
            if reader.task is None or reader.task.done():
                self._start(reader)

    # Reading

    async def _run(self, reader: _Reader) -> None:
        try:
            while True:
                while not self.prefetched.has_room(reader.place):
                    reader.room.clear()
                    await reader.room.wait()
                await self._read(reader)
        except Exception as error:  # noqa: BLE001 - also our own mistakes: else the consumer waits for ever
            self.prefetched.fail(reader.place, error)

    async def _read(self, reader: _Reader) -> None:
        topic, number = reader.place
        offset = reader.offset
        if offset is None:
            raise OffsetOutOfRange(
                f"no position is committed in partition {number} of topic {topic}, and auto_offset_reset is "
                "'none': seek to where reading should begin, or set it to 'earliest' or 'latest'"
            )
        try:
            answer = await self._ask(reader, offset)
        except OffsetOutOfRange as error:
            await self._put_right(reader, offset, error)
            return
        except TopicNotFound as error:
            raise gone(error) from None
        if answer.headers.get(GROUP_HEADER.lower(), str(reader.group)) != str(reader.group):
            await self._look_at_topic(reader)
            return
        batches = await self._decoded(reader, answer.body, offset)
        if batches:
            reader.offset = batches[-1].next_offset
            self.prefetched.put(reader.place, batches)

    async def _ask(self, reader: _Reader, offset: int) -> HttpResponse:
        settings = self._settings
        bytes_max = min(settings.fetch_bytes, self.prefetched.share_bytes)
        reader.asked_at = self._loop.time()
        reader.asked_leader = self._cluster.leader(*reader.place)
        try:
            return await self._cluster.ask_leader(
                *reader.place,
                "GET",
                f"/records?offset={offset}&max_bytes={bytes_max}&wait_ms={settings.fetch_wait_ms}",
                headers=_HEADERS,
                seconds_max=settings.api_seconds_max,
                attempt_seconds_max=(settings.fetch_wait_ms + settings.request_timeout_ms) / 1000,
            )
        finally:
            reader.asked_at = None

    async def _decoded(self, reader: _Reader, body: bytes, offset: int) -> list[ReceivedBatch]:
        if self._decode_in_thread and len(body) > _INLINE_BYTES_MAX:
            return await asyncio.to_thread(received, body, reader.place, offset, reader.group)
        return received(body, reader.place, offset, reader.group)

    # What is wrong

    async def _put_right(self, reader: _Reader, offset: int, error: OffsetOutOfRange) -> None:
        """An offset was refused: retention has overtaken it, or it never was."""
        topic, number = reader.place
        seconds_max = self._settings.api_seconds_max
        if await self._is_made_again(reader):
            return
        first, behind = await ends_of(self._cluster, topic, [number], seconds_max=seconds_max)
        if first[number] <= offset <= behind[number]:
            # A leader of the past said so, which does not know all that is there.
            await asyncio.sleep(PAUSE_SECONDS_MAX)
            await self._cluster.look_for_leader(topic, number)
            return
        if self._settings.auto_offset_reset == "none":
            raise OffsetOutOfRange(
                f"{error}; seek to another offset, or set auto_offset_reset to 'earliest' or 'latest'"
            )
        at = first if self._settings.auto_offset_reset == "earliest" else behind
        _log.warning(
            "offset %d of partition %d of topic %s is not there (any more): going on with %d",
            offset,
            number,
            topic,
            at[number],
        )
        reader.offset = at[number]
        self.prefetched.jump(reader.place, at[number])

    async def _look_at_topic(self, reader: _Reader) -> None:
        """An answer came from another incarnation. Managers may know a moment later than brokers."""
        if not await self._is_made_again(reader):
            await asyncio.sleep(PAUSE_SECONDS_MAX)

    async def _is_made_again(self, reader: _Reader) -> bool:
        name, number = reader.place
        topic = await self._cluster.fresh_topic(name, seconds_max=self._settings.api_seconds_max)
        if topic.incarnation + number <= reader.group:
            return False  # a manager may know less than we do
        self._made_again(name)
        await asyncio.Event().wait()  # this reader is about to be stopped
        return True

    async def _watch(self) -> None:
        """A leader that stands still keeps its connections: see whether another one leads by now."""
        patience = self._settings.fetch_wait_ms / 1000 + _SUSPICION_SECONDS
        while True:
            await asyncio.sleep(_SUSPICION_SECONDS)
            late = list(self._late(self._loop.time() - patience))
            if not late:
                continue
            await self._cluster.refresh()
            for reader in late:
                leader = self._cluster.leader(*reader.place)
                same = self._readers.get(reader.place) is reader and reader.asked_at is not None
                if same and leader not in (None, reader.asked_leader):
                    assert reader.task is not None
                    reader.task.cancel()
                    self._start(reader)

    def _late(self, asked_before: float) -> Iterable[_Reader]:
        return (r for r in self._readers.values() if r.asked_at is not None and r.asked_at < asked_before)
