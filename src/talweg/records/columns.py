"""Arrow columns in whatever type they come, made into the few types that a batch stores.

Nothing here looks at one message at a time.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from talweg.errors import BadRequest, BatchTooLarge, CorruptBatch
from talweg.records.compression import RAW_BYTES_MAX

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),  # an empty list, not null, when a message has none
    ]
)
"""What a batch is as Arrow. Only `value` is needed on the way in, where `offset` is passed over."""

COLUMNS: Final = tuple(SCHEMA.names)

HEADERS_MAX: Final = 10_000
"""Of a message that is made or taken in. Empty ones compress to almost nothing, and each of them takes a
hundred bytes in whoever looks at the message. What is in a log already is read whatever its number."""

_PLAIN: Final = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)


def picked(columns: Sequence[str] | None) -> list[str]:
    """The columns that a reader asks for, by name: all of them when it does not say."""
    for name in columns or ():
        if name not in COLUMNS:
            raise BadRequest(f"column {name!r} is unknown, expected {', '.join(COLUMNS)}")
    return [*COLUMNS] if columns is None else [*columns]


def check_schema(schema: Any, *, dictionaries: bool = True) -> None:
    """Raise CorruptBatch, naming the column, unless every column is known and has a type we can store."""
    names = schema.names
    for name in names:
        if name not in COLUMNS:
            raise CorruptBatch(f"column {name!r} is unknown, expected {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise CorruptBatch(f"column {name!r} is there {names.count(name)} times")
    if "value" not in names:
        raise CorruptBatch("column 'value' is missing")
    for field in schema:
        expected = _mistyped(field.name, field.type, dictionaries)
        if expected:
            raise CorruptBatch(f"column {field.name!r} is {field.type}, expected {expected}")


def _mistyped(name: str, type_: Any, dictionaries: bool) -> str | None:
    """What was expected, if the type is none that this column may have."""
    if name in ("value", "key"):
        return None if _is_bytes(type_, dictionaries) else "binary or string"
    if name == "timestamp":
        good = pa.types.is_timestamp(type_) or pa.types.is_int64(type_)
        return None if good else "timestamp, or int64 microseconds since 1970"
    if name == "offset":
        return None if pa.types.is_int64(type_) else "int64"
    return None if _is_headers(type_) else "list<struct<key: string, value: binary>>"


def _is_bytes(type_: Any, dictionaries: bool) -> bool:
    if dictionaries and pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return is_view(type_) or _is_plain(type_)


def is_view(type_: Any) -> bool:
    """Whether elements only point at their bytes, which several of them may share."""
    return bool(pa.types.is_binary_view(type_) or pa.types.is_string_view(type_))


def _is_plain(type_: Any) -> bool:
    return any(is_it(type_) for is_it in _PLAIN)


def _is_headers(type_: Any) -> bool:
    if pa.types.is_map(type_):
        return _is_plain(type_.key_type) and _is_plain(type_.item_type)
    if not (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
        return False
    pair = type_.value_type
    return (
        pa.types.is_struct(pair)
        and sorted(field.name for field in pair) == ["key", "value"]
        and all(_is_plain(field.type) for field in pair)
    )


def chunks_of(column: Any) -> list[Any]:
    """A column as plain arrays, whether it comes from a record batch or from a table."""
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def joined(arrays: list[Any], type_: Any) -> Any:
    """One array of them all, which begins at its buffers' begin: slices are copied, the rest is not."""
    if not arrays:
        return pa.array([], type_)
    if len(arrays) == 1 and arrays[0].offset == 0:
        return arrays[0]
    # A second array, if only an empty one, makes Arrow copy, and thereby rebase offsets and bitmaps.
    return pa.concat_arrays([*arrays, arrays[0].slice(0, 0)])


def to_binary(column: Any) -> Any:
    """Any column of bytes or text as one BinaryArray. Raises BatchTooLarge before it grows too long."""
    chunks = chunks_of(column)
    data_bytes = sum(map(data_bytes_of, chunks))
    if data_bytes > RAW_BYTES_MAX:
        raise BatchTooLarge(f"a column of {data_bytes} bytes, at most {RAW_BYTES_MAX} are accepted")
    return joined([_plain_binary(chunk) for chunk in chunks], pa.binary())


