"""Batches of messages to bytes and back, in one process and one thread."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import msgspec

from bench.results import Row, Scene, Yielded
from talweg.records import (
    Batch,
    Codec,
    check_body,
    encode_values,
    frames_to_ipc,
    frames_to_ndjson,
    ipc_to_frame,
    ndjson_to_frame,
    read_header,
    stamp,
)

ABOUT = """\
One batch of 10,000 messages of 100 bytes. The values are log lines, which compress about as logs do;
each figure is the median of many repetitions."""

_TIMESTAMP = 1_700_000_000_000_000


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    messages: int
    repetitions: int


FULL = Sizes(messages=10_000, repetitions=101)
QUICK = Sizes(messages=10_000, repetitions=15)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """A row for each way."""
    for what, call in _ways(log_lines(sizes.messages)):
        scene.tell(f"records: {what}")
        milliseconds = _median_ms(call, sizes.repetitions)
        millions = sizes.messages / milliseconds / 1000
        yield Row(what, milliseconds, "ms", note=f"{millions:,.1f} M messages/s")
    single = [os.urandom(1 << 10)]
    call = partial(encode_values, single, timestamp=_TIMESTAMP, codec=Codec.NONE)
    yield Row("encode, none, a batch of one message of 1 KB", 1000 * _median_ms(call, 1000), "µs")


def _ways(values: list[bytes]) -> Iterator[tuple[str, Callable[[], object]]]:
    frames = {codec: encode_values(values, timestamp=_TIMESTAMP, codec=codec) for codec in Codec}
    for codec, frame in frames.items():
        yield (
            f"encode, {codec.name.lower()} ({len(frame) / 1e6:.2f} MB)",
            partial(encode_values, values, timestamp=_TIMESTAMP, codec=codec),
        )
    for codec, frame in frames.items():
        yield f"decode to Arrow, {codec.name.lower()}", partial(_to_arrow, frame)
    plain = frames[Codec.NONE]
    header = read_header(plain)
    ipc, ndjson = frames_to_ipc([plain]), frames_to_ndjson([plain])
    yield "decode to a list of values", lambda: Batch.from_frame(plain).values()
    yield "the leader's stamp", lambda: stamp(plain, index=1, term=1, first_offset=0)
    yield "check the body's checksum", lambda: check_body(header, plain)
    yield "to an Arrow IPC stream", lambda: frames_to_ipc([plain])
    yield "from an Arrow IPC stream", lambda: ipc_to_frame(ipc, timestamp=_TIMESTAMP)
    yield "to NDJSON", lambda: frames_to_ndjson([plain])
    yield "from NDJSON", lambda: ndjson_to_frame(ndjson, timestamp=_TIMESTAMP)


def _to_arrow(frame: bytes) -> object:
    return Batch.from_frame(frame).to_arrow()


def log_lines(count: int) -> list[bytes]:
    """So many messages of 100 bytes, no two alike."""
    dice = os.urandom(4 * count)
    lines = []
    for number in range(count):
        thrown = dice[4 * number : 4 * number + 4]
        path = f"/api/v1/orders/{thrown.hex()}"
        line = f"10.0.{thrown[0]}.{thrown[1]} GET {path} 200 {int.from_bytes(thrown):010d} {number:08d} "
        lines.append(line.encode().ljust(100, b"-")[:100])
    return lines


def _median_ms(call: Callable[[], object], repetitions: int) -> float:
    call()
    taken = []
    for _ in range(repetitions):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1000 * median(taken)
