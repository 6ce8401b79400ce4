"""The header of a frame: the 88 bytes that brokers look at, and the only place that knows where each lies.

A frame is a header, a body, and zero bytes up to the next multiple of 8, so that frames put one after
another stay aligned. All numbers are little-endian.

    at  type  field
     0  u32   header_crc       CRC-32C of bytes 4 to 88 (88 not included)
     4  u16   magic            b"Tw"
     6  u8    version          1
     7  u8    kind             see Kind
     8  u32   body_bytes       the body as stored, without the padding that follows it
    12  u32   body_crc         CRC-32C of the body and its padding: no byte of a frame is unguarded
    16  u32   raw_bytes        the body once decompressed; body_bytes when there is no compression
    20  u8    codec            see Codec
    21  u8    columns          which optional parts the body has (records.body); 0 unless kind is RECORDS
    22  i16   producer_epoch   -1: none
    24  u64   index            place in the Raft log, from 1; 0 until a leader stamps it
    32  u64   term             of the leader that stamped it
    40  u64   first_offset     of the first message; for a frame without messages, of the next one to come
    48  u32   count            messages; 0 when the kind holds none
    52  u32   reserved         0
    56  i64   producer_id      -1: none
    64  i64   sequence         of the first message; -1: none
    72  i64   first_timestamp  the least of the batch, microseconds since 1970 (UTC)
    80  i64   last_timestamp   the greatest of the batch
    88        body, then padding

Two checksums, because the two parts have different lives. The body's is made once, by whoever built the
batch, and goes unchanged through leader, followers and disk to the last reader: end to end. The header
is stamped anew by the leader, which knows the term, the index and the offsets only when it appends; it
does so without touching, or even reading, the body.
"""

import struct
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from talweg.errors import BatchTooLarge, CorruptBatch, Incomplete

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Whatever can be sliced without asking what it is. A memoryview must be one of single bytes."""

HEADER_BYTES: Final = 88
MAGIC: Final = int.from_bytes(b"Tw", "little")
VERSION: Final = 1
STAGE_ID_MIN: Final = 1 << 62  # as producer_id: no producer's, but that of a stage

MESSAGES_MAX: Final = 1 << 20
"""Of a batch that is made or taken in. Empty ones compress to almost nothing, and each of them takes dozens
of bytes again in an answer. What is in a log already is read whatever its number."""

WHOLE: Final = struct.Struct("<IHBBIIIBBhQQQIIqqqq")
GUARDED: Final = struct.Struct("<HBBIIIBBhQQQIIqqqq")  # all that header_crc covers
CRC: Final = struct.Struct("<I")
AROUND_STAMP: Final = struct.Struct("<I20s24x40s")  # header_crc, and what stays as it is when it is stamped
WITH_STAMP: Final = struct.Struct("<20sQQQ40s")  # the same, now with index, term and first_offset in between
EPOCH_AT: Final = 22
EPOCH: Final = struct.Struct("<h")
PRODUCER_AT: Final = 56  # producer_id and sequence lie side by side
PRODUCER: Final = struct.Struct("<qq")
assert WHOLE.size == HEADER_BYTES == CRC.size + GUARDED.size


class Kind(IntEnum):
    """What the body of a frame is. Only RECORDS is understood here; the others are opaque."""

    NOOP = 0
    CONFIGURATION = 1
    RECORDS = 2
    POSITIONS = 3
    STAGE = 4  # a frame of records that waits to be published
    DECISION = 5  # on transactions: what is published, what can no longer be
    DISCARD = 6  # of stages


class Codec(IntEnum):
    """How a body is compressed."""

    NONE = 0
    LZ4 = 1  # the LZ4 frame format
    ZSTD = 2


_KINDS: Final = tuple(Kind)  # indexing these is several times faster than calling the enum
_CODECS: Final = tuple(Codec)
assert [*_KINDS] == [*range(len(_KINDS))] and [*_CODECS] == [*range(len(_CODECS))]


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of one frame, checked. The fields are in the order of the bytes."""

    kind: Kind
    body_bytes: int  # without padding
    body_crc: int
    raw_bytes: int  # == body_bytes when codec is NONE
    codec: Codec
    columns: int
    producer_epoch: int
    index: int
    term: int
    first_offset: int
    count: int
    producer_id: int
    sequence: int
    first_timestamp: int  # <= last_timestamp
    last_timestamp: int

    @property
    def frame_bytes(self) -> int:
        """The whole frame: header, body and padding. A multiple of 8."""
        return HEADER_BYTES + (self.body_bytes + 7 & ~7)

    @property
    def next_offset(self) -> int:
        """The first offset after this frame."""
        return self.first_offset + self.count


def read_header(buffer: Bytes, position: int = 0) -> Header:
    """Read and check the header that begins at `position`. The body is not looked at."""
    guarded = buffer[position + 4 : position + HEADER_BYTES]
    if len(guarded) != HEADER_BYTES - 4:
        raise Incomplete(f"{max(len(buffer) - position, 0)} bytes, a header has {HEADER_BYTES}")
    (
        header_crc,
        magic,
        version,
        kind,
        body_bytes,
        body_crc,
        raw_bytes,
        codec,
        columns,
        producer_epoch,
        index,
        term,
        first_offset,
        count,
        reserved,
        producer_id,
        sequence,
        first_timestamp,
        last_timestamp,
    ) = WHOLE.unpack_from(buffer, position)
    if magic != MAGIC or version != VERSION or crc32c(guarded) != header_crc:
        raise CorruptBatch(_why_not(magic, version, position))
    # The bytes are what somebody wrote; whether that makes sense is another question.
    if reserved or kind >= len(_KINDS) or codec >= len(_CODECS) or first_timestamp > last_timestamp:
        raise CorruptBatch(_why_senseless(reserved, kind, codec, position))
    return Header(
        _KINDS[kind],
        body_bytes,
        body_crc,
        raw_bytes,
        _CODECS[codec],
        columns,
        producer_epoch,
        index,
        term,
        first_offset,
        count,
        producer_id,
        sequence,
        first_timestamp,
        last_timestamp,
    )


def check_count(count: int, messages_max: int = MESSAGES_MAX) -> None:
    """Raise BatchTooLarge for a batch of more messages than one may hold."""
    if count > messages_max:
        raise BatchTooLarge(
            f"a batch of {count} messages, at most {messages_max} are accepted: send them in several batches"
        )


def _why_not(magic: int, version: int, position: int) -> str:
    if magic != MAGIC:
        return f"no frame begins at byte {position}: its first bytes are not those of one"
    if version != VERSION:
        return f"the frame at byte {position} has format version {version}, expected {VERSION}"
    return f"the header at byte {position} does not match its checksum"


def _why_senseless(reserved: int, kind: int, codec: int, position: int) -> str:
    if reserved:
        return f"the header at byte {position} uses the reserved field, expected 0"
    if kind >= len(_KINDS):
        return f"the frame at byte {position} is of unknown kind {kind}, expected 0 to {len(_KINDS) - 1}"
    if codec >= len(_CODECS):
        return f"the frame at byte {position} has unknown codec {codec}, expected 0 to {len(_CODECS) - 1}"
    return f"the header at byte {position} has a first timestamp after its last"
