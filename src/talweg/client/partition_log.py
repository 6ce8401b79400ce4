"""The logs of partitions, for callers that block: where they begin and end, and any stretch of them as Arrow.

Spark reads through here, a task for each stretch. A leader that dies costs a delay. What retention dropped
meanwhile is said, to whoever reads, before the rest is read or not.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

import msgspec
import pyarrow as pa

from talweg.client.background import Background
from talweg.client.cluster import Cluster, Pause
from talweg.client.offsets import At, commit_position, ends_of, offsets_at, replaced
from talweg.client.servers import Servers
from talweg.errors import (
    CorruptBatch,
    GroupNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    TalwegError,
    TopicNotFound,
    TopicReplaced,
    Unavailable,
)
from talweg.http import HttpResponse
from talweg.protocol.batches import FRAMES, GROUP_HEADER
from talweg.protocol.control import TopicMetadata
from talweg.records import Batch, Header, read_header

ROWS: Final = (
    65_536  # of a record batch: larger ones gain nothing, smaller ones cost Spark up to half its speed
)
_BATCH_BYTES: Final = 32 << 20  # it is closed before that, if its messages are long
_FETCH_BYTES: Final = 4 << 20
_SAMPLE_BYTES: Final = 64 << 10
_GUESSED_BYTES: Final = 1_000.0  # of a message, when those that were to tell are gone
_WAIT_MS: Final = 1_000  # for a new leader to learn what is committed; nothing else is waited for
_AGAIN_MAX: Final = 10  # times in a row that it had not
_COMMITS_AT_ONCE_MAX: Final = 16
_GONE: Final = (OffsetOutOfRange, TopicNotFound, PartitionNotFound)  # what was to be read is not there

Frames = list[tuple[Header, memoryview]]


class Stretch(msgspec.Struct, frozen=True):
    """A part of one partition's log."""

    topic: str
    partition: int
    begin: int
    end: int  # the first offset that is not meant
    group: int | None = None  # the incarnation that is meant; another one is another partition
    # Frames without a message between these moments (both included) are passed over; others are not cut.
    timestamp_min: int | None = None
    timestamp_max: int | None = None

    def __len__(self) -> int:
        """How many messages; none if it ends before it begins."""
        return max(self.end - self.begin, 0)

    def __str__(self) -> str:
        """For people."""
        place = f"partition {self.partition} of topic {self.topic}"
        return f"offsets {self.begin} to {self.end} (not included) of {place}"

    def holds(self, header: Header) -> bool:
        """Whether a frame may have a message that is meant."""
        return (
            header.first_offset < self.end
            and header.next_offset > self.begin
            and (self.timestamp_max is None or header.first_timestamp <= self.timestamp_max)
            and (self.timestamp_min is None or header.last_timestamp >= self.timestamp_min)
        )


class Ends(msgspec.Struct, frozen=True):
    """Where a partition begins and ends now."""

    start_offset: int  # the first message kept
    next_offset: int  # the first one not committed


OnLost = Callable[[Stretch, str], None]
"""Told of what is gone, and why. It raises, or reading goes on behind it."""


