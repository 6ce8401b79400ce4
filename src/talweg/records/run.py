"""Frames one after another, at the speed that the Raft path needs.

`read_header` gives everything a header says, checked; that is right for a batch from outside. Between
brokers tens of thousands of small frames a second pass, and each step needs only a few fields of them:
here are the short ways, and they rest on the same layout (`records.header`).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from talweg.errors import CorruptBatch, Incomplete
from talweg.records.header import HEADER_BYTES, MAGIC, VERSION, Bytes, Kind, read_header

_PLACE: Final = struct.Struct("<IHBBII8xQQ")  # header_crc … body_crc, then index and term
_IDENTITY: Final = struct.Struct("<7xB14xh16xQI4xqq")
_STAMPED: Final = struct.Struct("<24xQQQI28xq")
_KINDS: Final = len(Kind)
# Bound once: to look a method up takes a good part of its time.
_place: Final = _PLACE.unpack_from
_identity: Final = _IDENTITY.unpack_from
_stamped: Final = _STAMPED.unpack_from


def checked_run(buffer: Bytes) -> list[tuple[int, int, int, int, bytes]]:
    """(kind, index, term, body_bytes, frame) of each frame in `buffer`, every byte of it checked."""
    view, position, size = memoryview(buffer), 0, len(buffer)
    run: list[tuple[int, int, int, int, bytes]] = []
    while position < size:
        body = position + HEADER_BYTES
        if body > size:
            raise Incomplete(f"{size - position} bytes, a header has {HEADER_BYTES}")
        header_crc, magic, version, kind, body_bytes, body_crc, index, term = _place(view, position)
        if (
            crc32c(view[position + 4 : body]) != header_crc
            or magic != MAGIC
            or version != VERSION
            or kind >= _KINDS
        ):
            read_header(buffer, position)  # says exactly what is wrong
            raise CorruptBatch(f"the header at byte {position} is not sound")
        end = body + (body_bytes + 7 & ~7)
        if end > size:
            raise Incomplete(f"{size - position} bytes, the frame has {end - position}")
        if crc32c(view[body:end]) != body_crc:
            raise CorruptBatch(f"the body of the frame at byte {position} does not match its checksum")
        run.append((kind, index, term, body_bytes, view[position:end].tobytes()))
        position = end
    return run


def peek(frame: Bytes) -> tuple[int, int, int, int, int, int]:
    """(kind, producer_epoch, first_offset, count, producer_id, sequence) of a frame, unchecked.

    For frames that were checked before: what a partition's small state is folded over.
    """
    if len(frame) < HEADER_BYTES:
        raise Incomplete(f"{len(frame)} bytes, a header has {HEADER_BYTES}")
    return _identity(frame)


def peek_stamp(frame: bytes) -> tuple[int, int, int, int, int]:
    """(index, term, first_offset, count, last_timestamp) of a frame, unchecked.

    For frames that were checked before: what a store has to know of what it writes.
    """
    if len(frame) < HEADER_BYTES:
        raise Incomplete(f"{len(frame)} bytes, a header has {HEADER_BYTES}")
    return _stamped(frame)


def peek_all(frames: Iterable[bytes]) -> Iterator[tuple[int, int, int, int, int, int]]:
    """`peek` of each of these frames, which were checked before."""
    return map(_identity, frames)
