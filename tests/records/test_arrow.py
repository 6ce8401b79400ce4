"""From Arrow columns of any sensible type, sliced and chunked, into one frame."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.samples import FULL, NOW, Rows, messages_of, raw_body, rows
from talweg.errors import BatchTooLarge, CorruptBatch
from talweg.records import SCHEMA, Batch, Codec, encode_arrow, encode_values
from talweg.records.columns import HEADERS_TYPE

VALUES = [b"first", None, b"", b"a value long enough to leave its view", b"last"]
BYTES_TYPES = [
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.binary()),
    pa.dictionary(pa.uint32(), pa.large_string()),
    pa.dictionary(pa.int32(), pa.string_view()),
]


def of_type(values: list[bytes | None], type_: Any) -> Any:
    if pa.types.is_dictionary(type_):
        unique = sorted({value for value in values if value is not None})
        indices = [None if value is None else unique.index(value) for value in values]
        dictionary = pa.array(unique, pa.binary()).cast(type_.value_type)
        return pa.DictionaryArray.from_arrays(pa.array(indices, type_.index_type), dictionary)
    return pa.array(values, pa.binary()).cast(type_)


def encoded(columns: dict[str, Any], **others: Any) -> bytes:
    return encode_arrow(pa.record_batch(columns), timestamp=NOW, **others)


def as_arrow(made: Rows) -> dict[str, Any]:
    columns = {"value": pa.array(made.values, pa.binary())}
    if made.keys is not None:
        columns["key"] = pa.array(made.keys, pa.binary())
    if made.timestamps is not None:
        columns["timestamp"] = pa.array(made.timestamps, pa.int64())
    if made.headers is not None:
        columns["headers"] = pa.array(made.headers, HEADERS_TYPE)
    return columns


@pytest.mark.parametrize("type_", BYTES_TYPES, ids=str)
@pytest.mark.parametrize("column", ["value", "key"])
def test_any_type_of_bytes_will_do(type_: Any, column: str) -> None:
    columns = {"value": pa.array(VALUES, pa.binary()), column: of_type(VALUES, type_)}
    plain = {"value": pa.array(VALUES, pa.binary()), column: pa.array(VALUES, pa.binary())}
    assert encoded(columns, codec=Codec.NONE) == encoded(plain, codec=Codec.NONE)


@pytest.mark.parametrize("type_", BYTES_TYPES, ids=str)
def test_slices_and_chunks_will_do(type_: Any) -> None:
    values = VALUES * 5
    column = of_type(values, type_)
    for begin, size in ((0, 25), (1, 24), (3, 9), (8, 8), (9, 1), (24, 1)):
        frame = encoded({"value": column.slice(begin, size)})
        assert Batch.from_frame(frame).values() == values[begin : begin + size]
    chunks = pa.chunked_array([column.slice(3, 4), column.slice(0, 0), column.slice(9, 10)])
    frame = encode_arrow(pa.table({"value": chunks}), timestamp=NOW)
    assert Batch.from_frame(frame).values() == values[3:7] + values[9:19]


def test_fixed_size_bytes_will_do() -> None:
    column = pa.array([b"abc", None, b"def"], pa.binary(3))
    assert Batch.from_frame(encoded({"value": column})).values() == [b"abc", None, b"def"]


@given(rows(), st.data(), st.sampled_from(Codec))
def test_arrow_and_values_give_the_same_batch(made: Rows, data: st.DataObject, codec: Codec) -> None:
    assert encoded(as_arrow(made), codec=codec) == made.encode(codec=codec)
    begin = data.draw(st.integers(0, len(made.values) - 1))
    end = data.draw(st.integers(begin + 1, len(made.values)))
    sliced = pa.record_batch(as_arrow(made)).slice(begin, end - begin)
    expected = made.part(begin, end).messages()
    assert messages_of(encode_arrow(sliced, timestamp=NOW, codec=codec)) == expected


@given(st.lists(rows(count_max=70), min_size=1, max_size=3))
def test_a_table_of_several_batches_becomes_one_frame(parts: list[Rows]) -> None:
    frames = [part.encode() for part in parts]
    table = pa.Table.from_batches([Batch.from_frame(frame).to_arrow() for frame in frames])
    expected = [message for frame in frames for message in messages_of(frame)]
    found = messages_of(encode_arrow(table, timestamp=0))
    assert [(m.timestamp, m.key, m.value, m.headers) for m in found] == [
        (m.timestamp, m.key, m.value, m.headers) for m in expected
    ]
    assert [message.offset for message in found] == [*range(len(found))]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_any_unit_of_time_will_do(unit: str, zone: str | None) -> None:
    moments = [datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), None, datetime(1969, 12, 31, tzinfo=UTC)]
    column = pa.array(moments, pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, zone or "UTC"))
    column = column.cast(pa.int64()).cast(pa.timestamp(unit, zone))
    found = messages_of(encoded({"value": pa.array([b"a"] * 3), "timestamp": column}))
    expected = [NOW if moment is None else int(moment.timestamp()) * 1_000_000 for moment in moments]
    assert [message.timestamp for message in found] == expected


def test_finer_timestamps_are_cut_and_coarser_ones_may_not_overflow() -> None:
    value = pa.array([b"a"])
    frame = encoded({"value": value, "timestamp": pa.array([1_999], pa.timestamp("ns"))})
    assert messages_of(frame)[0].timestamp == 1
    with pytest.raises(CorruptBatch, match="'timestamp' is out of range"):
        encoded({"value": value, "timestamp": pa.array([2**62], pa.timestamp("s"))})


@pytest.mark.parametrize(
    "type_",
    [
        HEADERS_TYPE,
        pa.large_list(HEADERS_TYPE.value_type),
        pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.binary())])),
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.large_string(), pa.string()),
    ],
    ids=str,
)
def test_any_type_of_headers_will_do(type_: Any) -> None:
    headers: list[Any] = [[("a", b"1"), ("a", None)], None, [], [("b", b"")]] * 4
    if not pa.types.is_map(type_):
        headers = [
            None if pairs is None else [{"key": key, "value": value} for key, value in pairs]
            for pairs in headers
        ]
    column = pa.array(headers, type_)
    for begin in range(5):
        part = column.slice(begin, 9)
        frame = encoded({"value": pa.array([b""] * 9), "headers": part})
        expected = [
            ((("a", b"1"), ("a", None)), (), (), (("b", b""),))[i % 4] for i in range(begin, begin + 9)
        ]
        assert [message.headers for message in messages_of(frame)] == expected
    chunks = pa.chunked_array([column.slice(0, 3), column.slice(3, 4)])
    frame = encode_arrow(pa.table({"value": pa.array([b""] * 7), "headers": chunks}), timestamp=0)
    assert len(messages_of(frame)[4].headers) == 2


def test_an_array_whose_first_offset_is_not_zero_will_do() -> None:
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (2, 4, 4, 7)))
    column = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"..abcde..")])
    frame = encoded({"value": column}, codec=Codec.NONE)
    assert frame == encode_values([b"ab", b"", b"cde"], timestamp=NOW, codec=Codec.NONE)


def test_what_lies_beside_a_slice_is_not_sent_along() -> None:
    column = pa.array([b"secret", b"open", b"secret"], pa.binary())
    assert b"secret" not in raw_body(encoded({"value": column.slice(1, 1)}, codec=Codec.NONE))


def test_offsets_are_passed_over() -> None:
    batch = Batch.from_frame(FULL.encode()).to_arrow()
    assert batch.schema == SCHEMA
    assert messages_of(encode_arrow(batch, timestamp=0)) == FULL.messages()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": pa.array([b"a"])}, "column 'value' is missing"),
        ({"value": pa.array([1])}, "column 'value' is int64, expected binary or string"),
        ({"value": pa.array([[b"a"]])}, "column 'value' is list.*expected binary or string"),
        ({"value": pa.nulls(1)}, "column 'value' is null"),
        ({"value": pa.array([1]).dictionary_encode()}, "column 'value' is dictionary"),
        ({"value": pa.array([b"a"]), "key": pa.array([1.5])}, "column 'key' is double"),
        (
            {"value": pa.array([b"a"]), "timestamp": pa.array([1.5])},
            "column 'timestamp' is double, expected time",
        ),
        ({"value": pa.array([b"a"]), "timestamp": pa.array([1], pa.int32())}, "column 'timestamp' is int32"),
        (
            {"value": pa.array([b"a"]), "timestamp": pa.array([1], pa.date32())},
            "column 'timestamp' is date32",
        ),
        ({"value": pa.array([b"a"]), "offset": pa.array(["1"])}, "column 'offset' is string, expected int64"),
        (
            {"value": pa.array([b"a"]), "headers": pa.array(["x"])},
            "column 'headers' is string, expected list<",
        ),
        ({"value": pa.array([b"a"]), "headers": pa.array([["x"]])}, "column 'headers' is list<"),
        ({"value": pa.array([b"a"]), "headers": pa.array([[{"key": "a"}]])}, "column 'headers' is list<"),
        (
            {"value": pa.array([b"a"]), "colour": pa.array([1])},
            "column 'colour' is unknown, expected offset, ",
        ),
    ],
)
def test_a_wrong_column_is_named_with_what_was_expected(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(CorruptBatch, match=said):
        encoded(columns)


def test_a_column_may_not_be_there_twice() -> None:
    batch = pa.record_batch([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"])
    with pytest.raises(CorruptBatch, match="column 'value' is there 2 times"):
        encode_arrow(batch, timestamp=0)


@pytest.mark.parametrize(
    ("headers", "type_", "said"),
    [
        ([[{"key": None, "value": b"x"}]], HEADERS_TYPE, "null key"),
        ([[None]], HEADERS_TYPE, "null instead of a key and a value"),
        (
            [[{"key": b"\xff", "value": b""}]],
            pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
            "UTF-8",
        ),
    ],
)
def test_header_keys_are_text(headers: list[Any], type_: Any, said: str) -> None:
    with pytest.raises(CorruptBatch, match=said):
        encoded({"value": pa.array([b"a"]), "headers": pa.array(headers, type_)})


def test_no_messages_are_no_batch() -> None:
    for empty in (pa.array([], pa.binary()), pa.array([], pa.string_view())):
        with pytest.raises(CorruptBatch, match="at least one"):
            encoded({"value": empty, "key": empty, "headers": pa.array([], HEADERS_TYPE)})
    with pytest.raises(CorruptBatch, match="at least one"):
        encode_arrow(pa.table({"value": pa.chunked_array([], pa.binary())}), timestamp=0)


def test_what_would_grow_over_the_limit_is_refused_before_it_grows() -> None:
    long = b"a" * (1 << 20)
    indices = pa.array([0] * 1_000_000, pa.int32())
    before = pa.total_allocated_bytes()
    with pytest.raises(BatchTooLarge):
        encoded({"value": pa.DictionaryArray.from_arrays(indices, pa.array([long]))})
    view = pa.array([long], pa.binary_view()).buffers()
    views = pa.Array.from_buffers(
        pa.binary_view(), 1000, [None, pa.py_buffer(view[1].to_pybytes()[:16] * 1000), view[2]]
    )
    with pytest.raises(BatchTooLarge):
        encoded({"value": views})
    # What counts is the slice, not what lies beside it.
    mixed = pa.concat_arrays([views, pa.array([b"short"] * 100, pa.binary_view())])
    assert Batch.from_frame(encoded({"value": mixed.slice(1000)})).values() == [b"short"] * 100
    with pytest.raises(BatchTooLarge):
        encoded({"value": mixed.slice(900)})
    assert pa.total_allocated_bytes() - before < 64 << 20
