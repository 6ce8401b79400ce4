"""Batches as a consumer receives them: frames of one partition that follow one another.

A frame of many messages is a batch of its own, and becomes Arrow where it lies. Small ones are put together,
so that what was sent one by one need not be polled one by one.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa

from talweg.client.message import Headers, Message, Place
from talweg.errors import BadRequest, CorruptBatch
from talweg.records import SCHEMA, Batch, read_header

_ALONE_MESSAGES: Final = 1_000  # a frame with as many is a batch of its own
_TOGETHER_MESSAGES_MAX: Final = 10_000
_TOGETHER_BYTES_MAX: Final = 1 << 20
_RAW_BYTES_MAX: Final = (
    128 << 20
)  # of an answer once it is decompressed; what is behind that is asked for again
_PLACE_COLUMNS: Final = ("topic", "partition")


class ReceivedBatch(msgspec.Struct, frozen=True):
    """Messages of one partition, from `first_offset` on, without gaps."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int  # the first one that is not in it
    frames: tuple[Batch, ...]  # those that hold them; the first and the last may hold more
    incarnation: int = -1  # of the partition: a topic that is made again under this name has others

    def __len__(self) -> int:
        """How many messages."""
        return self.next_offset - self.first_offset

    @property
    def place(self) -> Place:
        """Its topic and partition."""
        return self.topic, self.partition

    @property
    def raw_bytes(self) -> int:
        """What it takes in memory, about."""
        return sum(len(frame.body) for frame in self.frames)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """A RecordBatch of `offset`, `timestamp`, `key`, `value` and `headers`, or of the columns named.

        `topic` and `partition` may be named, too. Of a single frame, columns are views: nothing is copied.
        """
        names = [*SCHEMA.names] if columns is None else [*columns]
        stored = [name for name in names if name not in _PLACE_COLUMNS]
        if unknown := [name for name in stored if name not in SCHEMA.names]:
            known = ", ".join((*SCHEMA.names, *_PLACE_COLUMNS))
            raise BadRequest(f"column {unknown[0]!r} is unknown, expected {known}")
        made = self._stored_columns(stored)
        arrays = [self._place_column(name) if name in _PLACE_COLUMNS else made.column(name) for name in names]
        return pa.record_batch(arrays, names=names)

    def messages(self) -> list[Message]:
        """All of them, in order."""
        made: list[Message] = []
        for frame, begin, end in self._pieces():
            offset = frame.header.first_offset
            made += map(
                Message,
                repeat(self.topic),
                repeat(self.partition),
                range(offset + begin, offset + end),
                _timestamps(frame, begin, end),
                repeat(None) if frame.layout.key is None else _binaries(frame, "key", begin, end),
                _values(frame, begin, end),
                _headers(frame, begin, end),
            )
        return made

    def values(self) -> list[bytes | None]:
        """The values alone, in order."""
        made: list[bytes | None] = []
        for frame, begin, end in self._pieces():
            made += _values(frame, begin, end)
        return made

    def until(self, offset: int) -> "ReceivedBatch":
        """The messages before an offset."""
        frames = tuple(frame for frame in self.frames if frame.header.first_offset < offset)
        return msgspec.structs.replace(self, next_offset=offset, frames=frames)

    def since(self, offset: int) -> "ReceivedBatch":
        """The messages from an offset on."""
        frames = tuple(frame for frame in self.frames if frame.header.next_offset > offset)
        return msgspec.structs.replace(self, first_offset=offset, frames=frames)

    def _pieces(self) -> Iterator[tuple[Batch, int, int]]:
        """Each frame, and which of its messages are meant (end open)."""
        for frame in self.frames:
            offset = frame.header.first_offset
            yield frame, max(self.first_offset - offset, 0), min(self.next_offset - offset, len(frame))

    def _stored_columns(self, names: list[str]) -> Any:
        parts = [frame.to_arrow(names).slice(begin, end - begin) for frame, begin, end in self._pieces()]
        if len(parts) == 1 or not names:
            return parts[0]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _place_column(self, name: str) -> Any:
        if name == "topic":
            return pa.repeat(pa.scalar(self.topic, pa.string()), len(self))
        return pa.repeat(pa.scalar(self.partition, pa.int32()), len(self))


def received(body: bytes, place: Place, offset: int, incarnation: int = -1) -> list[ReceivedBatch]:
    """What a leader answered, from an offset on: as much of it as there should be memory for, one frame at
    least. Raises CorruptBatch."""

    def batch_of(frames: list[Batch]) -> ReceivedBatch:
        # The first of all may begin before what was asked for.
        first = max(frames[0].header.first_offset, offset)
        return ReceivedBatch(*place, first, frames[-1].header.next_offset, tuple(frames), incarnation)

    made: list[ReceivedBatch] = []
    together: list[Batch] = []
    count = raw_bytes = 0
    for frame in _frames(body, offset):
        alone = len(frame) >= _ALONE_MESSAGES
        full = count >= _TOGETHER_MESSAGES_MAX or raw_bytes >= _TOGETHER_BYTES_MAX
        if together and (alone or full):
            made.append(batch_of(together))
            together, count, raw_bytes = [], 0, 0
        together.append(frame)
        count += len(frame)
        raw_bytes += len(frame.body)
        if alone:
            made.append(batch_of(together))
            together, count, raw_bytes = [], 0, 0
    if together:
        made.append(batch_of(together))
    return made


def _frames(body: bytes, offset: int) -> Iterator[Batch]:
    view, position, expected = memoryview(body), 0, None
    room = _RAW_BYTES_MAX
    while position < len(view):
        header = read_header(view, position)
        room -= header.raw_bytes
        if position and room < 0:
            return
        end = position + header.frame_bytes
        frame = Batch.from_frame(view[position:end])
        if not (
            header.first_offset <= offset < header.next_offset
            if expected is None
            else header.first_offset == expected
        ):
            raise CorruptBatch(
                f"offset {offset if expected is None else expected} was to come, not {header.first_offset}"
            )
        yield frame
        position, expected = end, header.next_offset


def _binaries(frame: Batch, name: str, begin: int, end: int) -> list[bytes | None]:
    found: list[bytes | None] = frame.to_arrow([name]).column(0).slice(begin, end - begin).to_pylist()
    return found


def _values(frame: Batch, begin: int, end: int) -> list[bytes | None]:
    if begin == 0 and end == len(frame):
        return frame.values()
    return _binaries(frame, "value", begin, end)


def _timestamps(frame: Batch, begin: int, end: int) -> "repeat[int] | list[int]":
    timestamps = frame.layout.timestamps
    if timestamps is None:
        return repeat(frame.header.first_timestamp)
    found: list[int] = frame.body[timestamps + 8 * begin : timestamps + 8 * end].cast("q").tolist()
    return found


def _headers(frame: Batch, begin: int, end: int) -> "repeat[Headers] | list[Headers]":
    if frame.layout.headers_offsets is None:
        return repeat(())
    return [frame.message(index).headers for index in range(begin, end)]
