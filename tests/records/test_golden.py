"""The format, byte for byte. These files are what lies on people's disks: a change is a new version."""

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from records.samples import FULL, HEADER_FIELDS, MANY, NOW, ONE, Rows, header_table, messages_of
from talweg.records import Batch, Codec, Kind, check_body, encode_frame, read_header, stamp
from talweg.records import header as header_module

GOLDEN: dict[str, Callable[[], bytes]] = {
    "noop": lambda: encode_frame(Kind.NOOP, index=9, term=3, first_offset=120),
    "opaque": lambda: encode_frame(
        Kind.CONFIGURATION, b"thirteen byte", index=1, term=2, first_offset=3, count=0
    ),
    "one_value": lambda: stamp(
        ONE.encode(producer_id=5, producer_epoch=1, sequence=77), index=300, term=4, first_offset=1000
    ),
    "all_columns": lambda: FULL.encode(codec=Codec.NONE),
    "lz4": lambda: MANY.encode(codec=Codec.LZ4),
    "zstd": lambda: MANY.encode(codec=Codec.ZSTD),
}
COMPRESSED = ("lz4", "zstd")  # another release of a compressor may write other bytes for the same


def golden(name: str) -> bytes:
    return bytes.fromhex((Path(__file__).parent / "golden" / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in COMPRESSED])
def test_encoding_gives_the_golden_bytes(name: str) -> None:
    assert GOLDEN[name]().hex() == golden(name).hex()


def test_the_golden_noop_is_read() -> None:
    header = read_header(golden("noop"))
    assert (header.kind, header.index, header.term) == (Kind.NOOP, 9, 3)
    assert (header.first_offset, header.count, header.next_offset) == (120, 0, 120)
    assert header.frame_bytes == len(golden("noop")) == 88


def test_the_golden_opaque_frame_is_read() -> None:
    frame = golden("opaque")
    header = read_header(frame)
    check_body(header, frame)
    assert frame[88 : 88 + header.body_bytes] == b"thirteen byte"
    assert frame[88 + header.body_bytes :] == bytes(3)


def test_the_golden_value_is_read() -> None:
    batch = Batch.from_frame(golden("one_value"))
    header = batch.header
    assert (header.index, header.term, header.first_offset, header.count) == (300, 4, 1000, 1)
    assert (header.producer_id, header.producer_epoch, header.sequence) == (5, 1, 77)
    assert (header.first_timestamp, header.last_timestamp) == (NOW, NOW)
    assert batch.message(0) == ONE.messages(1000)[0]


@pytest.mark.parametrize(
    ("name", "rows", "codec"),
    [("all_columns", FULL, Codec.NONE), ("lz4", MANY, Codec.LZ4), ("zstd", MANY, Codec.ZSTD)],
)
def test_the_golden_batches_are_read(name: str, rows: Rows, codec: Codec) -> None:
    frame = golden(name)
    assert read_header(frame).codec == codec
    assert messages_of(frame) == rows.messages()


def test_the_documented_layout_of_the_header_is_the_real_one() -> None:
    lines = re.findall(r"^ +(\d+)  ([ui])(\d+) +(\w+) ", header_module.__doc__ or "", re.MULTILINE)
    assert [name for *_, name in lines] == ["header_crc", *HEADER_FIELDS]
    frame = golden("one_value")
    code = {("u", "8"): "B", ("u", "16"): "H", ("u", "32"): "I", ("u", "64"): "Q", ("i", "16"): "h"}
    read = {
        name: struct.unpack_from("<" + code.get((sign, bits), "q"), frame, int(at))[0]
        for at, sign, bits, name in lines
    }
    assert read.pop("header_crc") == crc32c(frame[4:88])
    assert read == header_table(frame)
    assert read["body_crc"] == crc32c(frame[88:])


def test_a_body_by_hand() -> None:
    body = golden("one_value")[88:]
    assert body == struct.pack("<ii", 0, 5) + b"hello" + bytes(3)


def test_a_body_of_all_columns_by_hand() -> None:
    by_hand = [
        b"\x0d".ljust(8, b"\0"),  # values: the second is null
        struct.pack("<5i4x", 0, 5, 5, 5, 16),
        b"first\xff\xfe not text".ljust(16, b"\0"),
        b"\x0d".ljust(8, b"\0"),  # keys: so is the second
        struct.pack("<5i4x", 0, 2, 2, 2, 3),
        b"k1\x80".ljust(8, b"\0"),
        struct.pack("<4q", NOW + 3, NOW, NOW + 7, NOW),
        struct.pack("<5i4x", 0, 2, 2, 3, 3),  # the first has two headers, the third one
        struct.pack("<4i", 0, 5, 10, 17),
        "tracetracegr\u00fc\u00dfe".encode().ljust(24, b"\0"),
        b"\x05".ljust(8, b"\0"),  # header values: the second is null
        struct.pack("<4i", 0, 1, 1, 2),
        b"1\xff".ljust(8, b"\0"),
    ]
    assert golden("all_columns")[88:].hex() == b"".join(by_hand).hex()
