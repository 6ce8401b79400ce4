"""A batch on its way, from its first message until it is acknowledged or given up; and lanes of them."""

import asyncio
import random
import time
from bisect import bisect_right
from collections import deque
from typing import Any

from crc32c import crc32c

from talweg.client.delivery import Fate, moment
from talweg.client.draft import Draft, HeaderPairs
from talweg.client.producer_settings import ProducerSettings
from talweg.errors import PartitionNotFound, TalwegError
from talweg.records import Codec, encode_arrow, encode_values


class Gathered(Fate):
    """A batch on its way: from its first message until it is acknowledged or given up.

    Messages are added, under the lock, until it is sealed; then it never changes. `room` is what may be
    added without asking: it is never more than what was granted of the buffer and is not used.
    """

    __slots__ = (
        "_count",
        "_gone",
        "_headers",
        "_keys",
        "_marked",
        "_marks",
        "_timestamps",
        "claimed",
        "columns",
        "deadline",
        "frame",
        "granted_bytes",
        "lane",
        "opened_at",
        "room",
        "sealed",
        "values",
    )

    def __init__(
        self,
        lane: "Lane",
        loop: asyncio.AbstractEventLoop,
        settings: ProducerSettings,
        columns: Any = None,  # Arrow: it is sealed from the beginning
    ) -> None:
        super().__init__(lane.topic, lane.partition, loop, told=not settings.acknowledged)
        self.lane = lane
        self.opened_at = moment()
        self.deadline = self.opened_at + settings.delivery_seconds_max
        self.values: list[bytes | None] = []
        self._gone = False  # `values` is another list by now
        self.columns = columns
        self.room = 0
        self.granted_bytes = 0
        self.sealed = columns is not None
        self.claimed = False  # somebody encodes it, or is about to
        self.frame: bytes | TalwegError | None = None
        self._count = 0 if columns is None else columns.num_rows
        self._keys: list[bytes | None] | None = None
        self._timestamps: list[int | None] | None = None
        self._headers: list[HeaderPairs | None] | None = None
        # From which message on which timestamp holds, both growing.
        self._marks = [0]
        self._marked = [time.time_ns() // 1000]

    @property
    def count(self) -> int:
        """Messages in it."""
        return self._count or len(self.values)

    def fix_count(self) -> None:
        """It is sealed: what an owner adds from now on without having seen that is not part of it."""
        self._count = self._count or len(self.values)

    def counted(self, values: list[bytes | None], index: int) -> bool:
        """Whether what an owner added at this place of `values`, as it was then, came before the seal."""
        return index < self.count and not (self._gone and values is self.values)

    @property
    def plain(self) -> bool:
        """Whether its messages are values and nothing else."""
        return self._keys is None and self._timestamps is None and self._headers is None

    def append(self, draft: Draft) -> int:
        """Add a message; its place. The value comes last: with it, the message is there."""
        index = len(self.values)
        # Whatever an interrupted call left behind this place is cut off.
        if draft.key is not None or self._keys is not None:
            self._keys = self._keys or [None] * index
            self._keys[index:] = (draft.key,)
        if draft.timestamp is not None or self._timestamps is not None:
            self._timestamps = self._timestamps or [None] * index
            self._timestamps[index:] = (draft.timestamp,)
        if draft.headers is not None or self._headers is not None:
            self._headers = self._headers or [None] * index
            self._headers[index:] = (draft.headers,)
        self.values.append(draft.value)
        return index

    def mark(self) -> None:
        """Messages that come from now on are younger than those before."""
        now_us = max(time.time_ns() // 1000, self._marked[-1])
        if self._marks[-1] == len(self.values):
            self._marked[-1] = now_us
        else:
            self._marks.append(len(self.values))
            self._marked.append(now_us)

    def timestamp_of(self, index: int) -> int:
        """Of a message, in microseconds since 1970."""
        if self._timestamps is not None:
            given = self._timestamps[index]
            if given is not None:
                return given
        return self._marked[bisect_right(self._marks, index) - 1]

    def encode(self, codec: Codec) -> None:
        """Make the frame, or the error why there is none. Twice is as good as once."""
        try:
            self.frame = self._encoded(codec)
        except TalwegError as error:
            self.frame = error

    def _encoded(self, codec: Codec) -> bytes:
        timestamp = self._marked[0]
        if self.columns is not None:
            return encode_arrow(self.columns, timestamp=timestamp, codec=codec)
        timestamps = None
        if self._timestamps is not None or len(self._marks) > 1:
            timestamps = list(map(self.timestamp_of, range(self.count)))
        return encode_values(
            self.values[: self.count],
            timestamp=timestamp,
            keys=self._keys,
            timestamps=timestamps,
            headers=self._headers,
            codec=codec,
        )

    def let_go(self) -> None:
        """Keep only what deliveries are asked for: messages may have gone, who asked may have not."""
        self._count = self.count
        self._gone = True
        self.values = []
        self.columns = self.frame = self._keys = self._headers = None


class Lane:
    """The way to one partition: batches in order, of which only the last may be open."""

    def __init__(self, topic: str, partition: int, partitions: int, incarnation: int) -> None:
        self.topic = topic
        self.partition = partition
        self.partitions = partitions  # of the topic
        self.incarnation = incarnation  # of the topic, as it was when we were registered
        self.queue: deque[Gathered] = deque()
        # For whoever sends:
        self.producer_id: int | None = None  # None: to be registered
        self.sequence = 0  # of the next message
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()

    @property
    def open(self) -> Gathered | None:
        """The batch that messages are added to, if there is one."""
        queue = self.queue
        return queue[-1] if queue and not queue[-1].sealed else None


class Lanes:
    """All lanes of a topic, and whose turn it is among them."""

    def __init__(self, topic: str, incarnation: int, partitions: int, producer_id: int) -> None:
        self.topic = topic
        self.lanes = [Lane(topic, partition, partitions, incarnation) for partition in range(partitions)]
        for lane in self.lanes:
            lane.producer_id = producer_id
        self._turn = random.randrange(partitions)  # noqa: S311 - so that producers do not begin in step

    def at(self, key: bytes | None, partition: int | None) -> Lane:
        """Where a message goes: where it must, where its key says, or with the others of the open batch."""
        if partition is not None:
            if not 0 <= partition < len(self.lanes):
                raise PartitionNotFound(
                    f"partition {partition}: topic {self.topic} has partitions 0 to {len(self.lanes) - 1}"
                )
            return self.lanes[partition]
        if key is not None:
            return self.lanes[crc32c(key) % len(self.lanes)]
        lane = self.lanes[self._turn]
        return lane if lane.open is not None else self.next()

    def next(self) -> Lane:
        """The partition whose turn it is: the one after the last, but one that is behind is passed over."""
        lanes, count = self.lanes, len(self.lanes)
        turns = ((self._turn + step) % count for step in range(1, count + 1))
        self._turn = min(turns, key=lambda turn: len(lanes[turn].queue))  # of equals the first
        return lanes[self._turn]
