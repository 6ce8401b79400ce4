"""Compressing bodies when it pays, and decompressing them without trusting what they say of themselves."""

from typing import Any, Final

import pyarrow as pa

from talweg.errors import BatchTooLarge, CorruptBatch
from talweg.records.header import Bytes, Codec, Header

RAW_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest body, decompressed, that is made, and that is read unless the reader says otherwise."""

TRIED_BYTES_MIN: Final = 256
"""A shorter body is stored raw: it is not worth the two microseconds that it takes to find out."""

_NAMES: Final = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


def compress(raw: Bytes, codec: Codec) -> Any:
    """The compressed body, or None if that would not save an eighth: reading raw bytes needs no copy."""
    # A codec for each call: it costs 0.4 us, and Arrow does not promise that one serves two threads.
    # A buffer from Arrow's own pool: as Python bytes, compressing a megabyte takes half as long again.
    stored = pa.Codec(_NAMES[codec]).compress(raw)
    return stored if stored.size <= len(raw) - len(raw) // 8 else None


def decompress(header: Header, stored: Any, *, raw_bytes_max: int) -> Any:
    """The body as it was before compression: exactly `header.raw_bytes` of it, never over the limit.

    The length is checked before anything is allocated, and again against what comes out. The second
    check is not idle: `pa.Codec("lz4").decompress` fills less than was asked for without a word, and
    the rest would be whatever the memory held before. Reading it as a stream counts the bytes.
    """
    if header.raw_bytes > raw_bytes_max:
        raise BatchTooLarge(f"a body of {header.raw_bytes} bytes, at most {raw_bytes_max} are accepted")
    if header.codec == Codec.NONE:
        if header.raw_bytes != header.body_bytes:
            raise CorruptBatch(f"{header.body_bytes} bytes stored raw, {header.raw_bytes} announced")
        return stored
    try:
        if header.codec == Codec.LZ4:
            stream = pa.CompressedInputStream(pa.BufferReader(stored), "lz4")
            raw = stream.read_buffer(header.raw_bytes + 1)  # one more: to see the end, or what follows it
        else:
            raw = pa.Codec("zstd").decompress(stored, header.raw_bytes)
    except MemoryError:
        raise  # ours to answer for: the size has been found acceptable
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(f"the {header.codec.name} body cannot be decompressed: {error}") from None
    if raw.size != header.raw_bytes:
        raise CorruptBatch(f"the body does not decompress to the {header.raw_bytes} bytes announced")
    return raw
