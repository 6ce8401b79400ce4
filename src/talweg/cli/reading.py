"""Reading a range of a topic, batch by batch: from where people said, to where they said or for ever."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from talweg.cli.offsets import END, Place, Range, moment_of
from talweg.client.admin import Admin
from talweg.client.consumer import Consumer
from talweg.client.received import ReceivedBatch
from talweg.errors import PartitionNotFound, TopicReplaced

LOOK_SECONDS: Final = 1.0  # between two looks at whether what is waited for can still come
_FETCH_BYTES: Final = 1 << 20


class Span(msgspec.Struct, frozen=True):
    """What is to be read of one partition."""

    first_offset: int
    next_offset: int | None  # the first that is not read; None: for ever

    def __len__(self) -> int:
        """How many messages, if there is an end."""
        return 0 if self.next_offset is None else max(self.next_offset - self.first_offset, 0)

    def cut(self, batch: ReceivedBatch) -> ReceivedBatch | None:
        """What of a batch is in it."""
        if batch.first_offset < self.first_offset:
            batch = batch.since(min(self.first_offset, batch.next_offset))
        if self.next_offset is not None and batch.next_offset > self.next_offset:
            batch = batch.until(max(self.next_offset, batch.first_offset))
        return batch if len(batch) > 0 else None


def spans_of(
    admin: Admin, topic: str, wanted: Range, partitions: Sequence[int] | None, *, follow: bool = False
) -> dict[int, Span]:
    """What a range means in each partition, or in those named. Raises TopicNotFound, PartitionNotFound."""
    starts, ends = admin.offsets(topic, "earliest"), admin.offsets(topic, "latest")
    for number in partitions or ():
        if number not in ends:
            raise PartitionNotFound(f"topic {topic} has no partition {number}, only 0 to {len(ends) - 1}")
    stop = END if wanted.stop is None else wanted.stop
    at_first, at_stop = moments(admin, topic, wanted.first), moments(admin, topic, stop)
    spans = {}
    for number in sorted(set(partitions)) if partitions else sorted(ends):
        kept = (starts[number], ends[number])
        first = max(wanted.first.offset_in(*kept, at_first.get(number)), starts[number])
        behind: int | None = stop.offset_in(*kept, at_stop.get(number))
        if not follow:  # what is beyond the end is read only by those who wait for it
            behind = min(behind or 0, ends[number])
        elif wanted.stop is None:
            behind = None
        spans[number] = Span(first, behind)
    return spans


def moments(admin: Admin, topic: str, place: Place) -> Mapping[int, int]:
    """By partition, the first message not older; of a place that is no moment, nothing."""
    return admin.offsets(topic, moment_of(place.number)) if place.kind == "moment" else {}


class Reading:
    """A topic's partitions, and what is to be read of each."""

    def __init__(self, admin: Admin, topic: str, spans: Mapping[int, Span]) -> None:
        self._admin = admin
        self._topic = topic
        self.spans = spans

    @property
    def count(self) -> int:
        """How many messages; 0 if there is no end."""
        return sum(map(len, self.spans.values()))

    def batches(
        self,
        open_consumer: Callable[[list[int]], Consumer],
        idle: Callable[[], None] = lambda: None,  # called now and then while nothing comes
    ) -> Iterator[ReceivedBatch]:
        """All of it, in order within each partition. Raises TopicReplaced if what has an end went with its
        topic before that was reached; what has none goes on with the new one."""
        left = {number: span for number, span in self.spans.items() if span.next_offset is None or len(span)}
        if not left:
            return
        with open_consumer(sorted(left)) as consumer:
            ends = self._admin.offsets(self._topic, "latest")
            for number, first in left.items():
                consumer.seek(self._topic, number, min(first.first_offset, ends[number]))
            incarnation: int | None = None  # of the topic, once something of it was read
            while left:
                batch = consumer.poll_batch(LOOK_SECONDS)
                if batch is None:
                    idle()
                    self._drop_lost(left, ends)
                    continue
                span = left.get(batch.partition)
                if span is None:
                    continue
                before, incarnation = incarnation, batch.incarnation - batch.partition
                if span.next_offset is not None and before not in (None, incarnation):
                    raise self._replaced()
                wanted = span.cut(batch)
                if wanted is not None:
                    yield wanted
                if span.next_offset is not None and batch.next_offset >= span.next_offset:
                    del left[batch.partition]
                    consumer.pause(self._topic, batch.partition)

    def _drop_lost(self, left: dict[int, Span], ends: Mapping[int, int]) -> None:
        """Nothing comes: what retention has dropped meanwhile never will, nor what went with its topic."""
        if all(span.next_offset is None for span in left.values()):
            return
        starts, now = self._admin.offsets(self._topic, "earliest"), self._admin.offsets(self._topic, "latest")
        for number, span in list(left.items()):
            if span.next_offset is None:
                continue
            if now.get(number, -1) < ends[number]:  # a log never becomes shorter: this is another one
                raise self._replaced()
            if starts[number] >= span.next_offset:
                del left[number]

    def _replaced(self) -> TopicReplaced:
        return TopicReplaced(
            f"topic {self._topic} was deleted while it was read, and another one has taken its name: what "
            "was not read of the old one is gone"
        )


def reader(topic: str, servers: str | None, timeout: float) -> Callable[[list[int]], Consumer]:
    """Opens consumers for `Reading.batches`."""

    def open_consumer(partitions: list[int]) -> Consumer:
        return Consumer(
            topic,
            servers=servers,
            partitions=partitions,
            auto_offset_reset="earliest",
            fetch_bytes=_FETCH_BYTES,
            api_timeout_ms=round(timeout * 1000),
        )

    return open_consumer
