"""Arrow IPC streams: what is sent comes out again, and what is no such stream is refused."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from records.samples import FULL, MANY, NOW, ONE, Rows, messages_of, rows
from talweg.errors import BadRequest, BatchTooLarge, CorruptBatch, TalwegError
from talweg.records import (
    SCHEMA,
    Batch,
    Codec,
    encode_values,
    frames_to_ipc,
    ipc_to_batches,
    ipc_to_frame,
    stamp,
)
from talweg.records.flatbuffer import Table


def stream_of(*batches: Any, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def at(frame: bytes, first_offset: int) -> bytes:
    return stamp(frame, index=1, term=1, first_offset=first_offset)


@given(st.lists(rows(count_max=70), min_size=1, max_size=3))
def test_what_is_sent_comes_out(parts: list[Rows]) -> None:
    frames = [part.encode() for part in parts]
    stream = frames_to_ipc(frames)
    reader = pa.ipc.open_stream(stream)
    assert reader.schema == SCHEMA
    assert [*reader] == [Batch.from_frame(frame).to_arrow() for frame in frames]
    together = ipc_to_frame(stream, timestamp=NOW)
    expected = [message for frame in frames for message in messages_of(frame)]
    assert [(m.timestamp, m.key, m.value, m.headers) for m in messages_of(together)] == [
        (m.timestamp, m.key, m.value, m.headers) for m in expected
    ]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compressed_streams_are_read(compression: str | None) -> None:
    batches = [Batch.from_frame(made.encode()).to_arrow() for made in (FULL, MANY)]
    assert ipc_to_batches(stream_of(*batches, compression=compression)) == batches


def test_producer_and_codec_are_passed_on() -> None:
    stream = frames_to_ipc([MANY.encode()])
    frame = ipc_to_frame(stream, timestamp=0, codec=Codec.ZSTD, producer_id=4, producer_epoch=5, sequence=6)
    assert frame == MANY.encode(codec=Codec.ZSTD, producer_id=4, producer_epoch=5, sequence=6)


def test_a_reader_picks_columns_and_where_to_begin() -> None:
    frames = [at(ONE.encode(), 100), at(FULL.encode(), 101), at(MANY.encode(), 105)]
    for begin, offsets in (
        (0, range(100, 405)),
        (103, range(103, 405)),
        (105, range(105, 405)),
        (404, [404]),
    ):
        table = pa.ipc.open_stream(frames_to_ipc(frames, columns=["offset"], from_offset=begin)).read_all()
        assert table.schema.names == ["offset"]
        assert table["offset"].to_pylist() == [*offsets]
    assert ipc_to_batches(frames_to_ipc(frames, from_offset=405)) == []
    with pytest.raises(BadRequest, match="column 'colour' is unknown"):
        frames_to_ipc(frames, columns=["colour"])


@given(st.lists(rows(count_max=70), min_size=1, max_size=3), st.integers(0, 6000))
@example([Rows([None] * 4)], 1152)  # what is not there yet when it begins, the schema, counts too
@example(
    [Rows([b""] * 3, headers=[[], [], [("k", b"v")] * 200])], 1700
)  # nobody's headers are not sent along
def test_a_stream_that_must_stay_small_ends_early_and_the_next_one_goes_on(
    parts: list[Rows], bytes_max: int
) -> None:
    frames, first = [], 0
    for part in parts:
        frames.append(at(part.encode(), first))
        first += len(part.values)
    found: list[Any] = []
    while sum(batch.num_rows for batch in found) < first:
        stream = frames_to_ipc(frames, from_offset=sum(b.num_rows for b in found), bytes_max=bytes_max)
        batches = [*pa.ipc.open_stream(stream)]
        count = sum(batch.num_rows for batch in batches)
        assert count == 1 or (count > 1 and len(stream) <= bytes_max)
        found += batches
    whole = pa.ipc.open_stream(frames_to_ipc(frames)).read_all()
    assert pa.Table.from_batches(found).combine_chunks() == whole.combine_chunks()


def test_many_small_frames_count_with_what_each_takes_in_a_stream() -> None:
    frames = [at(ONE.encode(), offset) for offset in range(1000)]
    stream = frames_to_ipc(frames, bytes_max=100_000)
    assert len(stream) <= 100_000
    assert pa.ipc.open_stream(stream).read_all()["offset"].to_pylist()[:50] == [*range(50)]


def test_no_frames_are_a_stream_without_batches() -> None:
    assert pa.ipc.open_stream(frames_to_ipc([])).read_all().num_rows == 0
    assert ipc_to_batches(frames_to_ipc([])) == []
    with pytest.raises(CorruptBatch, match="at least one"):
        ipc_to_frame(frames_to_ipc([]), timestamp=0)


def test_frames_are_checked_before_they_are_sent() -> None:
    with pytest.raises(CorruptBatch):
        frames_to_ipc([b"no frame" * 20])
    with pytest.raises(BatchTooLarge):
        frames_to_ipc([MANY.encode()], raw_bytes_max=1000)


def test_the_limit_holds_for_the_stream_and_for_what_it_becomes() -> None:
    batch = Batch.from_frame(encode_values([b"a" * 1000] * 100, timestamp=0)).to_arrow(["value"])
    plain, small = stream_of(batch), stream_of(batch, compression="zstd")
    assert ipc_to_batches(plain, bytes_max=len(plain)) == [batch]
    with pytest.raises(BatchTooLarge, match="stream of"):
        ipc_to_batches(plain, bytes_max=len(plain) - 1)
    assert len(small) < 2000
    assert ipc_to_batches(small, bytes_max=101_000) == [batch]
    for limit in (2000, 100_000):
        with pytest.raises(BatchTooLarge, match="decompresses to more"):
            ipc_to_batches(small, bytes_max=limit)
    # Two halves count together.
    with pytest.raises(BatchTooLarge, match="decompresses to more"):
        ipc_to_batches(stream_of(batch, batch, compression="lz4"), bytes_max=150_000)


def record_batch_message(stream: bytes) -> tuple[memoryview, list[tuple[int, ...]]]:
    """The body of a stream's first record batch, and where its buffers lie in it (begin, bytes)."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    reader.read_next_message()
    message = reader.read_next_message()
    batch = Table.root(memoryview(message.metadata).cast("B")).table(2)
    assert batch is not None
    return memoryview(message.body).cast("B"), list(batch.structs(2, "<qq"))


