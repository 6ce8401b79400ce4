"""Frames: read whole, in pieces, one after another; stamped; and refused when a bit is wrong."""

import itertools

import pytest

from records.samples import FULL, MANY, ONE, header_table, opaque, resealed
from records.test_golden import GOLDEN, golden
from talweg.errors import BatchTooLarge, CorruptBatch, Incomplete
from talweg.records import (
    HEADER_BYTES,
    Batch,
    Codec,
    Kind,
    check_body,
    encode_frame,
    encode_values,
    frames,
    identified,
    read_header,
    stamp,
)

LIMIT = 1_000_000


@pytest.mark.parametrize("size", [*range(18), 1000])
def test_a_frame_is_a_multiple_of_eight_long_and_keeps_its_body(size: int) -> None:
    body = bytes(range(1, 18))[:size].ljust(size, b"x")
    header, frame = opaque(body)
    assert len(frame) == header.frame_bytes == HEADER_BYTES + -(-size // 8) * 8
    assert header.body_bytes == header.raw_bytes == size
    assert frame[HEADER_BYTES : HEADER_BYTES + size] == body
    check_body(header, frame)


def test_a_frame_is_read_from_the_middle_of_a_buffer() -> None:
    header, frame = opaque(b"some body")
    for buffer in (bytes, bytearray, memoryview):
        around = buffer(b"abc" + frame + b"trailing")
        assert read_header(around, 3) == header
        check_body(header, around, 3)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_prefix_is_incomplete(name: str) -> None:
    frame = golden(name)
    for size in range(1, len(frame)):
        with pytest.raises(Incomplete):
            list(frames(frame[:size], bytes_max=LIMIT))
        with pytest.raises(Incomplete):
            Batch.from_frame(frame[:size])
        if size < HEADER_BYTES:
            with pytest.raises(Incomplete):
                read_header(frame[:size])
        else:
            with pytest.raises(Incomplete):
                check_body(read_header(frame[:size]), frame[:size])


def test_a_position_past_the_end_is_incomplete() -> None:
    _, frame = opaque()
    for position in (1, len(frame), len(frame) + 100):
        with pytest.raises(Incomplete):
            read_header(frame, position)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in ("noop", "opaque")])
def test_trailing_bytes_are_no_part_of_a_batch(name: str) -> None:
    for trailing in (b"\0", bytes(8), golden(name)):
        with pytest.raises(CorruptBatch, match="follow the frame"):
            Batch.from_frame(golden(name) + trailing)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_flipped_bit_is_found(name: str) -> None:
    frame = bytearray(golden(name))
    for position in range(len(frame)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            frame[position] ^= flip
            with pytest.raises(CorruptBatch) as found:
                list(frames(frame, bytes_max=LIMIT))
            # Never "wait for more": a reader would wait for ever.
            assert found.type is CorruptBatch
            frame[position] ^= flip
    assert bytes(frame) == golden(name)


@pytest.mark.parametrize("name", ["one_value", "all_columns", "zstd"])
def test_every_flipped_byte_is_found_by_whoever_reads_the_batch(name: str) -> None:
    frame = bytearray(golden(name))
    for position in range(len(frame)):
        frame[position] ^= 0xFF
        with pytest.raises(CorruptBatch):
            Batch.from_frame(frame)
        with pytest.raises(CorruptBatch):
            check_body(read_header(frame), frame)
        frame[position] ^= 0xFF


def test_frames_are_taken_apart() -> None:
    made = [opaque(b"x" * size)[1] for size in range(20)] + [ONE.encode(), FULL.encode(), MANY.encode()]
    taken = list(frames(b"".join(made), bytes_max=LIMIT))
    assert [bytes(frame) for _, frame in taken] == made
    assert [header for header, _ in taken] == [read_header(frame) for frame in made]
    assert list(frames(b"", bytes_max=LIMIT)) == []


def test_frames_before_the_damage_are_good() -> None:
    _, frame = opaque(b"body")
    for damage, error in ((b"no frame" * 11, CorruptBatch), (frame[:-1], Incomplete)):
        reader = frames(frame + damage, bytes_max=LIMIT)
        assert next(reader)[1] == frame
        with pytest.raises(error) as found:
            next(reader)
        assert found.type is error


def test_a_frame_over_the_limit_is_refused_before_the_rest_arrives() -> None:
    _, frame = opaque(bytes(1000))
    assert len(list(frames(frame, bytes_max=len(frame)))) == 1
    with pytest.raises(BatchTooLarge):
        list(frames(frame[:HEADER_BYTES], bytes_max=len(frame) - 1))


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        ({"magic": 0x7755}, "no frame begins"),
        ({"version": 0}, "format version 0"),
        ({"version": 2}, "format version 2, expected 1"),
        ({"kind": 7}, "unknown kind 7"),
        ({"codec": 3}, "unknown codec 3"),
        ({"reserved": 1}, "reserved"),
        ({"first_timestamp": 2, "last_timestamp": 1}, "first timestamp after its last"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(lies: dict[str, int], said: str) -> None:
    with pytest.raises(CorruptBatch, match=said):
        read_header(resealed(opaque(b"body")[1], **lies))


def test_the_stamp_touches_nothing_but_the_place_in_the_log() -> None:
    frames = FULL.encode(producer_id=8, sequence=3), encode_frame(Kind.RECORDS, bytes(40_000))
    for frame, buffer in itertools.product(frames, (bytes, bytearray, memoryview)):
        stamped = stamp(buffer(frame), index=2**64 - 1, term=2, first_offset=3)
        assert type(stamped) is bytes
        place = {"index": 2**64 - 1, "term": 2, "first_offset": 3}
        assert header_table(stamped) == header_table(frame) | place
        assert stamped[HEADER_BYTES:] == frame[HEADER_BYTES:]
        check_body(read_header(stamped), stamped)


def test_a_batch_may_be_stamped_again() -> None:
    frame = ONE.encode()
    once = stamp(frame, index=1, term=1, first_offset=5)
    assert stamp(once, index=2, term=3, first_offset=9) == stamp(frame, index=2, term=3, first_offset=9)


def test_a_stamp_does_not_make_a_damaged_header_look_right() -> None:
    frame = bytearray(ONE.encode())
    for position in range(HEADER_BYTES):
        frame[position] ^= 1
        with pytest.raises(CorruptBatch):
            stamp(frame, index=1, term=1, first_offset=0)
        frame[position] ^= 1
    with pytest.raises(Incomplete):
        stamp(bytes(frame[: HEADER_BYTES - 1]), index=1, term=1, first_offset=0)


def test_a_frame_without_messages_still_says_which_offset_comes_next() -> None:
    header = read_header(encode_frame(Kind.NOOP, first_offset=12))
    assert header.next_offset == 12
    assert read_header(stamp(MANY.encode(), index=1, term=1, first_offset=12)).next_offset == 312


def test_a_codec_and_a_raw_length_go_together() -> None:
    with pytest.raises(AssertionError):
        encode_frame(Kind.STAGE, b"body", codec=Codec.LZ4)
    with pytest.raises(AssertionError):
        encode_frame(Kind.STAGE, b"body", raw_bytes=4)


def test_a_frame_that_another_sends_differs_in_nothing_else() -> None:
    values = [b"value"] * 100
    frame = encode_values(values, timestamp=5)
    header = identified(frame, producer_id=7, producer_epoch=3, sequence=2**40)
    assert header + frame[HEADER_BYTES:] == encode_values(
        values, timestamp=5, producer_id=7, producer_epoch=3, sequence=2**40
    )
