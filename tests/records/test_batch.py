"""Batches: what goes in comes out, by every way of reading; few messages or many; without copies."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.samples import (
    FULL,
    MANY,
    NOW,
    ONE,
    Rows,
    empties,
    headed,
    header_table,
    messages_of,
    raw_body,
    rows,
)
from talweg.errors import BadRequest, BatchTooLarge, CorruptBatch
from talweg.records import (
    HEADER_BYTES,
    HEADERS_MAX,
    MESSAGES_MAX,
    RAW_BYTES_MAX,
    SCHEMA,
    Batch,
    Codec,
    Message,
    encode_arrow,
    encode_values,
    read_header,
    stamp,
)
from talweg.records.columns import HEADERS_TYPE
from talweg.records.encoding import QUICK_MESSAGES_MAX


def arrow_rows(rows: Rows, first_offset: int = 0) -> list[dict[str, object]]:
    """The messages as `to_pylist` of a record batch gives them, with timestamps as numbers."""
    return [
        {
            "offset": message.offset,
            "timestamp": message.timestamp,
            "key": message.key,
            "value": message.value,
            "headers": [{"key": key, "value": value} for key, value in message.headers],
        }
        for message in rows.messages(first_offset)
    ]


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Timestamps as numbers: some of them no datetime can hold."""
    place = batch.schema.get_field_index("timestamp")
    return batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))


@given(rows(), st.sampled_from(Codec), st.integers(0, 2**62))
def test_what_goes_in_comes_out(made: Rows, codec: Codec, first_offset: int) -> None:
    frame = stamp(made.encode(codec=codec), index=1, term=1, first_offset=first_offset)
    batch = Batch.from_frame(frame)
    assert messages_of(frame) == made.messages(first_offset)
    assert batch.values() == made.values
    arrow = batch.to_arrow()
    assert arrow.schema == SCHEMA
    arrow.validate(full=True)
    assert numbered(arrow).to_pylist() == arrow_rows(made, first_offset)
    timestamps = made.timestamps or [NOW]
    assert batch.header.first_timestamp == min(timestamps)
    assert batch.header.last_timestamp == max(timestamps)


def test_producer_and_sequence_are_in_the_header() -> None:
    header = read_header(
        encode_values([b"x"] * 3, timestamp=5, producer_id=2**40, producer_epoch=3, sequence=9)
    )
    assert (header.producer_id, header.producer_epoch, header.sequence, header.count) == (2**40, 3, 9, 3)
    header = read_header(encode_values([b"x"], timestamp=5))
    assert (header.producer_id, header.producer_epoch, header.sequence) == (-1, -1, -1)


@pytest.mark.parametrize("count", [1, 2, 7, QUICK_MESSAGES_MAX])
def test_the_quick_path_and_arrow_write_the_same_bytes(count: int) -> None:
    values = [b"v" * (i % 11) for i in range(count)]
    keys = [b"k" * (i % 3) for i in range(count)]
    timestamps = [*range(count)]
    quick = encode_values(values, timestamp=NOW, keys=keys, timestamps=timestamps, codec=Codec.NONE)
    # Empty headers are no headers, but they keep the messages off the quick path.
    arrow = encode_values(
        values, timestamp=NOW, keys=keys, timestamps=timestamps, headers=[[]] * count, codec=Codec.NONE
    )
    assert quick == arrow


def test_few_and_many_are_read_alike() -> None:
    for count in (QUICK_MESSAGES_MAX, QUICK_MESSAGES_MAX + 1):
        made = Rows([b"%d" % i for i in range(count)], timestamps=[-i for i in range(count)])
        assert messages_of(made.encode()) == made.messages()


