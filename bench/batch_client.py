"""A client of the batch API: produces to leaders, or fetches from them into Arrow, as fast as it goes.

Run as `python -m bench.batch_client`, with a plan on standard input: a process of its own, as in life.
"""

import asyncio
import itertools
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.records import log_lines
from talweg.errors import Overloaded, TalwegError
from talweg.http import HttpClient
from talweg.records import Batch, Codec, encode_values, frames

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
FRAMES: Final = "application/vnd.talweg.frames"
_REQUEST_SECONDS_MAX = 30.0
_BACK_OFF_SECONDS = 0.02  # after a refusal
_DIFFERENT_BATCHES = 16  # used in turn


class Produce(msgspec.Struct, frozen=True, tag=True):
    """Batches to all partitions in turn, `window` of them under way."""

    topic: str
    leaders: list[str]  # their endpoints, by partition
    messages: int  # in a batch
    window: int
    warm_seconds: float  # before counting
    seconds: float
    encoded_beforehand: bool = False


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Everything that the partitions hold, each from its beginning to its end, and again."""

    topic: str
    leaders: list[str]
    ends: list[int]  # the first offset that is not there, by partition
    answer_bytes: int  # of a fetch, at most
    window: int  # partitions that are read at once
    warm_seconds: float
    seconds: float


class Moved(msgspec.Struct, frozen=True):
    """What came of it."""

    messages: int  # that were counted, in `seconds`
    messages_in_all: int  # also before and after
    requests: int  # that were counted
    wire_bytes: int  # that were counted
    refused: int
    seconds: float
    processor_seconds: float  # of this process, in `seconds`

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class ClientFailed(Exception):
    """It did not come to an end, or found something wrong."""


def run_client(plan: Produce | Fetch) -> Moved:
    """Carry out a plan in a process of its own, and wait for it."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.batch_client"],
        input=msgspec.msgpack.encode(plan),
        capture_output=True,
        cwd=_ROOT,
        timeout=plan.warm_seconds + plan.seconds + 4 * _REQUEST_SECONDS_MAX,
        check=False,
    )
    if run.returncode:
        raise ClientFailed(run.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.msgpack.decode(run.stdout, type=Moved)


class _Counts:
    """What has been moved so far, and when counting began."""

    def __init__(self, warm_seconds: float, seconds: float) -> None:
        self._begin = time.perf_counter() + warm_seconds
        self._end = self._begin + seconds
        self._seconds = seconds
        self._messages = self._messages_in_all = self._requests = self._wire_bytes = 0
        self._processor_at_begin: float | None = None
        self._processor_at_end = 0.0
        self.refused = 0

    @property
    def over(self) -> bool:
        """Whether it is time to stop."""
        return time.perf_counter() >= self._end

    def add(self, messages: int, wire_bytes: int) -> None:
        """A request was answered."""
        self._messages_in_all += messages
        now = time.perf_counter()
        if self._begin <= now < self._end:
            if self._processor_at_begin is None:
                self._processor_at_begin = time.process_time()
            self._processor_at_end = time.process_time()
            self._messages += messages
            self._requests += 1
            self._wire_bytes += wire_bytes

    def moved(self) -> Moved:
        """All of it."""
        return Moved(
            self._messages,
            self._messages_in_all,
            self._requests,
            self._wire_bytes,
            self.refused,
            self._seconds,
            self._processor_at_end - (self._processor_at_begin or 0.0),
        )


async def produce(plan: Produce, client: HttpClient) -> Moved:
    """Encode a batch, send it to the leader of its partition, and the next."""
    batches = [log_lines(plan.messages) for _ in range(_DIFFERENT_BATCHES)]
    ready_made = itertools.cycle([_encoded(batch) for batch in batches] if plan.encoded_beforehand else ())
    values = itertools.cycle(batches)
    partitions = itertools.cycle(range(len(plan.leaders)))
    answers = msgspec.json.Decoder(dict[str, str | int])
    counts = _Counts(plan.warm_seconds, plan.seconds)

    async def one_after_another() -> None:
        while not counts.over:
            partition = next(partitions)
            frame = next(ready_made) if plan.encoded_beforehand else _encoded(next(values))
            target = f"/v1/topics/{plan.topic}/partitions/{partition}/records"
            while True:
                try:
                    response = await client.request(
                        plan.leaders[partition],
                        "POST",
                        target,
                        frame,
                        media_type=FRAMES,
                        seconds_max=_REQUEST_SECONDS_MAX,
                    )
                except Overloaded:
                    counts.refused += 1
                    await asyncio.sleep(_BACK_OFF_SECONDS)
                else:
                    break
            count = answers.decode(response.body)["count"]
            if count != plan.messages:
                raise ClientFailed(f"{plan.messages} messages were sent, and {count} taken")
            counts.add(plan.messages, len(frame))

    await asyncio.gather(*(one_after_another() for _ in range(plan.window)))
    return counts.moved()


def _encoded(values: list[bytes]) -> bytes:
    return encode_values(values, timestamp=time.time_ns() // 1000, codec=Codec.LZ4)


async def fetch(plan: Fetch, client: HttpClient) -> Moved:
    """Fetch frames, make Arrow of them, fetch the next."""
    counts = _Counts(plan.warm_seconds, plan.seconds)
    partitions = itertools.cycle(range(len(plan.leaders)))

    async def one_partition_after_another() -> None:
        while not counts.over:
            partition = next(partitions)
            target = f"/v1/topics/{plan.topic}/partitions/{partition}/records?max_bytes={plan.answer_bytes}"
            offset = 0
            while offset < plan.ends[partition] and not counts.over:
                response = await client.request(
                    plan.leaders[partition],
                    "GET",
                    f"{target}&offset={offset}",
                    headers={"accept": FRAMES},
                    seconds_max=_REQUEST_SECONDS_MAX,
                )
                next_offset = _read(response.body, offset)
                counts.add(next_offset - offset, len(response.body))
                offset = next_offset

    await asyncio.gather(*(one_partition_after_another() for _ in range(plan.window)))
    return counts.moved()


def _read(body: bytes, offset: int) -> int:
    """Every frame into Arrow; the offset behind the last one."""
    begun_at = offset
    for header, frame in frames(body, bytes_max=len(body)):
        if header.first_offset != offset:
            raise ClientFailed(f"offset {offset} was to come, not {header.first_offset}")
        columns = Batch.from_frame(frame).to_arrow()
        if columns.num_rows != header.count:
            raise ClientFailed(f"{header.count} messages became {columns.num_rows} rows")
        offset += header.count
    if offset == begun_at:
        raise ClientFailed(f"nothing came from offset {offset} on")
    return offset


async def main() -> Moved:
    """What standard input says."""
    plan: Produce | Fetch = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Produce | Fetch)
    client = HttpClient()
    try:
        return await (produce(plan, client) if isinstance(plan, Produce) else fetch(plan, client))
    finally:
        await client.close()


if __name__ == "__main__":
    try:
        moved = uvloop.run(main())
    except (ClientFailed, TalwegError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(msgspec.msgpack.encode(moved))