def _plain_binary(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        return _plain_binary(array.dictionary).take(array.indices)
    return array.cast(pa.binary())


def data_bytes_of(array: Any) -> int:
    """How long a column of bytes or text is once every element stands for itself.

    A dictionary or a view may name the same long value a million times: small here, huge when written
    out. So this is asked before that is done.
    """
    if has_short_offsets(array.type) and not array.null_count:
        # Where one ends the next begins: those in between need no look. (A null may have a length, too.)
        return _offset_at(array, len(array)) - _offset_at(array, 0) if len(array) else 0
    return pc.sum(_lengths(array)).as_py() or 0


def has_short_offsets(type_: Any) -> bool:
    """Whether it is a column of bytes or text as Arrow has it by default, and as frames do."""
    return bool(pa.types.is_binary(type_) or pa.types.is_string(type_))


def _offset_at(array: Any, index: int) -> int:
    place = 4 * (array.offset + index)
    return memoryview(array.buffers()[1])[place : place + 4].cast("i")[0]


def _lengths(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        return _lengths(array.dictionary).take(array.indices)
    if is_view(array.type):
        # A view is four 32-bit numbers, of which the first is the length. Unsigned: if one is negative
        # after all, it counts as huge and hides nothing.
        numbers = pa.Array.from_buffers(
            pa.uint32(), 4 * len(array), [None, array.buffers()[1]], offset=4 * array.offset
        )
        lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4), 0)
        return pc.if_else(array.is_valid(), lengths, None)
    return pc.binary_length(array)


def to_timestamps(column: Any, timestamp: int) -> Any:
    """A column of timestamps as Int64 microseconds: nulls become `timestamp`, finer units are cut."""
    if not pa.types.is_int64(column.type):
        finer = column.type.unit == "ns"
        try:
            column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=not finer).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise CorruptBatch(f"column 'timestamp' is out of range: {error}") from None
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(timestamp, pa.int64()))
    return joined(chunks_of(column), pa.int64())


def check_headers(count: int) -> None:
    """Raise BatchTooLarge for a message of more headers than one may have."""
    if count > HEADERS_MAX:
        raise BatchTooLarge(f"a message with {count} headers, at most {HEADERS_MAX} are accepted")


def check_headers_of(column: Any) -> None:
    """Raise BatchTooLarge if a message of the column has more headers than one may have."""
    check_headers(pc.max(_list_lengths([_as_lists(chunk) for chunk in chunks_of(column)])).as_py() or 0)


def to_headers(column: Any) -> tuple[Any, Any, Any]:
    """A column of headers as Int32 offsets (one more than messages), StringArray and BinaryArray.

    The last two have an element for each header. A null list is an empty one.
    """
    chunks = [_as_lists(chunk) for chunk in chunks_of(column)]
    lengths = _list_lengths(chunks)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    headers = ends[-1].as_py() if len(ends) else 0
    if 8 * headers > RAW_BYTES_MAX:
        raise BatchTooLarge(f"{headers} headers do not fit into {RAW_BYTES_MAX} bytes")
    if headers > HEADERS_MAX:
        check_headers(pc.max(lengths).as_py())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    pairs = [chunk.flatten() for chunk in chunks]
    if any(pair.null_count for pair in pairs):
        raise CorruptBatch("column 'headers' has a null instead of a key and a value")
    keys = to_binary(pa.chunked_array([pc.struct_field(pair, "key") for pair in pairs]))
    values = to_binary(pa.chunked_array([pc.struct_field(pair, "value") for pair in pairs]))
    if keys.null_count:
        raise CorruptBatch("column 'headers' has a null key")
    try:
        return offsets, keys.cast(pa.string()), values
    except pa.ArrowInvalid:
        raise CorruptBatch("column 'headers' has a key that is not UTF-8") from None


def _list_lengths(lists: list[Any]) -> Any:
    return joined([pc.fill_null(pc.list_value_length(each), 0) for each in lists], pa.int32())


def _as_lists(array: Any) -> Any:
    if pa.types.is_map(array.type):
        pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        return array.cast(pa.list_(pair))
    return array