@pytest.mark.parametrize("count", [2, 100])
def test_text_and_other_buffers_are_taken_alike_by_few_and_by_many(count: int) -> None:
    values: list[bytes | None] = ["gr\u00fc\u00df", bytearray(b"array")] * (count // 2)  # type: ignore[list-item]
    assert Batch.from_frame(encode_values(values, timestamp=0)).values() == [
        "gr\u00fc\u00df".encode(),
        b"array",
    ] * (count // 2)


@pytest.mark.parametrize("count", [1, 100])
def test_a_view_of_numbers_is_taken_for_its_bytes(count: int) -> None:
    wide: Any = memoryview(b"12345678").cast("i")
    assert Batch.from_frame(encode_values([wide] * count, timestamp=0)).values() == [b"12345678"] * count


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize(
    ("column", "wrong", "said"),
    [
        ("values", [b"a", 5], "values"),
        ("keys", [b"a", 1.5], "keys"),
        ("timestamps", [1, None], "timestamps"),
        ("timestamps", [1, "now"], "timestamps"),
        ("timestamps", [1, 2**63], "timestamps"),
        ("headers", [[], [(None, b"x")]], "headers"),
        ("headers", [[], [("a", 7)]], "headers"),
        ("headers", [[], [None]], "headers"),
    ],
)
def test_what_is_no_message_is_refused_and_named(
    count: int, column: str, wrong: list[object], said: str
) -> None:
    columns: dict[str, object] = {"values": [b"v"] * count, column: wrong * (count // 2)}
    with pytest.raises(CorruptBatch, match=said):
        encode_values(timestamp=0, **columns)  # type: ignore[arg-type]


def test_columns_of_different_lengths_are_refused() -> None:
    for column in ("keys", "timestamps", "headers"):
        with pytest.raises(CorruptBatch, match=f"1 {column} for 2 values"):
            encode_values([b"a", b"b"], timestamp=0, **{column: [[]]})  # type: ignore[arg-type]


def test_a_batch_holds_at_least_one_message() -> None:
    with pytest.raises(CorruptBatch, match="at least one"):
        encode_values([], timestamp=0)
    with pytest.raises(CorruptBatch, match="at least one"):
        encode_values([], timestamp=0, keys=[], timestamps=[], headers=[])


def test_what_no_reader_would_accept_is_not_written() -> None:
    half = bytes(RAW_BYTES_MAX // 2)
    assert len(encode_values([half[:-16], half], timestamp=0)) < RAW_BYTES_MAX
    for values in ([half, half], [half, half] + [b""] * QUICK_MESSAGES_MAX):
        with pytest.raises(BatchTooLarge):
            encode_values(values, timestamp=0)


def test_a_batch_of_too_many_messages_is_not_made_and_one_that_was_is_read() -> None:
    with pytest.raises(BatchTooLarge, match=r"1048577 messages, at most 1048576 .* in several batches"):
        encode_values([b""] * (MESSAGES_MAX + 1), timestamp=0)
    for count in (MESSAGES_MAX, MESSAGES_MAX + 1):
        frame = empties(count)
        assert len(Batch.from_frame(frame)) == count
        if count > MESSAGES_MAX:
            with pytest.raises(BatchTooLarge, match="in several batches"):
                Batch.from_frame(frame, messages_max=MESSAGES_MAX)
        else:
            Batch.from_frame(frame, messages_max=MESSAGES_MAX)


def test_a_message_of_too_many_headers_is_not_made() -> None:
    pairs = [("", None)] * (HEADERS_MAX + 1)
    for count, fits in ((HEADERS_MAX, True), (HEADERS_MAX + 1, False)):
        given = Rows([b"", b""], headers=[[("k", b"v")], pairs[:count]])
        table = pa.table({"value": given.values, "headers": pa.array(given.headers, HEADERS_TYPE)})
        for make in (given.encode, partial(encode_arrow, table, timestamp=0)):
            if fits:
                assert len(Batch.from_frame(make()).message(1).headers) == count
            else:
                with pytest.raises(BatchTooLarge, match="10001 headers, at most 10000 are accepted"):
                    make()


def test_a_message_of_too_many_headers_is_not_taken_in_and_one_that_was_is_read() -> None:
    Batch.from_frame(headed(HEADERS_MAX), messages_max=MESSAGES_MAX)
    frame = headed(HEADERS_MAX + 1)
    assert len(Batch.from_frame(frame).message(0).headers) == HEADERS_MAX + 1
    with pytest.raises(BatchTooLarge, match="10001 headers, at most 10000 are accepted"):
        Batch.from_frame(frame, messages_max=MESSAGES_MAX)


@given(rows(count_max=70), st.data())
def test_some_messages_of_a_batch_as_arrow(given: Rows, data: st.DataObject) -> None:
    batch = Batch.from_frame(stamp(given.encode(), index=1, term=1, first_offset=7))
    begin = data.draw(st.integers(0, len(batch) - 1))
    end = data.draw(st.integers(begin + 1, len(batch)))
    part = batch.to_arrow(begin=begin, end=end)
    part.validate(full=True)
    assert part == batch.to_arrow().slice(begin, end - begin)
    # What fits is found without making it: it fits, and one more would not.
    bytes_max = data.draw(st.integers(0, 3000))
    fits = batch.fitting(begin, bytes_max)
    assert fits == 0 or batch._arrow_bytes(begin, begin + fits) <= bytes_max
    assert begin + fits == len(batch) or batch._arrow_bytes(begin, begin + fits + 1) > bytes_max
    assert batch._arrow_bytes(begin, end) >= part.nbytes - 64  # bits and the first ends


def test_optional_columns_are_stored_only_when_they_say_something() -> None:
    plain = ONE.encode()
    assert encode_values([b"hello"], timestamp=NOW, headers=[[]]) == plain
    assert encode_values([b"hello"], timestamp=NOW, keys=[None]) == plain
    assert encode_values([b"hello"], timestamp=0, timestamps=[NOW]) == plain
    assert len(plain) == HEADER_BYTES + 16


def test_a_body_is_compressed_when_that_pays() -> None:
    for codec in (Codec.LZ4, Codec.ZSTD):
        assert header_table(MANY.encode(codec=codec))["codec"] == codec
        assert header_table(ONE.encode(codec=codec))["codec"] == Codec.NONE
        noise = bytes((i * i * 7919 >> 5) % 251 for i in range(1, 200)) + bytes(range(256))
        incompressible = encode_values([noise], timestamp=0, codec=codec)
        assert header_table(incompressible)["codec"] == Codec.NONE
        assert header_table(incompressible)["raw_bytes"] == header_table(incompressible)["body_bytes"]


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_arrow_arrays_are_views_of_the_frame(buffer: type) -> None:
    frame = buffer(FULL.encode(codec=Codec.NONE))
    memory = pa.py_buffer(frame)
    before = pa.total_allocated_bytes()
    batch = Batch.from_frame(frame)
    columns = [*batch.to_arrow(["value", "key", "timestamp"]).columns]
    pairs = batch.to_arrow(["headers"]).column("headers").values
    columns += [pairs.field("key"), pairs.field("value")]
    seen = 0
    for column in columns:
        for part in column.buffers():
            if part is not None:
                assert memory.address <= part.address
                assert part.address + part.size <= memory.address + memory.size
                assert part.address % 8 == 0
                seen += 1
    assert seen == 3 + 3 + 1 + 2 + 3
    assert pa.total_allocated_bytes() == before


def test_a_frame_at_an_odd_address_is_read_all_the_same() -> None:
    for made in (FULL, MANY):
        for shift in range(8):
            frame = made.encode(codec=Codec.NONE)
            shifted = memoryview(bytes(shift) + frame)[shift:]
            batch = Batch.from_frame(shifted)
            assert pa.py_buffer(batch.body).address % 8 == 0
            assert messages_of(shifted) == made.messages()


def test_a_reader_picks_columns() -> None:
    batch = Batch.from_frame(FULL.encode())
    assert batch.to_arrow(["value", "offset"]).schema.names == ["value", "offset"]
    assert batch.to_arrow(["value"]).column(0).to_pylist() == FULL.values
    with pytest.raises(BadRequest, match="column 'colour' is unknown"):
        batch.to_arrow(["colour"])


def test_a_message_is_asked_for_by_its_place() -> None:
    batch = Batch.from_frame(MANY.encode())
    assert len(batch) == 300
    assert batch.message(299) == MANY.messages()[299]
    for place in (-1, 300):
        with pytest.raises(IndexError):
            batch.message(place)


def test_values_outlive_the_frame_they_were_read_from() -> None:
    frame = bytearray(MANY.encode(codec=Codec.NONE))
    batch = Batch.from_frame(frame)
    values, first = batch.values(), batch.message(0)
    frame[HEADER_BYTES:] = bytes(len(frame) - HEADER_BYTES)
    assert values == MANY.values
    assert first == MANY.messages()[0]


def test_every_part_of_a_body_begins_at_a_multiple_of_eight() -> None:
    made = Rows([b"12345"] * 3, keys=[b"1"] * 3, timestamps=[1, 2, 3], headers=[[("k", b"v")]] * 3)
    batch = Batch.from_frame(made.encode(codec=Codec.NONE))
    layout = batch.layout
    assert layout.key is not None
    assert layout.header_keys is not None
    assert layout.header_values is not None
    begins = [layout.timestamps, layout.headers_offsets]
    for part in (layout.value, layout.key, layout.header_keys, layout.header_values):
        begins += [part.offsets, part.data]
    assert all(begin is not None and begin % 8 == 0 for begin in begins)
    assert len(raw_body(made.encode(codec=Codec.NONE))) % 8 == 0


def test_threads_may_compress_and_read_at_once() -> None:
    def read_back(codec: Codec) -> list[Message]:
        return messages_of(MANY.encode(codec=codec))

    with ThreadPoolExecutor(8) as pool:
        assert all(found == MANY.messages() for found in pool.map(read_back, [*Codec] * 100))


def test_the_first_message_that_is_not_older() -> None:
    alike = Batch.from_frame(encode_values([b"a", b"b"], timestamp=5))
    assert [alike.first_at(moment) for moment in (4, 5, 6)] == [0, 0, 2]
    apart = Batch.from_frame(encode_values([b"a", b"b", b"c"], timestamps=[5, 9, 7], timestamp=0))
    assert [apart.first_at(moment) for moment in (0, 6, 8, 9, 10)] == [0, 1, 1, 1, 3]
