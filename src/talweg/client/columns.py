"""Many messages at once, as Arrow columns: made, checked, and cut into batches for partitions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from talweg.client.draft import check_size
from talweg.errors import BatchTooLarge
from talweg.records import MESSAGES_MAX
from talweg.records.columns import check_headers_of, check_schema, data_bytes_of, has_short_offsets, to_binary

_ROW_BYTES = 8  # an element's offset, and a little


def columns_of(values: Any, keys: Any, timestamps: Any) -> Any:
    """A RecordBatch of Python values; raises TypeError, which names the column, and ValueError."""
    arrays, names = [_binary("values", values)], ["value"]
    for column, name, given in (
        ("keys", "key", keys),
        ("timestamps", "timestamp", timestamps),
    ):
        if given is not None:
            made = _binary(column, given) if name == "key" else _moments(column, given)
            if len(made) != len(arrays[0]):
                raise ValueError(f"{len(made)} {column} for {len(arrays[0])} values")
            arrays.append(made)
            names.append(name)
    return pa.record_batch(arrays, names=names)


def _binary(name: str, given: Any) -> Any:
    if isinstance(given, str | bytes):
        raise TypeError(f"{name}: expected a list of bytes or str, not {type(given).__name__}")
    sequence = given if isinstance(given, list | tuple) else list(given)
    try:
        made = pa.array(sequence, pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise TypeError(f"{name}: expected bytes, str or None: {error}") from None
    if isinstance(made, pa.ChunkedArray):
        raise BatchTooLarge(f"{name}: more than 2 GiB at once; send them in smaller lists")
    return made


def _moments(name: str, given: Any) -> Any:
    """Typed by what is there: asked for integers, Arrow would cut a fraction off, and say nothing."""
    expected = f"{name}: expected microseconds since 1970 (int), datetimes with a time zone, or None"
    try:
        made = pa.array(given)
        zoned = pa.types.is_timestamp(made.type) and made.type.tz is not None
        if zoned or pa.types.is_integer(made.type) or pa.types.is_null(made.type):
            return (made.cast(pa.timestamp("us", "UTC")) if zoned else made).cast(pa.int64())
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise TypeError(f"{expected}: {error}") from None
    raise TypeError(f"{expected}, not {made.type}")


def checked_columns(given: Any, message_bytes_max: int) -> list[Any]:
    """The record batches of a RecordBatch or Table, in types that keep their size when they are written out.

    Raises TypeError, CorruptBatch, which names the column, and BatchTooLarge.
    """
    if isinstance(given, pa.Table):
        batches = given.to_batches()
    elif isinstance(given, pa.RecordBatch):
        batches = [given]
    else:
        raise TypeError(f"expected a pyarrow RecordBatch or Table, not {type(given).__name__}")
    check_schema(given.schema)
    made = []
    for batch in batches:
        if not batch.num_rows:
            continue
        arrays = [
            to_binary(column) if name in ("value", "key") and not has_short_offsets(column.type) else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        plain = pa.record_batch(arrays, names=batch.schema.names)
        value = plain.column("value")
        if data_bytes_of(value) > message_bytes_max:  # else none of them can be larger
            check_size(pc.max(pc.binary_length(value)).as_py() or 0, message_bytes_max)
        if "headers" in plain.schema.names:
            check_headers_of(plain.column("headers"))
        made.append(plain)
    return made


def bytes_of(columns: Any) -> int:
    """What a record batch counts for in batches and buffers."""
    size_bytes = sum(
        data_bytes_of(columns.column(name)) for name in ("value", "key") if name in columns.schema.names
    )
    if "headers" in columns.schema.names:
        size_bytes += columns.column("headers").nbytes
    return int(size_bytes + _ROW_BYTES * columns.num_rows * columns.num_columns)


def cut(columns: Any, batch_bytes: int) -> Iterator[tuple[Any, int]]:
    """Pieces of about so many bytes each, and no more messages than a batch may hold, with their sizes. A
    single message may be larger."""
    size_bytes = bytes_of(columns)
    if (size_bytes <= batch_bytes and columns.num_rows <= MESSAGES_MAX) or columns.num_rows == 1:
        yield columns, size_bytes
        return
    pieces = min(max(-(-size_bytes // batch_bytes), -(-columns.num_rows // MESSAGES_MAX)), columns.num_rows)
    rows = -(-columns.num_rows // pieces)
    for first in range(0, columns.num_rows, rows):
        piece = columns.slice(first, rows)
        piece_bytes = bytes_of(piece)
        # Rows of very different sizes: this piece has the long ones.
        if piece_bytes > 2 * batch_bytes and piece.num_rows > 1:
            yield from cut(piece, batch_bytes)
        else:
            yield piece, piece_bytes


def by_partition(columns: Any, partitions: int) -> list[tuple[int | None, Any]]:
    """Rows with a key apart by the partition that it belongs to, in order; the rest under None."""
    key = columns.column("key")
    if key.null_count == len(key):
        return [(None, columns.drop_columns(["key"]))]
    encoded = key.cast(pa.binary()).dictionary_encode()
    places: Sequence[int] = [crc32c(each) % partitions for each in encoded.dictionary.to_pylist()]
    indices = numpy.asarray(pc.fill_null(encoded.indices, len(places)))
    where = numpy.append(numpy.asarray(places, dtype=numpy.int64), -1)[indices]
    made: list[tuple[int | None, Any]] = []
    for place in numpy.unique(where):
        rows = columns.filter(pa.array(where == place))
        made.append((None if place < 0 else int(place), rows))
    return made