def test_a_raw_buffer_in_a_compressed_stream_is_read_and_counted() -> None:
    noise = bytes((i * i * 7919 >> 5) % 251 for i in range(1000))
    batch = pa.record_batch({"value": pa.array([noise]), "key": pa.array([bytes(100_000)])})
    stream = stream_of(batch, compression="lz4")
    body, places = record_batch_message(stream)
    begin, stored_bytes = places[2]
    place = stream.index(bytes(body[begin : begin + stored_bytes]))
    raw = (struct.pack("<q", -1) + noise).ljust(stored_bytes, b"\0")
    forged = stream[:place] + raw + stream[place + stored_bytes :]
    forged = forged.replace(struct.pack("<qq", begin, stored_bytes), struct.pack("<qq", begin, 1008))
    assert ipc_to_batches(forged) == [batch]
    with pytest.raises(BatchTooLarge):
        ipc_to_batches(forged, bytes_max=100_500)


def test_a_compressed_buffer_too_short_for_its_length_is_refused() -> None:
    stream = stream_of(pa.record_batch({"value": pa.array([b"abc"])}), compression="lz4")
    body, places = record_batch_message(stream)
    for lie in ((len(body) - 4, 4), (0, 7)):
        forged = stream.replace(struct.pack("<qq", *places[2]), struct.pack("<qq", *lie))
        assert forged != stream
        with pytest.raises(CorruptBatch, match="without its length"):
            ipc_to_batches(forged)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_stream_without_its_end_marker_is_read_but_a_cut_one_is_refused(compression: str | None) -> None:
    stream = stream_of(Batch.from_frame(FULL.encode()).to_arrow(), compression=compression)
    end = len(stream) - 8
    assert len(ipc_to_batches(stream[:end])) == 1
    whole = (end, end + 4)  # nothing after the last message, or half of the marker
    schema_end = stream.index(b"\xff\xff\xff\xff", 8)
    for size in range(len(stream)):
        if size in whole:
            continue
        try:
            found = ipc_to_batches(stream[:size])
        except CorruptBatch:
            continue
        # Cut just where a message ends, it is a stream: a shorter one.
        assert size in (schema_end, schema_end + 4)
        assert found == []


