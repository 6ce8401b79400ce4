"""What the tests of records share: sample batches, forged frames, and how Hypothesis makes messages."""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c
from hypothesis import strategies as st

from talweg.records import (
    HEADER_BYTES,
    Codec,
    Header,
    Kind,
    Message,
    encode_frame,
    encode_values,
    read_header,
)
from talweg.records.batch import Batch
from talweg.records.body import HEADERS

NOW = 1_700_000_000_000_000

HEADER_FIELDS = (
    "magic version kind body_bytes body_crc raw_bytes codec columns producer_epoch index term first_offset "
    "count reserved producer_id sequence first_timestamp last_timestamp".split()
)
HEADER_LAYOUT = "<HBBIIIBBhQQQIIqqqq"


class Rows(msgspec.Struct, frozen=True):
    """Messages as `encode_values` takes them."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps: list[int] | None = None
    headers: list[list[tuple[str, bytes | None]]] | None = None

    def encode(self, **others: Any) -> bytes:
        return encode_values(
            self.values,
            timestamp=NOW,
            keys=self.keys,
            timestamps=self.timestamps,
            headers=self.headers,
            **others,
        )

    def part(self, begin: int, end: int) -> "Rows":
        return Rows(
            self.values[begin:end],
            self.keys and self.keys[begin:end],
            self.timestamps and self.timestamps[begin:end],
            self.headers and self.headers[begin:end],
        )

    def messages(self, first_offset: int = 0) -> list[Message]:
        """What a reader must get."""
        count = len(self.values)
        keys: Sequence[bytes | None] = self.keys or [None] * count
        timestamps = self.timestamps or [NOW] * count
        headers: Sequence[Sequence[tuple[str, bytes | None]]] = self.headers or [()] * count
        return [
            Message(first_offset + i, timestamps[i], keys[i], self.values[i], tuple(headers[i]))
            for i in range(count)
        ]


ONE = Rows([b"hello"])
FULL = Rows(
    [b"first", None, b"", b"\xff\xfe not text"],
    keys=[b"k1", None, b"", b"\x80"],
    timestamps=[NOW + 3, NOW, NOW + 7, NOW],
    headers=[[("trace", b"1"), ("trace", None)], [], [("gr\u00fc\u00dfe", b"\xff")], []],
)
MANY = Rows(
    [b"line %d of many, much like the others" % i for i in range(300)],
    keys=[None if i % 3 else b"key %d" % i for i in range(300)],
    timestamps=[NOW + i for i in range(300)],
)


def messages_of(frame: bytes | memoryview) -> list[Message]:
    batch = Batch.from_frame(frame)
    return [batch.message(index) for index in range(len(batch))]


def header_table(frame: bytes) -> dict[str, int]:
    """The header's numbers by name, read without the code under test."""
    return dict(zip(HEADER_FIELDS, struct.unpack_from(HEADER_LAYOUT, frame, 4), strict=True))


def resealed(frame: bytes, body: bytes | None = None, /, **lies: int) -> bytes:
    """The frame with another body or other header fields, and with checksums that are right.

    What a hostile or mistaken writer could send: only the deeper checks can find it.
    """
    table = header_table(frame)
    if body is None:
        body = frame[HEADER_BYTES : HEADER_BYTES + table["body_bytes"]]
    elif table["codec"] == Codec.NONE:
        table["raw_bytes"] = len(body)
    table["body_bytes"] = len(body)
    table |= lies
    padded = body + bytes(-len(body) % 8)
    if "body_crc" not in lies:
        table["body_crc"] = crc32c(padded)
    guarded = struct.pack(HEADER_LAYOUT, *table.values())
    return struct.pack("<I", crc32c(guarded)) + guarded + padded


def raw_body(frame: bytes) -> bytes:
    header = read_header(frame)
    assert header.codec == Codec.NONE
    return frame[HEADER_BYTES : HEADER_BYTES + header.body_bytes]


def with_number(body: bytes, position: int, number: int, layout: str = "<i") -> bytes:
    """The body with one number in it replaced."""
    forged = bytearray(body)
    struct.pack_into(layout, forged, position, number)
    return bytes(forged)


def compressed(raw: bytes, codec: Codec, **header: Any) -> bytes:
    """A RECORDS frame whose compressed body is whatever the test likes."""
    stored = pa.Codec("lz4" if codec == Codec.LZ4 else "zstd").compress(raw, asbytes=True)
    header = {"raw_bytes": len(raw), "count": 1} | header
    return encode_frame(Kind.RECORDS, stored, codec=codec, **header)


def empties(count: int, **header: Any) -> bytes:
    """A RECORDS frame of so many empty messages, which are more than would be made today, perhaps."""
    return compressed(bytes(4 * (count + 1) + 7 & ~7), Codec.ZSTD, count=count, **header)


def headed(count: int) -> bytes:
    """A RECORDS frame of one empty message with so many empty headers, likewise."""
    empty = bytes(4 * (count + 1) + 7 & ~7)
    return compressed(struct.pack("<iiii", 0, 0, 0, count) + 2 * empty, Codec.ZSTD, columns=HEADERS)


def opaque(body: bytes = b"") -> tuple[Header, bytes]:
    frame = encode_frame(Kind.POSITIONS, body, index=7, term=2, first_offset=40)
    return read_header(frame), frame


_int64 = st.integers(-(2**63), 2**63 - 1)
_datum = st.none() | st.binary(max_size=40)
_pairs = st.lists(st.tuples(st.text(max_size=5), _datum), max_size=3)


@st.composite
def rows(draw: st.DrawFn, count_max: int = 90) -> Rows:
    """Any messages, few or (past the quick path's end) not so few, with any of the optional columns."""
    count = draw(st.integers(1, 8) | st.integers(60, count_max))

    def some(of: st.SearchStrategy[Any]) -> Any:
        # A short pattern, repeated: as telling as drawing each one, and far quicker.
        pattern = draw(st.lists(of, min_size=1, max_size=min(count, 8)))
        return [pattern[i % len(pattern)] for i in range(count)]

    return Rows(
        some(_datum),
        some(_datum) if draw(st.booleans()) else None,
        some(_int64) if draw(st.booleans()) else None,
        some(_pairs) if draw(st.booleans()) else None,
    )
