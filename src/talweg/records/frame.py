"""Frames: sealing a body behind a header, the leader's stamp, and taking frames apart again.

The layout is in records.header. Nothing here knows what is inside a body.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from crc32c import crc32c

from talweg.errors import BatchTooLarge, CorruptBatch, Incomplete
from talweg.records.header import (
    AROUND_STAMP,
    CRC,
    EPOCH,
    EPOCH_AT,
    GUARDED,
    HEADER_BYTES,
    MAGIC,
    PRODUCER,
    PRODUCER_AT,
    VERSION,
    WITH_STAMP,
    Bytes,
    Codec,
    Header,
    Kind,
    read_header,
)

PADDING: Final = tuple(bytes(size) for size in range(8))  # PADDING[-n & 7] brings n bytes to a multiple of 8
# Bound once: to look a method up takes a good part of its time, and a leader stamps every frame.
_around_stamp: Final = AROUND_STAMP.unpack_from
_with_stamp: Final = WITH_STAMP.pack
_crc_bytes: Final = CRC.pack
_GUARDED: Final = slice(CRC.size, HEADER_BYTES)
_BODY: Final = slice(HEADER_BYTES, None)
_LARGE_FRAME_BYTES: Final = 16 << 10  # below this a second copy of the body costs less than a view of it


def encode_frame(
    kind: Kind,
    *parts: Bytes,
    index: int = 0,
    term: int = 0,
    first_offset: int = 0,
    count: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    first_timestamp: int = 0,
    last_timestamp: int = 0,
    codec: Codec = Codec.NONE,
    columns: int = 0,
    raw_bytes: int | None = None,
) -> bytes:
    """Seal a body, whole or in parts. With a codec, it is compressed already and `raw_bytes` long without."""
    return seal(
        kind,
        parts,
        sum(map(len, parts)),
        index=index,
        term=term,
        first_offset=first_offset,
        count=count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
        first_timestamp=first_timestamp,
        last_timestamp=last_timestamp,
        codec=codec,
        columns=columns,
        raw_bytes=raw_bytes,
    )


def seal(
    kind: Kind,
    parts: Sequence[Any],
    body_bytes: int,
    *,
    index: int = 0,
    term: int = 0,
    first_offset: int = 0,
    count: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    first_timestamp: int,
    last_timestamp: int,
    codec: Codec,
    columns: int,
    raw_bytes: int | None = None,
) -> bytes:
    """Like `encode_frame`, of a body that is still in parts (any buffers): they are copied once."""
    assert (raw_bytes is None) == (codec == Codec.NONE), "raw_bytes goes with a codec, and only with one"
    assert first_timestamp <= last_timestamp
    padding = PADDING[-body_bytes & 7]
    body_crc = 0
    for part in parts:
        body_crc = crc32c(part, body_crc)
    guarded = GUARDED.pack(
        MAGIC,
        VERSION,
        kind,
        body_bytes,
        crc32c(padding, body_crc) if padding else body_crc,
        body_bytes if raw_bytes is None else raw_bytes,
        codec,
        columns,
        producer_epoch,
        index,
        term,
        first_offset,
        count,
        0,
        producer_id,
        sequence,
        first_timestamp,
        last_timestamp,
    )
    return b"".join((CRC.pack(crc32c(guarded)), guarded, *parts, padding))


def stamp(frame: Bytes, index: int, term: int, first_offset: int) -> bytes:
    """The leader's stamp: a copy of the frame with its place in the log. The body is not looked at."""
    if len(frame) < HEADER_BYTES:
        raise Incomplete(f"{len(frame)} bytes, a header has {HEADER_BYTES}")
    header_crc, before, after = _around_stamp(frame)
    # A new checksum over a damaged header would make the damage look right for ever.
    if crc32c(frame[_GUARDED]) != header_crc:
        raise CorruptBatch("the header does not match its checksum")
    guarded = _with_stamp(before, index, term, first_offset, after)
    header = _crc_bytes(crc32c(guarded)) + guarded
    if len(frame) < _LARGE_FRAME_BYTES:
        return header + frame[_BODY]
    return b"".join((header, memoryview(frame)[_BODY]))


def identified(frame: Bytes, *, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    """The header of a frame, saying who sends it; the rest of the frame is the same.

    A producer encodes batches before it knows their turn, and now and then has to send them as another.
    """
    header = bytearray(frame[:HEADER_BYTES])
    EPOCH.pack_into(header, EPOCH_AT, producer_epoch)
    PRODUCER.pack_into(header, PRODUCER_AT, producer_id, sequence)
    CRC.pack_into(header, 0, crc32c(memoryview(header)[CRC.size :]))
    return bytes(header)


def check_body(header: Header, buffer: Bytes, position: int = 0) -> None:
    """Check the body of the frame that begins at `position` and has this header. More may follow it."""
    end = position + header.frame_bytes
    if len(buffer) < end:
        raise Incomplete(f"{len(buffer) - position} bytes, the frame has {header.frame_bytes}")
    if crc32c(memoryview(buffer)[position + HEADER_BYTES : end]) != header.body_crc:
        raise CorruptBatch(f"the body of the frame at byte {position} does not match its checksum")


def frames(buffer: Bytes, *, bytes_max: int) -> Iterator[tuple[Header, memoryview]]:
    """Take frames that follow one another apart, each checked, each a view and none over `bytes_max`.

    What is wrong is raised when it is reached: the frames before it are good.
    """
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.frame_bytes
        # Before asking for the rest: it is no use to wait for four gigabytes that will be refused.
        if end - position > bytes_max:
            raise BatchTooLarge(f"a frame of {end - position} bytes, at most {bytes_max} are accepted")
        check_body(header, view, position)
        yield header, view[position:end]
        position = end
