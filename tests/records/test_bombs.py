"""Few bytes that would become many: refused, in a process that has no memory for them."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import talweg
from records.samples import compressed, empties
from talweg.records import Codec

BOMB_BYTES = 256 << 20
HEADROOM_BYTES = 128 << 20  # above what the process has when it begins: a batch of the full 64 MiB fits
MAGIC = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}  # a compressed buffer begins with it

# The process reads the data, warms up, forbids itself more memory, and says what it got for each.
PROGRAM = """
import json, resource, struct, sys
import pyarrow as pa
from talweg.errors import TalwegError
from talweg.records import Batch, encode_values, frames_to_ipc, frames_to_ndjson, ipc_to_batches
from talweg.records import ipc_to_frame, ndjson_to_frame

given = []
while size := sys.stdin.buffer.read(8):
    given.append(sys.stdin.buffer.read(*struct.unpack("<q", size)))
warm = encode_values([b"x" * 1000] * 100, timestamp=0)
Batch.from_frame(warm)
ipc_to_frame(frames_to_ipc([warm]), timestamp=0)
ndjson_to_frame(frames_to_ndjson([warm]), timestamp=0)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {headroom}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for data in given:
    try:
        {statement}
        print("fine")
    except TalwegError as error:
        print(type(error).__name__)
    except MemoryError:
        print("MemoryError")