def test_bytes_after_the_stream_are_refused() -> None:
    stream = frames_to_ipc([ONE.encode()])
    for trailing in (b"\0", b"garbage!", stream):
        with pytest.raises(CorruptBatch, match="follow the stream"):
            ipc_to_batches(stream + trailing)


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"ARROW1\0\0" * 9, b'{"value":"a"}\n', b"\xff" * 100])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        ipc_to_batches(data)


def test_a_stream_begins_with_its_schema() -> None:
    stream = frames_to_ipc([ONE.encode()])
    without = stream[stream.index(b"\xff\xff\xff\xff", 8) :]
    with pytest.raises(CorruptBatch, match="record batch, expected schema"):
        ipc_to_batches(without)
    twice = stream[: stream.index(b"\xff\xff\xff\xff", 8)] + stream
    with pytest.raises(CorruptBatch, match="schema after its schema"):
        ipc_to_batches(twice)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1]), "column 'value' is int64, expected binary or string"),
        (pa.nulls(10), "column 'value' is null"),
        (pa.array([b"a"]).dictionary_encode(), "column 'value' is dictionary.*, expected binary or string"),
        (pa.RunEndEncodedArray.from_arrays([3], pa.array([b"a"])), "column 'value' is run_end"),
        (pa.ListViewArray.from_arrays([0], [1], pa.array([b"a"])), "column 'value' is list_view"),
    ],
    ids=["int64", "null", "dictionary", "run_end_encoded", "list_view"],
)
def test_columns_that_cannot_be_stored_are_refused_and_named(column: Any, said: str) -> None:
    with pytest.raises(CorruptBatch, match=said):
        ipc_to_batches(stream_of(pa.record_batch([column], names=["value"])))


def test_an_unknown_column_is_refused_and_named() -> None:
    with pytest.raises(CorruptBatch, match="column 'colour' is unknown"):
        ipc_to_batches(stream_of(pa.record_batch({"value": pa.array([b"a"]), "colour": pa.array([1])})))


def test_offsets_that_lie_are_refused_though_arrow_reads_them() -> None:
    stream = stream_of(pa.record_batch({"value": pa.array([b"abc", b"def"], pa.binary())}))
    honest = b"".join(number.to_bytes(4, "little") for number in (0, 3, 6))
    for lie in ((0, 7, 6), (0, 3, 700), (3, 0, 6), (0, 2**32 - 1, 6)):
        forged = stream.replace(honest, b"".join(number.to_bytes(4, "little") for number in lie))
        assert pa.ipc.open_stream(forged).read_all().num_rows == 2
        with pytest.raises(CorruptBatch):
            ipc_to_batches(forged)


def test_text_that_is_not_utf_8_is_refused() -> None:
    stream = stream_of(pa.record_batch({"value": pa.array(["abcdef"])}))
    with pytest.raises(CorruptBatch):
        ipc_to_batches(stream.replace(b"abcdef", b"abc\xffef"))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_stream_with_any_byte_flipped_is_refused_or_is_a_stream(compression: str | None) -> None:
    columns = {
        "value": pa.array([b"abc", None, b"x" * 200]),
        "key": pa.array(["a", "b" * 30, None], pa.string_view()),
    }
    stream = bytearray(stream_of(pa.record_batch(columns), compression=compression))
    refused = 0
    for position in range(len(stream)):
        for flip in (0xFF, 0x01, 0x80):
            stream[position] ^= flip
            try:
                for batch in ipc_to_batches(bytes(stream), bytes_max=100_000):
                    batch.validate(full=True)
                    batch.to_pylist()
                    assert batch.get_total_buffer_size() < 200_000
            except TalwegError:
                refused += 1
            stream[position] ^= flip
    assert refused > len(stream)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CorruptBatch):
        ipc_to_batches(noise)
    with pytest.raises(CorruptBatch):
        ipc_to_batches(b"\xff\xff\xff\xff" + len(noise).to_bytes(4, "little") + noise + b"\0")
