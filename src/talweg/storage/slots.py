"""A small value on disk in two slots, of which one is always whole.

A write goes to the slot that does not hold the last durable value, so a torn write leaves that one as
it was. The file has its full length from the beginning: writing takes no space that a full disk could
refuse, and one fdatasync makes it durable.

    slot at 0 and at 4096: magic (4) · CRC-32C u32 · version u16 · value bytes u16 · number u64 · value

The checksum covers what follows it. This outer layout never changes, so that a file of a later version
of Talweg is recognised, and not taken for damage.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from talweg.errors import NewerFormat
from talweg.storage.checked_file import FORMAT_VERSION, is_unreadable, read_fully, write_all
from talweg.storage.files import File

_HEAD = struct.Struct("<4sIHHQ")
_COVERED_AT = 8
_SPACING_BYTES = 4096  # apart, so that no sector or page holds both


class Slot(NamedTuple):
    """A value that was read, and where."""

    place: int  # 0 or 1
    number: int  # grows with each value
    value: bytes


def write_first(file: File, magic: bytes, value: bytes) -> None:
    """Fill a new file: both slots hold the value."""
    slot = _encode(magic, 0, value)
    write_all(file, slot + slot, 0)


def write_slot(file: File, magic: bytes, slot: Slot) -> None:
    """Write one slot. Raises OSError; then that slot may hold anything."""
    write_all(file, _encode(magic, slot.number, slot.value), slot.place * _SPACING_BYTES)


def read_newest(file: File, magic: bytes, path: str) -> tuple[Slot | None, bool]:
    """The sound slot with the highest number; and whether the disk cannot read one of the two, which may
    have been a newer one. Raises NewerFormat, OSError."""
    newest, is_unsure = None, False
    for place in (0, 1):
        try:
            data = read_fully(file, _SPACING_BYTES, place * _SPACING_BYTES)
        except OSError as error:
            if not is_unreadable(error):
                raise
            is_unsure = True
            continue
        if len(data) < _HEAD.size:
            continue
        found_magic, checksum, version, value_bytes, number = _HEAD.unpack_from(data)
        end = _HEAD.size + value_bytes
        if found_magic != magic or crc32c(memoryview(data)[_COVERED_AT:end]) != checksum:
            continue
        if version > FORMAT_VERSION:
            raise NewerFormat(f"{path} has format {version}; this version knows up to {FORMAT_VERSION}")
        if newest is None or number > newest.number:
            newest = Slot(place, number, data[_HEAD.size : end])
    return newest, is_unsure


def _encode(magic: bytes, number: int, value: bytes) -> bytes:
    slot = _HEAD.pack(magic, 0, FORMAT_VERSION, len(value), number) + value
    checksum = crc32c(memoryview(slot)[_COVERED_AT:])
    sealed = b"".join((magic, checksum.to_bytes(4, "little"), memoryview(slot)[_COVERED_AT:]))
    assert len(sealed) <= _SPACING_BYTES
    # A whole page: one that the disk cannot read is a good one again once it is written as a whole.
    return sealed.ljust(_SPACING_BYTES, b"\0")
