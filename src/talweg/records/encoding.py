"""Messages into one RECORDS frame: from Python values, or from Arrow columns.

A frame has no place in a log yet: the leader stamps it (`records.frame.stamp`).
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from talweg.errors import BatchTooLarge, CorruptBatch
from talweg.records.body import (
    HEADER_VALUE_VALIDITY,
    HEADERS,
    KEY,
    KEY_VALIDITY,
    TIMESTAMP,
    VALUE_VALIDITY,
)
from talweg.records.columns import HEADERS_TYPE, check_schema, to_binary, to_headers, to_timestamps
from talweg.records.compression import RAW_BYTES_MAX, TRIED_BYTES_MIN, compress
from talweg.records.frame import PADDING, seal
from talweg.records.header import Codec, Kind, check_count

HeaderPair = tuple[str, bytes | None]

QUICK_MESSAGES_MAX: Final = 64  # up to here plain Python is faster than Arrow (by four times for one message)


class _Content(msgspec.Struct, frozen=True):
    """What goes into a body, part by part."""

    parts: list[Any]  # buffers, each followed by its padding
    columns: int
    count: int
    first_timestamp: int
    last_timestamp: int  # == first_timestamp unless columns has TIMESTAMP


def encode_values(
    values: Sequence[bytes | None],
    *,
    timestamp: int,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[HeaderPair] | None] | None = None,
    codec: Codec = Codec.LZ4,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """One frame of these messages. `timestamp` is for all of them, unless each has one of its own.

    `headers` has a sequence of pairs for each message; a key may be there more than once.
    """
    count = len(values)
    for name, column in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
        if column is not None and len(column) != count:
            raise CorruptBatch(f"{len(column)} {name} for {count} values")
    content = None
    if count <= QUICK_MESSAGES_MAX and headers is None:
        content = _quick(values, keys, timestamps, timestamp)
    if content is None:
        content = _from_arrays(
            _array("values", values, pa.binary()),
            None if keys is None else _array("keys", keys, pa.binary()),
            None if timestamps is None else _array("timestamps", timestamps, pa.int64()),
            None if headers is None else to_headers(_array("headers", headers, HEADERS_TYPE)),
            timestamp,
        )
    return _sealed(content, codec, producer_id, producer_epoch, sequence)


def encode_arrow(
    batch: Any,
    *,
    timestamp: int,
    codec: Codec = Codec.LZ4,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """One frame of a RecordBatch or a Table: `value`, and `key`, `timestamp`, `headers` where present.

    Any binary or string type will do, any unit of time, and int64 microseconds. A message without a
    timestamp gets `timestamp`. A column `offset` is passed over: offsets are the leader's to give.
    """
    check_schema(batch.schema)
    names = batch.schema.names
    content = _from_arrays(
        to_binary(batch.column("value")),
        to_binary(batch.column("key")) if "key" in names else None,
        to_timestamps(batch.column("timestamp"), timestamp) if "timestamp" in names else None,
        to_headers(batch.column("headers")) if "headers" in names else None,
        timestamp,
    )
    return _sealed(content, codec, producer_id, producer_epoch, sequence)


def _array(name: str, values: Sequence[Any], type_: Any) -> Any:
    try:
        made = pa.array(values, type_)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise CorruptBatch(f"{name}: {error}") from None
    if isinstance(made, pa.ChunkedArray):  # what does not fit behind 32-bit offsets comes in chunks
        raise BatchTooLarge(f"{name}: {made.nbytes} bytes, at most {RAW_BYTES_MAX} are accepted")
    if name == "timestamps" and made.null_count:
        raise CorruptBatch("timestamps: one of them is None")
    return made


def _quick(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    timestamp: int,
) -> _Content | None:
    """The content of a few messages without Arrow, or None if one is not plain bytes: Arrow will see."""
    count = len(values)
    parts: list[Any] = []
    columns = 0
    if not _add_quickly(parts, values):
        return None
    if keys is not None:
        columns |= KEY
        if not _add_quickly(parts, keys):
            return None
    first = last = timestamp
    if timestamps is not None and count:
        try:
            packed = struct.pack(f"<{count}q", *timestamps)
        except struct.error:
            return None
        first, last = min(timestamps), max(timestamps)
        if first != last:
            columns |= TIMESTAMP
            parts.append(packed)
    return _Content(parts, columns, count, first, last)


def _add_quickly(parts: list[Any], column: Sequence[Any]) -> bool:
    try:
        data = b"".join(column)
        ends = [*accumulate(map(len, column), initial=0)]
    except TypeError:
        return False
    if ends[-1] != len(data) or len(data) > RAW_BYTES_MAX:
        return False  # too long, or a memoryview of something wider than a byte
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    parts += (offsets, PADDING[-len(offsets) & 7], data, PADDING[-len(data) & 7])
    return True


def _from_arrays(value: Any, key: Any, timestamps: Any, headers: Any, timestamp: int) -> _Content:
    """The content of arrays that begin at their buffers' begin (`columns.joined` sees to that)."""
    parts: list[Any] = []
    columns = VALUE_VALIDITY if _add_binaries(parts, value) else 0
    if key is not None and key.null_count < len(key):
        columns |= KEY | (KEY_VALIDITY if _add_binaries(parts, key) else 0)
    first = last = timestamp
    if timestamps is not None and len(timestamps):
        ends = pc.min_max(timestamps)
        first, last = ends["min"].as_py(), ends["max"].as_py()
        if first != last:
            columns |= TIMESTAMP
            _add(parts, timestamps.buffers()[1], 8 * len(timestamps))
    if headers is not None and len(headers[1]):
        offsets, header_keys, header_values = headers
        _add(parts, offsets.buffers()[1], 4 * len(offsets))
        _add_binaries(parts, header_keys)
        columns |= HEADERS | (HEADER_VALUE_VALIDITY if _add_binaries(parts, header_values) else 0)
    return _Content(parts, columns, len(value), first, last)


