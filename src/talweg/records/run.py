"""Frames one after another, at the speed that the Raft path needs.

`read_header` gives everything a header says, checked; that is right for a batch from outside. Between
brokers tens of thousands of small frames a second pass, and each step needs only a few fields of them:
here are the short ways, and they rest on the same layout (`records.header`).
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias

from crc32c import crc32c

from talweg.errors import CorruptBatch, Incomplete
from talweg.records.header import HEADER_BYTES, MAGIC, VERSION, Bytes, Kind, read_header

_LENGTHS: Final = struct.Struct("<IHBBII")  # header_crc … body_crc
_NOTE: Final = struct.Struct("<22xhQQQI4xqq8xq")
_IDENTITY: Final = struct.Struct("<7xB14xh16xQI4xqq")
_STAMPED: Final = struct.Struct("<24xQQQI28xq")
_KINDS: Final = len(Kind)
# Bound once: to look a method up takes a good part of its time.
_lengths: Final = _LENGTHS.unpack_from
_note: Final = _NOTE.unpack_from
_identity: Final = _IDENTITY.unpack_from
_stamped: Final = _STAMPED.unpack_from


Note: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""What is noted of a frame that lies among others, so that nobody who is given them has to look again:
producer_epoch, index, term, first_offset, count, producer_id, sequence, last_timestamp."""


def checked_run(buffer: Bytes) -> tuple[bytearray, list[int], list[Note]]:
    """The frames in `buffer`, every byte of them checked: the kind of each, where it ends, and its note."""
    view, position, size = memoryview(buffer), 0, len(buffer)
    kinds, ends, notes = bytearray(), list[int](), list[Note]()
    while position < size:
        body = position + HEADER_BYTES
        if body > size:
            raise Incomplete(f"{size - position} bytes, a header has {HEADER_BYTES}")
        header_crc, magic, version, kind, body_bytes, body_crc = _lengths(view, position)
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
        kinds.append(kind)
        ends.append(end)
        notes.append(_note(view, position))
        position = end
    return kinds, ends, notes


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


def notes_of(frames: Iterable[bytes]) -> list[Note]:
    """The note of each of these frames, which were checked before."""
    return list(map(_note, frames))
