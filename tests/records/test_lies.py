"""Frames with the right checksums and the wrong content: what a mistaken or hostile writer may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.samples import (
    FULL,
    MANY,
    NOW,
    ONE,
    Rows,
    compressed,
    messages_of,
    opaque,
    raw_body,
    resealed,
    rows,
    with_number,
)
from talweg.errors import BatchTooLarge, CorruptBatch, TalwegError
from talweg.records import Batch, Codec, Kind
from talweg.records.body import HEADER_VALUE_VALIDITY, HEADERS, KEY, KEY_VALIDITY, TIMESTAMP, VALUE_VALIDITY

ONE_FRAME = ONE.encode()
FULL_FRAME = FULL.encode(codec=Codec.NONE)
PLAIN = Rows([b"%05d" % i for i in range(300)]).encode(codec=Codec.NONE)
FEW = Rows([b"%05d" % i for i in range(10)]).encode(codec=Codec.NONE)
DATED = Rows([b"a"] * 300, timestamps=[*range(300)]).encode(codec=Codec.NONE)


def refused(frame: bytes, said: str | None = None) -> None:
    with pytest.raises(CorruptBatch, match=said):
        Batch.from_frame(frame)


def test_resealing_alone_changes_nothing() -> None:
    for frame in (ONE_FRAME, FULL_FRAME, PLAIN, FEW, DATED, MANY.encode()):
        assert resealed(frame) == frame


def test_only_records_are_a_batch() -> None:
    refused(opaque(b"body")[1], "POSITIONS, expected RECORDS")


def test_a_batch_without_messages_is_none() -> None:
    refused(resealed(ONE_FRAME, bytes(8), count=0), "at least one")


@pytest.mark.parametrize("frame", [ONE_FRAME, FULL_FRAME, PLAIN, FEW, DATED, MANY.encode()])
def test_a_count_that_lies_is_found(frame: bytes) -> None:
    count = Batch.from_frame(frame).header.count
    for lie in (0, 1, count - 1, count + 1, count + 2, count + 8, 2 * count, 2**31 - 1, 2**31, 2**32 - 1):
        if lie != count:
            refused(resealed(frame, count=lie))


@pytest.mark.parametrize("frame", [ONE_FRAME, FULL_FRAME, PLAIN, DATED])
def test_columns_that_lie_are_found(frame: bytes) -> None:
    columns = Batch.from_frame(frame).header.columns
    for lie in range(256):
        if lie != columns:
            refused(resealed(frame, columns=lie))


def test_unknown_columns_are_refused_and_named() -> None:
    refused(resealed(ONE_FRAME, columns=64), "unknown columns in 0x40")
    refused(resealed(ONE_FRAME, columns=KEY_VALIDITY), "validity of keys without keys")
    refused(resealed(ONE_FRAME, columns=HEADER_VALUE_VALIDITY), "validity of header values without headers")


@pytest.mark.parametrize("frame", [ONE_FRAME, FULL_FRAME, PLAIN])
def test_a_raw_body_of_another_length_than_announced_is_found(frame: bytes) -> None:
    raw_bytes = Batch.from_frame(frame).header.raw_bytes
    for lie in (0, 1, raw_bytes - 8, raw_bytes - 1, raw_bytes + 1, raw_bytes + 8):
        refused(resealed(frame, raw_bytes=lie), "announced")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_body_of_another_length_than_announced_is_found(codec: Codec) -> None:
    frame = MANY.encode(codec=codec)
    raw_bytes = Batch.from_frame(frame).header.raw_bytes
    for lie in (0, 1, 8, raw_bytes - 8, raw_bytes - 1, raw_bytes + 1, raw_bytes + 8, 10 * raw_bytes):
        refused(resealed(frame, raw_bytes=lie))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_memory_of_others_is_never_read_as_a_message(codec: Codec) -> None:
    # The offsets ask for more than the compressed bytes give: the rest would be whatever was there before.
    raw = with_number(raw_body(ONE_FRAME), 4, 1000)
    refused(compressed(raw, codec, raw_bytes=8 + 1000), "decompress")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_body_that_is_cut_or_followed_is_found(codec: Codec) -> None:
    frame = MANY.encode(codec=codec)
    header = Batch.from_frame(frame).header
    stored = frame[88 : 88 + header.body_bytes]
    for size in (0, 1, 4, 11, len(stored) // 2, len(stored) - 8, len(stored) - 4, len(stored) - 1):
        refused(resealed(frame, stored[:size]))
    for more in (b"x", bytes(8), stored):
        refused(resealed(frame, stored + more))
    refused(resealed(frame, stored, codec=Codec.LZ4 + Codec.ZSTD - codec), "cannot be decompressed")
    refused(resealed(frame, stored, codec=Codec.NONE), "announced")


def test_a_body_that_is_longer_or_shorter_than_its_parts_is_found() -> None:
    for frame in (ONE_FRAME, FULL_FRAME, PLAIN, DATED):
        body = raw_body(frame)
        for other in (b"", body[:4], body[:8], body[:-8], body[:-1], body + b"\0", body + bytes(8)):
            refused(resealed(frame, other))


@pytest.mark.parametrize("frame", [FEW, PLAIN])
def test_offsets_that_lie_are_found(frame: bytes) -> None:
    body, count = raw_body(frame), Batch.from_frame(frame).header.count
    last = 5 * count
    for place, lie in [
        (0, 1),
        (0, -1),
        (1, -5),
        (1, last + 1),
        (1, 11),
        (2, 4),
        (count // 2, last + 5),
        (count - 1, last + 1),
        (count - 1, 2**31 - 1),
        (count - 1, -(2**31)),
        (count, last - 10),
        (count, last + 8),
        (count, -1),
        (count, 2**31 - 1),
        (count, -(2**31)),
    ]:
        refused(resealed(frame, with_number(body, 4 * place, lie)))


def test_offsets_may_leave_out_nothing_but_may_repeat() -> None:
    # The second message takes the bytes of the third: not what was sent, but a batch all the same.
    frame = resealed(FEW, with_number(raw_body(FEW), 8, 15))
    assert Batch.from_frame(frame).values()[1:3] == [b"0000100002", b""]


def test_offsets_of_keys_and_headers_that_lie_are_found() -> None:
    body = raw_body(FULL_FRAME)
    # Positions of the parts: see the same body by hand in test_golden.
    for begin, count, last in ((56, 4, 3), (120, 4, 3), (144, 3, 17), (192, 3, 2)):
        for place in range(count + 1):
            for lie in (-1, last + 9, 2**31 - 1, -(2**31)):
                refused(resealed(FULL_FRAME, with_number(body, begin + 4 * place, lie)))


@pytest.mark.parametrize("count", [10, 300])
def test_offsets_of_keys_that_fall_are_found(count: int) -> None:
    frame = Rows([b""] * count, keys=[b"12"] * count).encode(codec=Codec.NONE)
    body = raw_body(frame)
    keys = -(-4 * (count + 1) // 8) * 8
    assert body[keys + 4 : keys + 8] == b"\2\0\0\0"
    for lie in (-1, 5, 2 * count + 1):
        refused(resealed(frame, with_number(body, keys + 4, lie)))


def test_header_keys_are_text() -> None:
    body = bytearray(raw_body(FULL_FRAME))
    assert body[160:165] == b"trace"
    body[160] = 0xFF
    refused(resealed(FULL_FRAME, bytes(body)), "UTF8|UTF-8")


@pytest.mark.parametrize("frame", [DATED, Rows([b"a", b"b"], timestamps=[0, 299]).encode(codec=Codec.NONE)])
def test_timestamps_that_lie_are_found(frame: bytes) -> None:
    for lies in (
        {"first_timestamp": -1},
        {"first_timestamp": 1},
        {"last_timestamp": 298},
        {"last_timestamp": 300},
    ):
        refused(resealed(frame, **lies), "timestamps")


def test_two_ends_of_time_need_timestamps() -> None:
    refused(resealed(ONE_FRAME, last_timestamp=NOW + 1), "timestamps")


def test_offsets_end_where_int64_does() -> None:
    assert Batch.from_frame(resealed(ONE_FRAME, first_offset=2**63 - 2)).message(0).offset == 2**63 - 2
    for lie in (2**63 - 1, 2**63, 2**64 - 1):
        refused(resealed(ONE_FRAME, first_offset=lie), "offsets end")


def test_the_limit_is_checked_before_anything_is_decompressed() -> None:
    for codec in Codec:
        frame = MANY.encode(codec=codec)
        raw_bytes = Batch.from_frame(frame).header.raw_bytes
        assert len(Batch.from_frame(frame, raw_bytes_max=raw_bytes)) == 300
        with pytest.raises(BatchTooLarge):
            Batch.from_frame(frame, raw_bytes_max=raw_bytes - 1)
        with pytest.raises(BatchTooLarge):
            Batch.from_frame(resealed(frame, raw_bytes=2**32 - 1))


def test_all_columns_are_told_apart() -> None:
    flags = (VALUE_VALIDITY, KEY, KEY_VALIDITY, TIMESTAMP, HEADERS, HEADER_VALUE_VALIDITY)
    assert Batch.from_frame(FULL_FRAME).header.columns == sum(flags) == 63
    assert Batch.from_frame(FULL_FRAME).header.kind == Kind.RECORDS


@given(rows(), st.data())
def test_a_body_with_anything_written_over_it_is_refused_or_is_a_batch(
    made: Rows, data: st.DataObject
) -> None:
    frame = made.encode(codec=Codec.NONE)
    body = bytearray(raw_body(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
        number = data.draw(st.integers(-3, 20) | st.integers(-(2**31), 2**31 - 1))
        body[:] = with_number(bytes(body), position, number)
    lies = data.draw(st.dictionaries(st.sampled_from(["count", "columns"]), st.integers(0, 63), max_size=1))
    forged = resealed(frame, bytes(body), **lies)
    try:
        batch = Batch.from_frame(forged)
    except TalwegError as error:
        assert type(error) is CorruptBatch
        return
    # Whatever passed is safe, and all ways of reading it agree.
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    found = messages_of(forged)
    assert [message.value for message in found] == batch.values() == arrow.column("value").to_pylist()
    assert [message.key for message in found] == arrow.column("key").to_pylist()
