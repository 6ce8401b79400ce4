"""What one attempt to write stages for a transaction: batches at the leaders of partitions, invisible as yet.

Rows are gathered by partition, sealed into frames of a good size, and sent while more are gathered. A stage
is this attempt's alone: its number is thrown as dice, and what a failed attempt staged is never decided on.
"""

import asyncio
import secrets
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from talweg.client.background import Background
from talweg.client.cluster import Cluster
from talweg.client.columns import by_partition, cut
from talweg.errors import PartitionNotFound, TopicExists, TopicNotFound
from talweg.protocol.batches import FRAMES
from talweg.protocol.plain import CreateTopic, TopicCreated
from talweg.protocol.transactions import STAGE_MIN, StageRef
from talweg.records import Codec, encode_arrow

BATCH_BYTES: Final = 1 << 20  # of a frame, before it is compressed
_REQUEST_BYTES_MAX: Final = 4 << 20
_SENDING_BYTES_MAX: Final = 16 << 20  # that are under way before the caller has to wait
_GATHERED_BYTES_MAX: Final = 64 << 20  # that wait for more of their partition
CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

Place = tuple[str, int | None]  # a topic and a partition; None: any, whose turn it is


class _Lane:
    """The way to one partition. Frames arrive in the order of their numbers: one request at a time."""

    def __init__(self, ref: StageRef) -> None:
        self.ref = ref
        self.frames = 0  # sealed so far
        self.queue: deque[bytes] = deque()
        self.lock = asyncio.Lock()


class Staging:
    """Blocks; for one thread. `finish` when everything was added, or `give_up`."""

    def __init__(
        self,
        background: Background,
        cluster: Cluster,
        transaction: str,
        *,
        codec: Codec = Codec.LZ4,
        seconds_max: float,
        turn: int = 0,  # the partition that rows without a key begin with
    ) -> None:
        self._background = background
        self._cluster = cluster
        self._transaction = transaction
        self._codec = codec
        self._seconds_max = seconds_max
        self._turn = turn
        self._partitions: dict[str, int] = {}  # of each topic
        self._gathered: dict[Place, list[Any]] = {}  # record batches
        self._gathered_bytes: dict[Place, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._sending: deque[tuple[Future[None], int]] = deque()  # oldest first, with their sizes
        self._sending_bytes = 0
        self._failed: BaseException | None = None  # then a frame is missing, and nothing may be decided on

    @property
    def stages(self) -> list[StageRef]:
        """Every stage that was begun."""
        return [lane.ref for lane in self._lanes.values()]

    def add(self, topic: str, columns: Any, partition: int | None = None) -> None:
        """Add a record batch: `value`, and `key`, `timestamp`, `headers` where present.

        Rows go to the partition, or to where their keys say, or, without one, in whole batches to one
        partition after another. The topic is created if it is not there.
        """
        partitions = self._partitions_of(topic)
        if partition is not None:
            if not 0 <= partition < partitions:
                raise PartitionNotFound(
                    f"partition {partition}: topic {topic} has partitions 0 to {partitions - 1}"
                )
            self._gather((topic, partition), columns)
        elif "key" not in columns.schema.names:
            self._gather((topic, None), columns)
        else:
            for place, rows in by_partition(columns, partitions):
                keyless = place is None and "key" in rows.schema.names
                self._gather((topic, place), rows.drop_columns(["key"]) if keyless else rows)

    def finish(self) -> list[StageRef]:
        """Send what is left; returns the stages once all of them are on disk on majorities.

        When something could not be sent, it raises that, now and ever after.
        """
        for place in list(self._gathered):
            self._seal(place)
        while self._sending:
            self._wait_for_oldest()
        if self._failed is not None:
            raise self._failed
        return self.stages

    def give_up(self) -> list[StageRef]:
        """Send no more; returns the stages, to be discarded."""
        for future, _ in self._sending:
            future.cancel()
        self._gathered.clear()
        return self.stages

    def _gather(self, place: Place, rows: Any) -> None:
        for piece, piece_bytes in cut(rows, BATCH_BYTES):
            before = self._gathered.get(place)
            if before is not None and before[0].schema != piece.schema:
                self._seal(place)
            self._gathered.setdefault(place, []).append(piece)
            size_bytes = self._gathered_bytes.get(place, 0) + piece_bytes
            self._gathered_bytes[place] = size_bytes
            if size_bytes >= BATCH_BYTES:
                self._seal(place)
        if sum(self._gathered_bytes.values()) > _GATHERED_BYTES_MAX:
            self._seal(max(self._gathered_bytes, key=lambda each: self._gathered_bytes[each]))

    def _seal(self, place: Place) -> None:
        """Make a frame of what is gathered for a place, and send it; waits if too much is under way."""
        columns = pa.Table.from_batches(self._gathered.pop(place))
        self._gathered_bytes.pop(place)
        lane = self._lane(*place)
        frame = encode_arrow(
            columns,
            timestamp=time.time_ns() // 1000,
            codec=self._codec,
            producer_id=lane.ref.stage,
            producer_epoch=-1,
            sequence=lane.frames,
        )
        lane.frames += 1
        self._sending.append((self._background.begin(self._send(lane, frame)), len(frame)))
        self._sending_bytes += len(frame)
        while self._sending_bytes > _SENDING_BYTES_MAX or (self._sending and self._sending[0][0].done()):
            self._wait_for_oldest()

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

    def _wait_for_oldest(self) -> None:
        future, frame_bytes = self._sending.popleft()
        self._sending_bytes -= frame_bytes
        try:
            future.result()
        except BaseException as error:
            self._failed = error
            raise

    async def _send(self, lane: _Lane, frame: bytes) -> None:
        lane.queue.append(frame)
        async with lane.lock:
            if not lane.queue:
                return  # it went with one before it
            frames = [lane.queue.popleft()]
            while lane.queue and sum(map(len, frames)) + len(lane.queue[0]) <= _REQUEST_BYTES_MAX:
                frames.append(lane.queue.popleft())
            await self._cluster.ask_leader(
                lane.ref.topic,
                lane.ref.partition,
                "POST",
                f"/stages/{lane.ref.stage}?transaction={quote(self._transaction, safe='')}",
                b"".join(frames),
                media_type=FRAMES,
                seconds_max=self._seconds_max,
            )

    def _partitions_of(self, topic: str) -> int:
        known = self._partitions.get(topic)
        if known is None:
            known = self._partitions[topic] = self._background.run(self._find_or_create(topic))
        return known

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