class PartitionLogs:
    """Reads logs for one thread of one process. `close` when it is no longer needed."""

    def __init__(self, servers: Servers = None, *, seconds_max: float) -> None:
        self._seconds_max = seconds_max  # for each thing that is asked, all its attempts together
        self.background = Background("talweg-logs")
        self.cluster = self.background.run(_new_cluster(servers))

    def close(self) -> None:
        """Close all connections."""
        self.background.run(self.cluster.close())
        self.background.close()

    def topics(self) -> tuple[TopicMetadata, ...]:
        """Every topic there is."""
        return self.background.run(self.cluster.all_topics(seconds_max=self._seconds_max))

    def topic(self, name: str) -> TopicMetadata:
        """A topic as it is now; raises TopicNotFound."""
        return self.background.run(self.cluster.fresh_topic(name, seconds_max=self._seconds_max))

    def ends(self, topic: str, partitions: Iterable[int], incarnation: int | None = None) -> dict[int, Ends]:
        """Where partitions begin and end, as majorities confirm it. Raises TopicReplaced if the topic is
        another one by now than the one that is meant."""
        numbers = list(partitions)
        first, behind = self.background.run(
            ends_of(self.cluster, topic, numbers, incarnation=incarnation, seconds_max=self._seconds_max)
        )
        return {number: Ends(first[number], behind[number]) for number in numbers}

    def offsets_at(
        self, topic: str, partitions: Iterable[int], at: At, incarnation: int | None = None
    ) -> dict[int, int]:
        """The offset of the first message at an end, or not older than a moment, in each partition. Raises
        TopicReplaced as `ends` does."""
        return self.background.run(
            offsets_at(
                self.cluster, topic, partitions, at, incarnation=incarnation, seconds_max=self._seconds_max
            )
        )

    def commit(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        incarnation: int | None = None,  # of the topic that the offsets are of; None: whichever is there
        seek: bool = False,  # may go back
        keep_bytes: int | None = None,
        seconds_max: float,
    ) -> None:
        """Move a group's positions. They do not go back without `seek`, nor to where there is nothing any
        more, nor into another topic that has taken the name. With `keep_bytes`, retention waits for them up
        to that size of each log. Raises when all were tried."""

        async def commit_all() -> list[BaseException | None]:
            few = asyncio.Semaphore(_COMMITS_AT_ONCE_MAX)

            async def commit(partition: int, offset: int) -> None:
                async with few:
                    await commit_position(
                        self.cluster,
                        group,
                        topic,
                        partition,
                        offset,
                        seek=seek,
                        keep_bytes=keep_bytes,
                        incarnation=None if incarnation is None else incarnation + partition,
                        seconds_max=seconds_max,
                    )

            return await asyncio.gather(*map(commit, offsets, offsets.values()), return_exceptions=True)

        errors = [error for error in self.background.run(commit_all()) if error is not None]
        if errors:
            # One that may yet succeed says more than one that never will.
            raise next((e for e in errors if isinstance(e, TalwegError) and e.retriable), errors[0])

    def message_bytes(self, stretch: Stretch) -> float:
        """How long the first few messages of a stretch are, decompressed, on average; a guess if they are
        gone, of which whoever reads them is told."""
        try:
            found = self._begin(stretch, stretch.begin, _SAMPLE_BYTES).result()
        except _GONE:
            return _GUESSED_BYTES
        messages = sum(header.count for header, _ in found)
        return sum(header.raw_bytes for header, _ in found) / max(messages, 1)

    def batches(self, stretch: Stretch, columns: list[str], on_lost: OnLost) -> Iterator[Any]:
        """Record batches of some of offset, timestamp, key, value, headers; the next is fetched meanwhile."""
        pieces: list[Any] = []
        rows = piece_bytes = 0
        for header, frame in self._frames(stretch, on_lost):
            if not stretch.holds(header):
                continue
            begin = max(stretch.begin - header.first_offset, 0)
            count = min(stretch.end - header.first_offset, header.count) - begin
            if pieces and (rows + count > ROWS or piece_bytes + header.raw_bytes > _BATCH_BYTES):
                yield pa.concat_batches(pieces)
                pieces, rows, piece_bytes = [], 0, 0
            pieces.append(Batch.from_frame(frame).to_arrow(columns).slice(begin, count))
            rows += count
            piece_bytes += header.raw_bytes
        if pieces:
            yield pa.concat_batches(pieces)

    def _frames(self, stretch: Stretch, on_lost: OnLost) -> Iterator[tuple[Header, memoryview]]:
        """Frames from the stretch's begin on, without gaps but those that were told of."""
        offset, again = stretch.begin, 0
        fetching = self._begin(stretch, offset) if len(stretch) > 0 else None
        try:
            while fetching is not None:
                try:
                    found = fetching.result()
                except _GONE as error:
                    before, found, again = offset, [], again + 1
                    offset = self._skip_lost(stretch, before, error, on_lost)
                    if offset == before and again >= _AGAIN_MAX:
                        raise Unavailable(f"{stretch}: nothing came at offset {offset}: {error}") from None
                else:
                    offset, again = found[-1][0].next_offset, 0
                fetching = self._begin(stretch, offset) if offset < stretch.end else None
                yield from found
        finally:
            if fetching is not None:
                fetching.cancel()  # means nothing to one that is done

    def _skip_lost(self, stretch: Stretch, offset: int, error: TalwegError, on_lost: OnLost) -> int:
        """Tell of what is gone from an offset on; returns where reading may go on."""
        goes_on, ends = stretch.end, None
        if isinstance(error, OffsetOutOfRange):
            try:
                ends = self._ends_of(stretch)
            except (TopicNotFound, PartitionNotFound) as gone:
                error = gone
        if ends is None:
            why = "the topic was deleted" if _is_missing(error) else "the topic was deleted and made again"
        elif ends.start_offset > offset:
            why = "retention dropped them before they were read"
            goes_on = min(ends.start_offset, stretch.end)
        elif ends.next_offset > offset:
            return offset  # it was only a leader that had yet to learn what is committed
        else:
            why = f"the log ends at offset {ends.next_offset} now"
        on_lost(msgspec.structs.replace(stretch, begin=offset, end=goes_on), why)
        return goes_on

    def _ends_of(self, stretch: Stretch) -> Ends:
        topic = None if stretch.group is None else stretch.group - stretch.partition
        return self.ends(stretch.topic, [stretch.partition], topic)[stretch.partition]

    def _begin(self, stretch: Stretch, offset: int, bytes_max: int = _FETCH_BYTES) -> Future[Frames]:
        return self.background.begin(self._fetch(stretch, offset, bytes_max))

    async def _fetch(self, stretch: Stretch, offset: int, bytes_max: int) -> Frames:
        await self.cluster.topic(stretch.topic, seconds_max=self._seconds_max)
        path = f"/records?offset={offset}&max_bytes={bytes_max}&wait_ms={_WAIT_MS}"
        answer = await self._ask(stretch, path)
        found = list(_headers(answer.body, offset))
        if not found:  # what was committed once is there, so somebody else's log was asked
            raise OffsetOutOfRange(f"nothing at offset {offset}")
        return found

    async def _ask(self, stretch: Stretch, path: str) -> HttpResponse:
        """What the leader of the incarnation that is meant answers; raises TopicReplaced for a newer one."""
        pause = Pause(self.cluster, self._seconds_max)
        while True:
            answer = await self.cluster.ask_leader(
                stretch.topic,
                stretch.partition,
                "GET",
                path,
                headers={"accept": FRAMES},
                seconds_max=max(pause.left(), 0.001),
            )
            group = int(answer.headers.get(GROUP_HEADER.lower(), -1))
            if stretch.group is None or group in (-1, stretch.group):
                return answer
            if group > stretch.group:
                raise replaced(stretch.topic)
            # An older one: that broker has yet to hear of ours.
            await pause.wait(
                GroupNotFound(f"{stretch}: incarnation {group} answers, not {stretch.group} as yet")
            )
            await self.cluster.look_for_leader(stretch.topic, stretch.partition)


def _is_missing(error: TalwegError) -> bool:
    """Whether there is no topic of that name at all."""
    return isinstance(error, TopicNotFound) and not isinstance(error, TopicReplaced)


async def _new_cluster(servers: Servers) -> Cluster:
    return Cluster(servers)


def _headers(body: bytes, offset: int) -> Iterator[tuple[Header, memoryview]]:
    """The frames of an answer, their bodies still unchecked; the first holds the offset."""
    view, position, expected = memoryview(body), 0, offset
    while position < len(view):
        header = read_header(view, position)
        end = position + header.frame_bytes
        if not header.first_offset <= expected < header.next_offset:
            raise CorruptBatch(f"offset {expected} was to come, not {header.first_offset}")
        yield header, view[position:end]
        position, expected = end, header.next_offset
