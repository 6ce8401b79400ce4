"""The body of a RECORDS frame: Arrow buffers, one after another, and where each of them lies.

Every part begins at a multiple of 8 and is padded with zeros to one. A body begins at a multiple of 8 in
its frame, so an uncompressed one becomes Arrow arrays where it lies. The parts, in this order:

    part                     type              present
    value validity           bitmap            with VALUE_VALIDITY (else no value is null)
    value offsets            i32[count + 1]    always
    value data               bytes             always
    key validity             bitmap            with KEY_VALIDITY
    key offsets              i32[count + 1]    with KEY (else every key is null)
    key data                 bytes             with KEY
    timestamps               i64[count]        with TIMESTAMP (else all are the header's first_timestamp)
    headers offsets          i32[count + 1]    with HEADERS (else no message has any)
    header key offsets       i32[headers + 1]  with HEADERS
    header key data          UTF-8             with HEADERS
    header value validity    bitmap            with HEADER_VALUE_VALIDITY
    header value offsets     i32[headers + 1]  with HEADERS
    header value data        bytes             with HEADERS

Offsets begin with 0 and never fall: element i is data[offsets[i]:offsets[i + 1]]. The last offset is the
length of the data, and thereby says where the next part begins; `headers` is the last of the headers
offsets. A bitmap has one bit for each element, the least significant first, 1 for what is not null.
The parts fill the body: nothing is left over.
"""

import struct
import sys
from typing import Final

import msgspec

from talweg.errors import CorruptBatch
from talweg.records.header import Header

assert sys.byteorder == "little", "bodies are read where they lie, and they are little-endian"

VALUE_VALIDITY: Final = 1
KEY: Final = 2
KEY_VALIDITY: Final = 4  # only with KEY
TIMESTAMP: Final = 8
HEADERS: Final = 16
HEADER_VALUE_VALIDITY: Final = 32  # only with HEADERS
_ALL: Final = VALUE_VALIDITY | KEY | KEY_VALIDITY | TIMESTAMP | HEADERS | HEADER_VALUE_VALIDITY

_OFFSET: Final = struct.Struct("<i")
_TWO_OFFSETS: Final = struct.Struct("<ii")
_TIMESTAMP: Final = struct.Struct("<q")


class Binaries(msgspec.Struct, frozen=True, gc=False):
    """Where the parts of `count` strings of bytes begin in a body."""

    count: int
    validity: int | None  # None: none of them is null
    offsets: int
    data: int
    data_bytes: int  # == the last offset

    def bounds(self, body: memoryview, index: int) -> tuple[int, int]:
        """Where element `index` begins and ends in the body (end open), as its offsets say."""
        begin, end = _TWO_OFFSETS.unpack_from(body, self.offsets + 4 * index)
        return self.data + begin, self.data + end

    def bytes_between(self, body: memoryview, begin: int, end: int) -> int:
        """How long the elements from `begin` to `end` (not included) are together; one at least."""
        return self.bounds(body, end - 1)[1] - self.bounds(body, begin)[0]

    def element(self, body: memoryview, index: int) -> bytes | None:
        """Element `index`, or None if it is null. The offsets have been checked."""
        if self.validity is not None and not body[self.validity + (index >> 3)] >> (index & 7) & 1:
            return None
        begin, end = self.bounds(body, index)
        return bytes(body[begin:end])

    def offsets_rise(self, body: memoryview) -> bool:
        """Whether no offset is below the one before it. For few elements: this is Python."""
        offsets = body[self.offsets : self.offsets + 4 * (self.count + 1)].cast("i").tolist()
        return offsets == sorted(offsets)


class Layout(msgspec.Struct, frozen=True, gc=False):
    """Where each part of a body lies. All of them are inside it; offsets but the last are unchecked."""

    value: Binaries
    key: Binaries | None
    timestamps: int | None
    headers_offsets: int | None
    header_keys: Binaries | None  # present exactly when headers_offsets is
    header_values: Binaries | None  # likewise, and of the same count


def timestamp_at(body: memoryview, timestamps: int, index: int) -> int:
    """Timestamp `index` of the column that begins at `timestamps`."""
    made: int = _TIMESTAMP.unpack_from(body, timestamps + 8 * index)[0]
    return made


def headers_bounds(body: memoryview, headers_offsets: int, index: int) -> tuple[int, int]:
    """The first header of message `index`, and the first that is no longer its own."""
    begin, end = _TWO_OFFSETS.unpack_from(body, headers_offsets + 4 * index)
    return begin, end


def locate(header: Header, body: memoryview) -> Layout:
    """Find the parts of a decompressed body. Raises CorruptBatch if they do not fill it exactly."""
    columns = header.columns
    if columns & ~_ALL:
        raise CorruptBatch(f"unknown columns in {columns:#04x}")
    if columns & (KEY | KEY_VALIDITY) == KEY_VALIDITY:
        raise CorruptBatch("validity of keys without keys")
    if columns & (HEADERS | HEADER_VALUE_VALIDITY) == HEADER_VALUE_VALIDITY:
        raise CorruptBatch("validity of header values without headers")
    cursor = _Cursor(body)
    value = cursor.binaries("value", header.count, columns & VALUE_VALIDITY)
    key = cursor.binaries("key", header.count, columns & KEY_VALIDITY) if columns & KEY else None
    timestamps = cursor.take("timestamp", 8 * header.count) if columns & TIMESTAMP else None
    headers_offsets = header_keys = header_values = None
    if columns & HEADERS:
        headers_offsets, headers = cursor.offsets("headers", header.count)
        header_keys = cursor.binaries("header key", headers, 0)
        header_values = cursor.binaries("header value", headers, columns & HEADER_VALUE_VALIDITY)
    if cursor.position != len(body):
        raise CorruptBatch(f"the body has {len(body)} bytes, its parts {cursor.position}")
    return Layout(value, key, timestamps, headers_offsets, header_keys, header_values)


class _Cursor:
    """Walks over a body, part by part, and never past its end."""

    __slots__ = ("body", "position")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.position = 0

    def take(self, name: str, part_bytes: int) -> int:
        begin = self.position
        self.position = begin + (part_bytes + 7 & ~7)
        if self.position > len(self.body):
            raise CorruptBatch(f"the {name} part ends at byte {self.position} of {len(self.body)}")
        return begin

    def offsets(self, name: str, count: int) -> tuple[int, int]:
        begin = self.take(name, 4 * (count + 1))
        first = _OFFSET.unpack_from(self.body, begin)[0]
        last: int = _OFFSET.unpack_from(self.body, begin + 4 * count)[0]
        if first != 0 or last < 0:
            raise CorruptBatch(f"the {name} offsets go from {first} to {last}, expected from 0 up")
        return begin, last

    def binaries(self, name: str, count: int, nullable: int) -> Binaries:
        validity = self.take(name, count + 7 >> 3) if nullable else None
        offsets, data_bytes = self.offsets(name, count)
        return Binaries(count, validity, offsets, self.take(name, data_bytes), data_bytes)
