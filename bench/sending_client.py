"""A program that sends with the client library, merely hands messages to confluent-kafka, or merely encodes.

Run as `python -m bench.sending_client`, with a plan on standard input: a process of its own, as in life.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from bench.records import log_lines
from talweg.client.producer import Producer
from talweg.errors import TalwegError
from talweg.records import encode_arrow

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
_TIMEOUT_SECONDS = 120.0
_DIFFERENT_LISTS = 16  # used in turn
_LIST_MESSAGES = 10_000
# Nothing is ever taken out of confluent-kafka's queue, so it ends before that is full.
_QUEUE_MESSAGES = 4_000_000


class Plan(msgspec.Struct, frozen=True):
    """What is to be done, and for how long."""

    how: Literal["confluent", "encode", "send", "send_many", "send_arrow"]
    server: str  # a manager; of no use to the first two
    topic: str
    warm_seconds: float
    seconds: float


class Sending(msgspec.Struct, frozen=True):
    """What came of it."""

    messages: int  # in `seconds`
    messages_in_all: int  # also before
    seconds: float  # until all of them were acknowledged
    processor_seconds: float  # of this process, meanwhile

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class ClientFailed(Exception):
    """It did not come to an end, or found something wrong."""


def run_client(plan: Plan) -> Sending:
    """Carry out a plan in a process of its own, and wait for it."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.sending_client"],
        input=msgspec.msgpack.encode(plan),
        capture_output=True,
        cwd=_ROOT,
        timeout=plan.warm_seconds + plan.seconds + _TIMEOUT_SECONDS,
        check=False,
    )
    if run.returncode:
        raise ClientFailed(run.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.msgpack.decode(run.stdout, type=Sending)


def _timed(send: Callable[[int], None], flush: Callable[[], None], plan: Plan, most: int) -> Sending:
    """Send list after list, for as long as the plan says, and wait until everything is acknowledged."""
    turn = 0

    def go_on_for(seconds: float, lists_max: int) -> int:
        nonlocal turn
        first, until = turn, time.perf_counter() + seconds
        while time.perf_counter() < until and turn - first < lists_max:
            send(turn % _DIFFERENT_LISTS)
            turn += 1
        flush()
        return (turn - first) * _LIST_MESSAGES

    lists_max = most // _LIST_MESSAGES
    warmed = go_on_for(plan.warm_seconds, lists_max // 4)
    began, processor_began = time.perf_counter(), time.process_time()
    messages = go_on_for(plan.seconds, lists_max - lists_max // 4)
    seconds = time.perf_counter() - began
    return Sending(messages, warmed + messages, seconds, time.process_time() - processor_began)


def confluent(plan: Plan, lists: list[list[bytes]]) -> Sending:
    """What confluent-kafka accepts in one thread: into its queue, with no broker to send to."""
    import confluent_kafka  # noqa: PLC0415 - who measures the others need not have it

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "queue.buffering.max.messages": _QUEUE_MESSAGES + 1,
            "queue.buffering.max.kbytes": 2_000_000,
            "log_level": 0,
        }
    )
    produce, topic = producer.produce, plan.topic

    def send(turn: int) -> None:
        for line in lists[turn]:
            produce(topic, line)

    return _timed(send, lambda: None, plan, _QUEUE_MESSAGES)


def encode(plan: Plan, lists: list[list[bytes]]) -> Sending:
    """What one thread makes batches of, with lz4; they are sent nowhere."""
    tables = _record_batches(lists)
    return _timed(lambda turn: void(encode_arrow(tables[turn], timestamp=0)), lambda: None, plan, 1 << 60)


def _record_batches(lists: list[list[bytes]]) -> list[Any]:
    return [pa.record_batch([pa.array(lines, pa.binary())], names=["value"]) for lines in lists]


def talweg(plan: Plan, lists: list[list[bytes]]) -> Sending:
    """What the cluster acknowledges."""
    with Producer(plan.server) as producer:
        topic, one, many, arrow = plan.topic, producer.send, producer.send_many, producer.send_arrow
        tables = _record_batches(lists)

        def send(turn: int) -> None:
            for line in lists[turn]:
                one(topic, line)

        sends: dict[str, Callable[[int], object]] = {
            "send": send,
            "send_many": lambda turn: many(topic, lists[turn]),
            "send_arrow": lambda turn: arrow(topic, tables[turn]),
        }
        way = sends[plan.how]
        return _timed(lambda turn: void(way(turn)), producer.flush, plan, 1 << 60)


def void(_: object) -> None:
    """What is returned is not needed."""


def main() -> int:
    """What standard input says."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
    lists = [log_lines(_LIST_MESSAGES) for _ in range(_DIFFERENT_LISTS)]
    try:
        way = {"confluent": confluent, "encode": encode}.get(plan.how, talweg)
        sending = way(plan, lists)
    except (TalwegError, ImportError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.msgpack.encode(sending))
    sys.stdout.buffer.flush()
    # Not in good order: confluent-kafka would wait for a broker that is not there.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
