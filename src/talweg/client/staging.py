"""What one attempt to write stages for a transaction: batches at the leaders of partitions, invisible as yet.

Rows are gathered by partition, sealed into frames of a good size, and sent while more are gathered. A stage
is this attempt's alone: its number is thrown as dice, and what a failed attempt staged is never decided on.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import pyarrow as pa

from talweg.client.cluster import Cluster
from talweg.client.columns import by_partition, bytes_of, cut
from talweg.errors import BodyTooLarge, Closed, PartitionNotFound, TalwegError, TopicExists, TopicNotFound
from talweg.protocol.batches import FRAMES
from talweg.protocol.plain import CreateTopic, TopicCreated
from talweg.protocol.transactions import STAGE_MIN, StageRef
from talweg.records import Codec, encode_arrow

BATCH_BYTES: Final = 1 << 20  # of a frame, before it is compressed
_REQUEST_BYTES_MAX: Final = 4 << 20
_SENDING_BYTES_MAX: Final = 16 << 20  # that are under way before whoever adds has to wait
_GATHERED_BYTES_MAX: Final = 64 << 20  # that wait for more of their partition
_INLINE_BYTES_MAX: Final = 64 << 10  # what is smaller is done quicker than handed to a thread
CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

Place = tuple[str, int | None]  # a topic and a partition; None: any, whose turn it is
A = TypeVar("A")


class _Sealed:
    """A batch under way: columns until it is encoded, then a frame."""

    __slots__ = ("columns", "frame", "held_bytes", "sequence")

    def __init__(self, columns: Any, columns_bytes: int, sequence: int) -> None:
        self.columns: Any | None = columns
        self.frame: bytes | None = None
        self.held_bytes = columns_bytes
        self.sequence = sequence  # in its stage


class _Lane:
    """The way to one partition. Frames arrive in the order of their numbers: one request at a time."""

    def __init__(self, ref: StageRef) -> None:
        self.ref = ref
        self.sealed = 0  # so far
        self.queue: deque[_Sealed] = deque()  # not sent yet
        self.lock = asyncio.Lock()

    def take(self) -> bytes:
        """What goes next in one request: those at the head that are encoded; nothing if none is."""
        frames: list[bytes] = []
        taken_bytes = 0
        while self.queue and (frame := self.queue[0].frame) is not None:
            taken_bytes += len(frame)
            if frames and taken_bytes > _REQUEST_BYTES_MAX:
                break
            frames.append(frame)
            self.queue.popleft()
        return b"".join(frames)


class Staging:
    """Lives in one event loop; one task at a time adds. `finish` when everything was added, or `give_up`."""

    def __init__(
        self,
        cluster: Cluster,
        transaction: str,
        *,
        codec: Codec = Codec.LZ4,
        seconds_max: float,
        turn: int = 0,  # the partition that rows without a key begin with
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._codec = codec
        self._seconds_max = seconds_max
        self._turn = turn
        self._partitions: dict[str, int] = {}  # of each topic
        self._gathered: dict[Place, list[Any]] = {}  # record batches
        self._gathered_bytes: dict[Place, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._sending_bytes = 0
        self._failed: Exception | None = None  # then something is missing, and nothing may be decided on

    @property
    def stages(self) -> list[StageRef]:
        """Every stage that was begun."""
        return [lane.ref for lane in self._lanes.values()]

    async def check(self, topic: str, partition: int | None = None) -> None:
        """Find the topic, which is created if it is not there; raises PartitionNotFound. Adds nothing."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._partitions[topic] = await self._find_or_create(topic)
        if partition is not None and not 0 <= partition < partitions:
            raise PartitionNotFound(
                f"partition {partition}: topic {topic} has partitions 0 to {partitions - 1}"
            )

    async def add(self, topic: str, columns: Any, partition: int | None = None) -> None:
        """Add a record batch: `value`, and `key`, `timestamp`, `headers` where present.

        Rows go to the partition, or to where their keys say, or, without one, in whole batches to one
        partition after another. The topic is created if it is not there. When this fails halfway, or is
        cancelled, `finish` raises that, now and ever after: it is all or nothing.
        """
        await self.check(topic, partition)
        try:
            if partition is not None or "key" not in columns.schema.names:
                await self._gather((topic, partition), columns)
                return
            placed = await _in_thread(bytes_of(columns), by_partition, columns, self._partitions[topic])
            for place, rows in placed:
                keyless = place is None and "key" in rows.schema.names
                await self._gather((topic, place), rows.drop_columns(["key"]) if keyless else rows)
        except BaseException as error:
            self._fail(error)
            raise

    async def finish(self) -> list[StageRef]:
        """Send what is left; returns the stages once all of them are on disk on majorities.

        When something could not be sent, it raises that, now and ever after, and as what is not retriable.
        Cancelled, it may be repeated.
        """
        for place in list(self._gathered):
            self._seal(place)
        while self._sending:
            await asyncio.wait(self._sending)
        self._raise_if_failed()
        return self.stages

    async def give_up(self) -> list[StageRef]:
        """Send no more; returns the stages, to be discarded."""
        self._fail(Closed("the transaction is over: begin another one"))
        self._gathered.clear()
        self._gathered_bytes.clear()
        for task in self._sending:
            task.cancel()
        while self._sending:
            await asyncio.wait(self._sending)
        return self.stages

    # Gathering

    async def _gather(self, place: Place, rows: Any) -> None:
        for piece, piece_bytes in cut(rows, BATCH_BYTES):
            before = self._gathered.get(place)
            if before is not None and before[0].schema != piece.schema:
                self._seal(place)
            self._gathered.setdefault(place, []).append(piece)
            self._gathered_bytes[place] = self._gathered_bytes.get(place, 0) + piece_bytes
            if self._gathered_bytes[place] >= BATCH_BYTES:
                self._seal(place)
            await self._wait_for_room()
        if sum(self._gathered_bytes.values()) > _GATHERED_BYTES_MAX:
            self._seal(max(self._gathered_bytes, key=lambda each: self._gathered_bytes[each]))

    def _seal(self, place: Place) -> None:
        """What is gathered for a place is on its way. In one step: nothing is lost when somebody gives up."""
        self._raise_if_failed()
        lane = self._lane(*place)
        columns = pa.Table.from_batches(self._gathered.pop(place))
        sealed = _Sealed(columns, self._gathered_bytes.pop(place), lane.sealed)
        lane.sealed += 1
        lane.queue.append(sealed)
        self._sending_bytes += sealed.held_bytes
        task = asyncio.get_running_loop().create_task(self._send(lane, sealed))
        self._sending.add(task)
        task.add_done_callback(lambda done: self._sent(done, sealed))

    def _lane(self, topic: str, partition: int | None) -> _Lane:
        if partition is None:
            partition = self._turn % self._partitions[topic]
            self._turn += 1
        lane = self._lanes.get((topic, partition))
        if lane is None:
            stage = STAGE_MIN | secrets.randbits(62)
            lane = _Lane(StageRef(topic=topic, partition=partition, stage=stage))
            self._lanes[topic, partition] = lane
        return lane

    async def _wait_for_room(self) -> None:
        while self._sending and self._sending_bytes > _SENDING_BYTES_MAX:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        self._raise_if_failed()

    # Sending

    async def _send(self, lane: _Lane, sealed: _Sealed) -> None:
        frame = await _in_thread(sealed.held_bytes, self._encode, lane.ref.stage, sealed)
        self._sending_bytes += len(frame) - sealed.held_bytes
        sealed.frame, sealed.columns, sealed.held_bytes = frame, None, len(frame)
        async with lane.lock:
            # Also others that are encoded by now; those behind one that is not are left to its task.
            while self._failed is None and (frames := lane.take()):
                await self._stage(lane.ref, frames)

    async def _stage(self, ref: StageRef, frames: bytes) -> None:
        try:
            await self._cluster.ask_leader(
                ref.topic,
                ref.partition,
                "POST",
                f"/stages/{ref.stage}?transaction={quote(self._transaction, safe='')}",
                frames,
                media_type=FRAMES,
                seconds_max=self._seconds_max,
            )
        except BodyTooLarge as error:
            raise BodyTooLarge(
                f"topic {ref.topic}: {error}. Brokers take requests up to their --body-max"
            ) from error

    def _encode(self, stage: int, sealed: _Sealed) -> bytes:
        return encode_arrow(
            sealed.columns,
            timestamp=time.time_ns() // 1000,
            codec=self._codec,
            producer_id=stage,
            producer_epoch=-1,
            sequence=sealed.sequence,
        )

    def _sent(self, task: asyncio.Task[None], sealed: _Sealed) -> None:
        self._sending.discard(task)
        self._sending_bytes -= sealed.held_bytes
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None:
            return
        if isinstance(error, TalwegError) and error.retriable:
            why = f"some of it could not be sent ({error})"  # which is true for ever
        elif isinstance(error, Exception):
            self._failed = error
            return
        else:  # a cancellation is told to whoever was cancelled, and to nobody else
            why = "adding to it was interrupted"
        self._failed = Closed(f"the transaction cannot be committed: {why}; begin another one")

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    # Topics

    async def _find_or_create(self, topic: str) -> int:
        try:
            found = await self._cluster.fresh_topic(topic, seconds_max=self._seconds_max)
        except TopicNotFound:
            with suppress(TopicExists):  # another task was quicker, or this one, whose answer was lost
                await self._cluster.ask_manager(
                    "POST", "/topics", TopicCreated, CreateTopic(name=topic), seconds_max=self._seconds_max
                )
            found = await self._wait_for_topic(topic)
        return len(found.partitions)

    async def _wait_for_topic(self, topic: str) -> Any:
        """A manager that only follows may hear of it a moment later."""
        deadline = asyncio.get_running_loop().time() + self._seconds_max
        while True:
            try:
                return await self._cluster.fresh_topic(topic, seconds_max=self._seconds_max)
            except TopicNotFound:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.02)


async def _in_thread(size_bytes: int, work: Callable[..., A], *arguments: Any) -> A:
    """Do it elsewhere if it is much: meanwhile this event loop sends."""
    if size_bytes <= _INLINE_BYTES_MAX:
        return work(*arguments)
    try:
        doing = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    except RuntimeError:  # the interpreter ends, and takes no more work for threads
        return work(*arguments)
    return await doing
