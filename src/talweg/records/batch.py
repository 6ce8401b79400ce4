"""A batch as it is read: a checked RECORDS frame, as Arrow, as a list, or one message at a time."""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy
import pyarrow as pa
import pyarrow.compute as pc

from talweg.errors import CorruptBatch
from talweg.records.body import Binaries, Layout, headers_bounds, locate, timestamp_at
from talweg.records.columns import HEADERS_MAX, HEADERS_TYPE, TIMESTAMP_TYPE, check_headers, picked
from talweg.records.compression import RAW_BYTES_MAX, decompress
from talweg.records.frame import check_body
from talweg.records.header import HEADER_BYTES, Bytes, Header, Kind, check_count, read_header

_QUICK_MESSAGES_MAX: Final = 64  # up to here plain Python checks faster than Arrow
_NO_PAIRS: Final = pa.array([], HEADERS_TYPE.value_type)
_OFFSET_MAX: Final = 2**63 - 1  # offsets are int64 in Arrow and in Spark
_ARROW_MESSAGE_BYTES: Final = (
    32  # of a message as Arrow beside its bytes: offset, timestamp, three ends, nulls
)
_ARROW_PAIR_BYTES: Final = 9  # likewise, of one of its headers


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, as the log has it."""

    offset: int
    timestamp: int  # microseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(msgspec.Struct, frozen=True):
    """The messages of one frame. Made by `from_frame`, which checks everything: what is left cannot fail."""

    header: Header
    body: memoryview  # decompressed; begins at a multiple of 8 in memory
    layout: Layout

    @classmethod
    def from_frame(
        cls, frame: Bytes, *, raw_bytes_max: int = RAW_BYTES_MAX, messages_max: int | None = None
    ) -> "Batch":
        """Check a whole frame down to the last offset. Without compression, nothing is copied.

        Whoever takes it in gives `messages_max`, and has the headers of each message counted, too.
        """
        header = read_header(frame)
        check_body(header, frame)
        if len(frame) != header.frame_bytes:
            raise CorruptBatch(f"{len(frame) - header.frame_bytes} bytes follow the frame")
        if header.kind != Kind.RECORDS:
            raise CorruptBatch(f"a frame of kind {header.kind.name}, expected RECORDS")
        if not header.count:
            raise CorruptBatch("no messages: a batch holds at least one")
        if messages_max is not None:
            check_count(header.count, messages_max)
        if header.next_offset > _OFFSET_MAX:
            raise CorruptBatch(f"the offsets end at {header.next_offset}, expected at most {_OFFSET_MAX}")
        stored = pa.py_buffer(frame).slice(HEADER_BYTES, header.body_bytes)
        raw = decompress(header, stored, raw_bytes_max=raw_bytes_max)
        if raw.address & 7:  # in the middle of somebody's receive buffer
            raw = pa.py_buffer(raw.to_pybytes())
        body = memoryview(raw).cast("B")
        batch = cls(header, body, locate(header, body))
        batch._check()
        if messages_max is not None:
            batch._check_headers()
        return batch

    def __len__(self) -> int:
        """How many messages."""
        return self.header.count

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, begin: int = 0, end: int | None = None
    ) -> Any:
        """A RecordBatch of SCHEMA, or of some of its columns; of the messages from `begin` to `end` (not
        included). Views of the frame where it holds them: what it does not hold is made for these alone."""
        names = picked(columns)
        last = len(self) if end is None else end
        return pa.record_batch([self._column(name, begin, last) for name in names], names=names)

    def fitting(self, begin: int, bytes_max: int) -> int:
        """How many messages from `begin` on take about `bytes_max` as Arrow, at most. Perhaps none."""
        ends = range(begin + 1, len(self) + 1)
        return bisect_right(ends, bytes_max, key=lambda end: self._arrow_bytes(begin, end))

    def _arrow_bytes(self, begin: int, end: int) -> int:
        """What the messages from `begin` to `end` (not included) take as Arrow, found without making it."""
        layout, body = self.layout, self.body
        size_bytes = _ARROW_MESSAGE_BYTES * (end - begin) + layout.value.bytes_between(body, begin, end)
        if layout.key is not None:
            size_bytes += layout.key.bytes_between(body, begin, end)
        first, last = self._pairs_between(begin, end)
        if first < last:
            assert layout.header_keys is not None and layout.header_values is not None
            size_bytes += _ARROW_PAIR_BYTES * (last - first)
            size_bytes += layout.header_keys.bytes_between(body, first, last)
            size_bytes += layout.header_values.bytes_between(body, first, last)
        return size_bytes

    def _pairs_between(self, begin: int, end: int) -> tuple[int, int]:
        """Which headers the messages from `begin` to `end` (not included) have: the first, and the one behind
        the last."""
        offsets = self.layout.headers_offsets
        if offsets is None or begin == end:
            return 0, 0
        return headers_bounds(self.body, offsets, begin)[0], headers_bounds(self.body, offsets, end - 1)[1]

    def _check_headers(self) -> None:
        """Raise BatchTooLarge if a message has too many."""
        begin, keys = self.layout.headers_offsets, self.layout.header_keys
        if begin is not None and keys is not None and keys.count > HEADERS_MAX:
            offsets = numpy.frombuffer(self.body, numpy.int32, len(self) + 1, begin)
            check_headers(int(numpy.diff(offsets).max()))

    def values(self) -> list[bytes | None]:
        """The values alone, in order."""
        value = self.layout.value
        if value.count > _QUICK_MESSAGES_MAX:
            made: list[bytes | None] = self._binaries(value, pa.binary()).to_pylist()
            return made
        return [value.element(self.body, index) for index in range(value.count)]

    def first_at(self, timestamp: int) -> int:
        """The number of the first message that is not older; how many there are, if all of them are."""
        if self.layout.timestamps is None:
            return 0 if self.header.first_timestamp >= timestamp else len(self)
        times = numpy.frombuffer(self.body, numpy.int64, len(self), self.layout.timestamps)
        found = numpy.flatnonzero(times >= timestamp)
        return int(found[0]) if found.size else len(self)

    def message(self, index: int) -> Message:
        """Message `index` of the batch, from 0, without making Arrow arrays."""
        if not 0 <= index < self.header.count:
            raise IndexError(f"message {index} of {self.header.count}")
        layout = self.layout
        return Message(
            self.header.first_offset + index,
            self.header.first_timestamp
            if layout.timestamps is None
            else timestamp_at(self.body, layout.timestamps, index),
            None if layout.key is None else layout.key.element(self.body, index),
            layout.value.element(self.body, index),
            self._headers_of(index),
        )

    def _headers_of(self, index: int) -> tuple[tuple[str, bytes | None], ...]:
        layout = self.layout
        if layout.headers_offsets is None or layout.header_keys is None or layout.header_values is None:
            return ()
        made = []
        for place in range(*headers_bounds(self.body, layout.headers_offsets, index)):
            begin, end = layout.header_keys.bounds(self.body, place)
            made.append((str(self.body[begin:end], "utf-8"), layout.header_values.element(self.body, place)))
        return tuple(made)

    def _check(self) -> None:
        """What the places of the parts do not show: offsets in between, UTF-8, the timestamps' ends."""
        layout = self.layout
        if layout.headers_offsets is None and len(self) <= _QUICK_MESSAGES_MAX:
            for binaries in (layout.value, layout.key):
                if binaries is not None and not binaries.offsets_rise(self.body):
                    raise CorruptBatch("offsets that fall")
        else:
            try:
                for name, held in (("value", True), ("key", layout.key), ("headers", layout.header_keys)):
                    if held:  # what is made up is right
                        self._column(name, 0, len(self)).validate(full=True)
            except pa.ArrowInvalid as error:
                raise CorruptBatch(f"the body is not what its columns say: {error}") from None
        # Readers find messages by time through the header alone, so it must not lie.
        ends = (self.header.first_timestamp, self.header.last_timestamp)
        if ends != self._timestamp_ends():
            raise CorruptBatch(f"timestamps from {ends[0]} to {ends[1]} announced, and others found")

    def _timestamp_ends(self) -> tuple[int, int]:
        timestamps = self.layout.timestamps
        if timestamps is None:
            return self.header.first_timestamp, self.header.first_timestamp
        if len(self) <= _QUICK_MESSAGES_MAX:
            found = self.body[timestamps : timestamps + 8 * len(self)].cast("q").tolist()
            return min(found), max(found)
        ends = pc.min_max(self._column("timestamp", 0, len(self)).view(pa.int64()))
        return ends["min"].as_py(), ends["max"].as_py()

    def _column(self, name: str, begin: int, end: int) -> Any:
        """One column of SCHEMA, for some messages. Those that the body does not hold are made up."""
        count = end - begin
        if name == "value":
            return self._binaries(self.layout.value, pa.binary()).slice(begin, count)
        if name == "key":
            key = self.layout.key
            if key is None:
                return pa.nulls(count, pa.binary())
            return self._binaries(key, pa.binary()).slice(begin, count)
        if name == "offset":
            first = self.header.first_offset
            return pa.array(numpy.arange(first + begin, first + end, dtype=numpy.int64))
        if name == "timestamp":
            timestamps = self.layout.timestamps
            if timestamps is None:
                buffer = pa.py_buffer(struct.pack("<q", self.header.first_timestamp) * count)
            else:
                buffer = self._slice(timestamps + 8 * begin, 8 * count)
            return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, buffer])
        return self._headers_column(begin, end)

    def _headers_column(self, begin: int, end: int) -> Any:
        layout, count = self.layout, end - begin
        first, last = self._pairs_between(begin, end)
        if first == last:
            # Not a slice of none: as IPC Arrow writes such a one with the whole batch's headers behind it.
            none = pa.py_buffer(bytes(4 * (count + 1)))
            return pa.Array.from_buffers(HEADERS_TYPE, count, [None, none], children=[_NO_PAIRS])
        assert layout.headers_offsets is not None
        assert layout.header_keys is not None and layout.header_values is not None
        offsets = self._slice(layout.headers_offsets, 4 * (len(self) + 1))
        keys = self._binaries(layout.header_keys, pa.string())
        values = self._binaries(layout.header_values, pa.binary())
        pairs = pa.Array.from_buffers(
            HEADERS_TYPE.value_type, layout.header_keys.count, [None], children=[keys, values]
        )
        whole = pa.Array.from_buffers(HEADERS_TYPE, len(self), [None, offsets], children=[pairs])
        return whole.slice(begin, count)

    def _binaries(self, binaries: Binaries, type_: Any) -> Any:
        validity = binaries.validity
        buffers = [
            None if validity is None else self._slice(validity, binaries.count + 7 >> 3),
            self._slice(binaries.offsets, 4 * (binaries.count + 1)),
            self._slice(binaries.data, binaries.data_bytes),
        ]
        return pa.Array.from_buffers(type_, binaries.count, buffers)

    def _slice(self, begin: int, part_bytes: int) -> Any:
        return pa.py_buffer(self.body[begin : begin + part_bytes])