"""


def outcomes(statement: str, *given: bytes) -> list[str]:
    """What becomes of each in a process that may take little more memory than it has."""
    # The system's allocator takes what it is asked for; Arrow's own would reserve a gigabyte at once.
    source = str(Path(talweg.__file__).parents[1])
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(headroom=HEADROOM_BYTES, statement=statement)],
        input=b"".join(struct.pack("<q", len(data)) + data for data in given),
        capture_output=True,
        env=environment,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def ipc_stream(column: pa.Array, compression: str | None = None, field: str = "value") -> bytes:
    batch = pa.record_batch([column], names=[field])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


@pytest.fixture(scope="module")
def zeros() -> bytes:
    return bytes(BOMB_BYTES)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_in_a_frame_is_refused(codec: Codec, zeros: bytes) -> None:
    bomb = compressed(zeros, codec)
    assert len(bomb) < 2 << 20
    # The limit is real: without the check, there is not enough memory.
    assert outcomes(f"Batch.from_frame(data, raw_bytes_max={BOMB_BYTES})", bomb) == ["MemoryError"]
    assert outcomes("Batch.from_frame(data)", bomb) == ["BatchTooLarge"]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_that_calls_itself_small_is_refused(codec: Codec, zeros: bytes) -> None:
    bombs = [compressed(zeros, codec, raw_bytes=announced) for announced in (0, 1, 1000, 64 << 20)]
    assert outcomes("Batch.from_frame(data)", *bombs) == ["CorruptBatch"] * 4


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_little_that_calls_itself_huge_is_refused(codec: Codec) -> None:
    bluff = compressed(bytes(1000), codec, raw_bytes=2**32 - 1)
    assert outcomes("Batch.from_frame(data)", bluff) == ["BatchTooLarge"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_in_an_ipc_stream_is_refused(compression: str, zeros: bytes) -> None:
    bomb = ipc_stream(pa.array([zeros], pa.binary()), compression)
    assert len(bomb) < 2 << 20
    assert outcomes("pa.ipc.open_stream(data).read_all()", bomb) == ["MemoryError"]
    assert outcomes("ipc_to_batches(data)", bomb) == ["BatchTooLarge"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_lying_length_of_a_compressed_buffer_is_refused(compression: str) -> None:
    stream = ipc_stream(pa.array([bytes(100_000)], pa.binary()), compression)
    place = stream.index(struct.pack("<q", 100_000) + MAGIC[compression])

    def announcing(number: int) -> bytes:
        return stream[:place] + struct.pack("<q", number) + stream[place + 8 :]

    assert outcomes("pa.ipc.open_stream(data).read_all()", announcing(2**40)) == ["MemoryError"]
    huge = [announcing(number) for number in (2**27, 2**31, 2**40, 2**63 - 1)]
    assert outcomes("ipc_to_batches(data)", *huge) == ["BatchTooLarge"] * 4
    wrong = [announcing(number) for number in (-2, -(2**63), 0, 1000, 99_999, 100_001, 200_000)]
    assert outcomes("ipc_to_batches(data)", *wrong) == ["CorruptBatch"] * 7


def test_a_negative_length_does_not_make_up_for_a_huge_one() -> None:
    column = pa.array([bytes(1000)] * 2000, pa.binary())
    stream = ipc_stream(column, "lz4")
    offsets = stream.index(struct.pack("<q", 4 * 2001) + MAGIC["lz4"])
    data = stream.index(struct.pack("<q", 2_000_000) + MAGIC["lz4"])
    forged = bytearray(stream)
    struct.pack_into("<q", forged, offsets, 2**40)
    struct.pack_into("<q", forged, data, -(2**40))
    assert outcomes("ipc_to_batches(data)", bytes(forged)) == ["CorruptBatch"]


def test_an_answer_takes_no_more_memory_than_it_may_have_whatever_its_frames_become() -> None:
    bomb = empties(8_000_000)
    assert len(bomb) < 4 << 10
    assert outcomes("frames_to_ipc([data] * 4)", bomb) == ["MemoryError"]
    for write in ("frames_to_ipc", "frames_to_ndjson"):
        bounded = f"made = {write}([data] * 4, bytes_max=4 << 20)"
        assert outcomes(f"{bounded}; assert 3 << 20 < len(made) <= 4 << 20", bomb) == ["fine"], write


def test_views_that_stand_for_a_thousand_times_their_bytes_are_refused() -> None:
    _, view, data = pa.array([b"a" * 1_000_000], pa.binary_view()).buffers()
    views = pa.py_buffer(view.to_pybytes()[:16] * 1000)
    for type_ in (pa.binary_view(), pa.string_view()):
        bomb = ipc_stream(pa.Array.from_buffers(type_, 1000, [None, views, data]))
        assert len(bomb) < 2 << 20
        control = "pa.ipc.open_stream(data).read_all()['value'].cast(pa.binary())"
        assert outcomes(control, bomb) == ["MemoryError"]
        assert outcomes("ipc_to_batches(data)", bomb) == ["BatchTooLarge"]


def test_views_of_negative_length_hide_nothing() -> None:
    lengths = [100_000_000] * 3 + [-300_000_000]
    views = pa.py_buffer(b"".join(struct.pack("<i12x", length) for length in lengths))
    column = pa.Array.from_buffers(pa.binary_view(), 4, [None, views, pa.py_buffer(bytes(1000))])
    assert outcomes("ipc_to_batches(data)", ipc_stream(column)) == ["BatchTooLarge"]


def test_rows_that_take_no_bytes_are_refused() -> None:
    nothing = pa.Array.from_buffers(pa.binary(0), 100_000_000, [None, pa.py_buffer(b"")])
    bomb = ipc_stream(nothing)
    assert len(bomb) < 1000
    control = "pa.ipc.open_stream(data).read_all()['value'].cast(pa.binary())"
    assert outcomes(control, bomb) == ["MemoryError"]
    assert outcomes("ipc_to_frame(data, timestamp=0)", bomb) == ["BatchTooLarge"]


def test_a_stream_of_very_many_record_batches_is_refused() -> None:
    stream = ipc_stream(pa.array([b""], pa.binary()))
    begin, end = stream.index(b"\xff\xff\xff\xff", 8), len(stream) - 8  # of the one that it has
    bomb = stream[:begin] + 200_000 * stream[begin:end] + stream[end:]
    # Without the check there is no outcome: Arrow ends a process that has no memory left.
    assert outcomes("ipc_to_frame(data, timestamp=0)", bomb) == ["BatchTooLarge"]
    many = stream[:begin] + 10_000 * stream[begin:end] + stream[end:]
    assert outcomes("ipc_to_frame(data, timestamp=0)", many) == ["fine"]


@pytest.mark.parametrize("pair", [b'["",""]', b'["\\"",null]', b'["\\\\","\\\\"]'])
def test_a_line_of_very_many_headers_is_refused(pair: bytes) -> None:
    bomb = b'{"value":"","headers":[' + pair + (b"," + pair) * ((24 << 20) // (len(pair) + 1)) + b"]}"
    assert outcomes("made = json.loads(data)", bomb) == ["MemoryError"]
    assert outcomes("ndjson_to_frame(data, timestamp=0)", bomb) == ["BatchTooLarge"]


def test_very_many_lines_are_refused_before_they_are_all_read() -> None:
    bomb = b'{"value":""}\n' * ((60 << 20) // 13)
    assert outcomes("made = [json.loads(line) for line in data.splitlines()]", bomb) == ["MemoryError"]
    assert outcomes("ndjson_to_frame(data, timestamp=0)", bomb) == ["BatchTooLarge"]


def test_lines_take_little_more_memory_than_they_have_bytes() -> None:
    lines = b'{"value":"","headers":[["",""],["",""],["",""],["",""]]}\n' * 400_000
    assert outcomes("made = [json.loads(line) for line in data.splitlines()]", lines) == ["MemoryError"]
    assert outcomes("ndjson_to_frame(data, timestamp=0)", lines) == ["fine"]


def test_lying_lengths_in_ipc_metadata_are_refused() -> None:
    # A stream whose lengths can be told from everything else in it: 1,234 rows of 3 bytes.
    stream = ipc_stream(pa.array([b"abc"] * 1234, pa.binary()))
    body_bytes = 1235 * 4 + 4 + 1234 * 3 + 2
    forged = []
    for honest in (1234, 1235 * 4, 1234 * 3, body_bytes):
        places = [at for at in range(0, 600, 4) if stream[at : at + 8] == struct.pack("<q", honest)]
        assert places, honest
        forged += [
            stream[:place] + struct.pack("<q", lie) + stream[place + 8 :]
            for place in places
            for lie in (2**31, 2**40, 2**62, -1)
        ]
    forged += [
        stream[:place] + struct.pack("<i", lie) + stream[place + 4 :]
        for place in (4, stream.index(b"\xff\xff\xff\xff", 8) + 4)
        for lie in (2**31 - 1, 2**30, -1)
    ]
    assert outcomes("ipc_to_batches(data)", *forged) == ["CorruptBatch"] * len(forged)