def _add_binaries(parts: list[Any], array: Any) -> bool:
    """Add the buffers of a BinaryArray or StringArray; whether there is a bitmap among them."""
    validity, offsets, data = array.buffers()
    count = len(array)
    if count and memoryview(offsets)[:4].cast("i")[0]:  # cut off in front, as slices sent over IPC are
        validity, offsets, data = pa.concat_arrays([array, array.slice(0, 0)]).buffers()
    if array.null_count:
        _add(parts, validity, count + 7 >> 3)
    if count:
        _add(parts, offsets, 4 * (count + 1))
        data_bytes = memoryview(offsets)[4 * count : 4 * (count + 1)].cast("i")[0]
        if data_bytes:
            _add(parts, data, data_bytes)
    return bool(array.null_count)


def _add(parts: list[Any], buffer: Any, part_bytes: int) -> None:
    parts += (buffer.slice(0, part_bytes), PADDING[-part_bytes & 7])


def _sealed(content: _Content, codec: Codec, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    if not content.count:
        raise CorruptBatch("no messages: a batch holds at least one")
    check_count(content.count)
    parts = content.parts
    body_bytes = sum(map(len, parts))
    if body_bytes > RAW_BYTES_MAX:
        raise BatchTooLarge(f"a batch of {body_bytes} bytes, at most {RAW_BYTES_MAX} are accepted")
    raw_bytes = None
    if codec != Codec.NONE and body_bytes >= TRIED_BYTES_MIN:
        parts = [b"".join(parts)]
        stored = compress(parts[0], codec)
        if stored is not None:
            parts, body_bytes, raw_bytes = [stored], len(stored), body_bytes
    return seal(
        Kind.RECORDS,
        parts,
        body_bytes,
        count=content.count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
        first_timestamp=content.first_timestamp,
        last_timestamp=content.last_timestamp,
        codec=Codec.NONE if raw_bytes is None else codec,
        columns=content.columns,
        raw_bytes=raw_bytes,
    )
