"""A partition on this broker: what its calls mean, over one group. Knows nothing of HTTP."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from talweg.broker.decoded import DecodedBatches
from talweg.errors import (
    GroupNotFound,
    NoQuorum,
    NotLeader,
    OffsetOutOfRange,
    TalwegError,
    TopicReplaced,
    Undecided,
)
from talweg.protocol.bundles import Empty, Ends, Moved, Taken
from talweg.records import STAGE_ID_MIN, Batch, Bytes, read_header
from talweg.replication import Appended, Group, Position, Replica
from talweg.replication.state import DELETED

_READ_AHEAD_BYTES = 64 << 10  # of frames, when single messages are taken
_READ_AHEAD_RAW_BYTES = 4 << 20  # of the same once they are decompressed; the first of them counts as well


class Fetched(msgspec.Struct, frozen=True):
    """What a read gives: whole frames, the first of which holds the offset asked for."""

    frames: list[bytes]  # empty at the end of the log
    start_offset: int  # the first one kept
    high_watermark: int  # the first one not committed


def _decoded_ahead(frames: Iterable[bytes]) -> Iterator[Batch]:
    """The first of these, and those behind it for which there is room."""
    room = _READ_AHEAD_RAW_BYTES
    for number, frame in enumerate(frames):
        room -= read_header(frame).raw_bytes
        if number and room < 0:
            return
        yield Batch.from_frame(frame)


def _offset_at(replica: Replica, timestamp: int) -> int:
    # Stores find the batch, by headers alone. It may begin with messages that are older.
    offset = replica.offset_at(timestamp)
    for frame in replica.read_frames(offset, 1)[:1]:
        batch = Batch.from_frame(frame)
        number = batch.first_at(timestamp)
        return max(batch.header.first_offset + number, offset) if number < len(batch) else offset
    return offset


class _UnderWay(msgspec.Struct, frozen=True):
    """A take whose position is being replicated."""

    offset: int  # of the message
    token: int
    done: asyncio.Future[None]


class Partition:
    """Answers only where this broker leads and knows what is committed."""

    def __init__(self, topic: str, number: int, group: Group, decoded: DecodedBatches) -> None:
        self.topic = topic
        self.number = number
        self.group = group
        self._decoded = decoded  # of all partitions of the broker
        self._takes: dict[str, _UnderWay] = {}  # by consumer: the last one
        self._takes_term = 0  # the term that they were begun in

    @property
    def name(self) -> str:
        """For people."""
        return f"partition {self.number} of topic {self.topic}"

    def check_incarnation(self, meant: int | None) -> None:
        """Raise TopicReplaced if this one has taken the place of the one that is meant; GroupNotFound if that
        is yet to come here."""
        here = self.group.incarnation
        if meant is None or meant == here:
            return
        if meant > here:
            raise GroupNotFound(f"{self.name} is here in incarnation {here}, not in {meant} as yet")
        raise TopicReplaced(f"topic {self.topic} was deleted, and another one has taken its name")

    async def append(self, frames: Sequence[Bytes]) -> Sequence[Appended]:
        """Append frames in this order; returns once a majority has them on disk."""
        return await self.group.append(frames)

    async def read(self, offset: int, bytes_max: int, wait_seconds: float) -> Fetched:
        """Committed frames from `offset` on; at the end, waits for the first one to come."""
        replica = self.serving()
        self._check_range(offset)
        if offset == replica.high_watermark:
            await self.group.wait_for_offset(offset, wait_seconds)
            replica = self.serving()
        frames: list[bytes] = []
        if offset < replica.high_watermark:
            frames = await asyncio.to_thread(replica.read_frames, offset, bytes_max)
        return Fetched(frames, replica.start_offset, replica.high_watermark)

    async def offset_at(self, timestamp: int) -> int:
        """The first message that is not older; where the log ends, if all are. Confirmed, as `ends` is."""
        await self.confirm()
        return await asyncio.to_thread(_offset_at, self.serving(), timestamp)

    async def ends(self, consumer: str | None = None) -> Ends:
        """Where it begins and ends, confirmed by a majority: a leader of the past does not answer this."""
        self.serving()
        await self.group.confirm_leadership()
        replica = self.serving()
        position = replica.start_offset if consumer is None else self._next_for(consumer)
        return Ends(replica.start_offset, replica.high_watermark, position)

    async def start(self, consumer: str, start: str | int) -> int:
        """Write where a consumer begins, unless it has begun already; returns its position."""
        replica = self.serving()
        if start == "latest":
            offset = (await self.ends()).next_offset
        elif isinstance(start, int):
            offset = await self.offset_at(start)
        else:
            offset = replica.start_offset
        await self.group.commit_positions([Position(consumer, offset)])
        return self.serving().state.positions.get(consumer, offset)

    def position(self, consumer: str) -> int | None:
        """The first offset that a consumer has not read; None if it never read here."""
        return self.serving().state.positions.get(consumer)

    def hold_bytes(self, consumer: str) -> int:
        """Up to which size of the log retention waits for a consumer; 0: it does not."""
        return self.serving().state.holds.get(consumer, 0)

    async def positions(self) -> tuple[Ends, dict[str, int], dict[str, int]]:
        """Where it begins and ends, confirmed by a majority, and everybody's positions and holds."""
        ends = await self.ends()
        state = self.serving().state
        return ends, dict(state.positions), dict(state.holds)

    async def commit_position(
        self, consumer: str, next_offset: int, *, seek: bool = False, keep_bytes: int | None = None
    ) -> None:
        """Replicate a position. Without `seek` it does not go back. With `keep_bytes`, retention waits for it
        while the log has no more than that."""
        self.serving()
        self._check_range(next_offset)
        self._takes.pop(consumer, None)
        await self.group.commit_positions([Position(consumer, next_offset, seek, keep_bytes=keep_bytes)])

    async def delete_position(self, consumer: str) -> None:
        """Forget how far a consumer has read, and its hold: it begins anew, if it ever comes again."""
        self.serving()
        self._takes.pop(consumer, None)
        await self.group.commit_positions([Position(consumer, DELETED)])

    async def hold(self, consumer: str, keep_bytes: int) -> None:
        """Have retention wait for a consumer, wherever it is, while the log has no more than that; 0 ends it.
        Who has no position begins with the first message that is kept."""
        await self.confirm()
        replica = self.serving()
        position = replica.state.positions.get(consumer)
        if position is None and not keep_bytes:
            return  # nothing is held for one that was never here
        # No position goes back by itself, so one that moves on meanwhile stays where it is then.
        offset = replica.start_offset if position is None else position
        await self.group.commit_positions([Position(consumer, offset, keep_bytes=keep_bytes)])

    async def take(self, consumer: str, position: int | None, token: int) -> Taken | Moved | Empty:
        """The next message for a consumer; returns once its position behind it is replicated.

        With a `position`, only if the consumer is there. The same take asked for again, as its token
        says, is answered alike, by this leader or the next.
        """
        replica = self.serving()
        offset = self._next_for(consumer)
        if self._is_repeated(consumer, token):
            return await self._take_again(consumer, offset - 1)
        if position is not None and offset != position:
            return Moved(offset)
        if offset >= replica.high_watermark:
            await self.group.confirm_leadership()  # a leader of the past does not know what has come since
            if offset >= self.serving().high_watermark:
                return Empty(offset)
            offset = self._next_for(consumer)  # another take of this consumer may have been quicker
            if position is not None and offset != position:
                return Moved(offset)
        taken = self._message(offset)
        await self._move(consumer, offset, token)
        return taken

    async def _move(self, consumer: str, offset: int, token: int) -> None:
        under_way = _UnderWay(offset, token, asyncio.get_running_loop().create_future())
        self._takes[consumer] = under_way
        # Unless it is known: when this is cancelled, because it took too long, nobody knows.
        error: TalwegError | None = Undecided("who took the message waited no longer; it may be done or not")
        try:
            await self.group.commit_positions([Position(consumer, offset + 1, token=token)])
            error = None
        except TalwegError as failure:
            error = failure
            raise
        finally:
            if self._takes.get(consumer) is under_way:
                del self._takes[consumer]
            if not under_way.done.done():
                under_way.done.set_exception(error) if error else under_way.done.set_result(None)
                under_way.done.exception()  # looked at: nobody need wait for it

    def _is_repeated(self, consumer: str, token: int) -> bool:
        under_way = self._takes.get(consumer)
        if under_way is not None:
            return under_way.token == token != 0
        replica = self.serving()
        # If retention has dropped the message meanwhile, it cannot be given again: then the next one is.
        is_kept = replica.state.positions.get(consumer, 0) > replica.start_offset
        return is_kept and replica.state.tokens.get(consumer) == token != 0

    async def _take_again(self, consumer: str, offset: int) -> Taken:
        if (under_way := self._takes.get(consumer)) is not None:
            await asyncio.shield(under_way.done)
        return self._message(offset)

    def _next_for(self, consumer: str) -> int:
        replica = self.serving()
        if self._takes_term != self.group.term:
            self._takes.clear()
            self._takes_term = self.group.term
        under_way = self._takes.get(consumer)
        if under_way is not None:
            return under_way.offset + 1
        # Retention may have overtaken it.
        return max(replica.state.positions.get(consumer, 0), replica.start_offset)

    def _message(self, offset: int) -> Taken:
        group = self.group.incarnation
        batch = self._decoded.find(group, offset)
        if batch is None:
            # Not in a thread: it comes from the page cache, and a thread's switch would cost more.
            frames = self.serving().read_frames(offset, _READ_AHEAD_BYTES)
            batches = list(_decoded_ahead(frames))
            self._decoded.keep(group, offset, batches)
            batch = batches[0]
        message = batch.message(offset - batch.header.first_offset)
        producer_id = batch.header.producer_id
        if producer_id >= STAGE_ID_MIN:
            producer_id = -1  # published from a stage, which is nobody's number
        return Taken(offset, message.timestamp, message.value, message.key, producer_id)

    async def confirm(self) -> None:
        """Returns when it is known that this broker leads, and knows all that was committed so far."""
        self.serving()
        await self.group.confirm_leadership()

    def serving(self) -> Replica:
        """The replica, if it leads and knows what is committed; raises NotLeader or NoQuorum."""
        replica = self.group.replica
        if self.group.stopped is not None:
            raise self.group.stopped
        if not self.group.leads:
            raise NotLeader(f"this broker does not lead {self.name}", self.group.leader)
        if not replica.serves:
            raise NoQuorum(f"{self.name} has a new leader, which is not ready yet; try again")
        return replica

    def _check_range(self, offset: int) -> None:
        replica = self.group.replica
        if not replica.start_offset <= offset <= replica.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.name}: it holds {replica.start_offset} to "
                f"{replica.high_watermark} (not included)"
            )
