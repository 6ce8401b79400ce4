"""A program that consumes: message by message, batch by batch, or call by call over the plain API.

Run as `python -m bench.consuming_client`, with a plan on standard input: a process of its own, as in life.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import uvloop

from talweg.client.async_consumer import AsyncConsumer
from talweg.client.consumer import Consumer
from talweg.errors import TalwegError
from talweg.http import HttpClient
from talweg.protocol.plain import Consumed

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
_REQUEST_SECONDS_MAX = 30.0
_LOOK_MESSAGES = 5_000  # between two looks at the clock


class Plan(msgspec.Struct, frozen=True):
    """What is to be done, and for how long. The topic is read again and again from its beginning."""

    how: Literal["messages", "arrow", "values", "async messages", "plain"]
    server: str  # a manager
    topic: str
    messages: int  # that the topic holds
    warm_seconds: float
    seconds: float
    consumers: tuple[int, ...] = ()  # plain: registered ones, which all have a call under way
    in_turn: bool = False  # plain: one call at a time, consumer after consumer


class Consumption(msgspec.Struct, frozen=True):
    """What came of it."""

    messages: int  # that were counted, in `seconds`
    seconds: float
    processor_seconds: float  # of this process, meanwhile

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class ClientFailed(Exception):
    """It did not come to an end, or found something wrong."""


def run_client(plan: Plan) -> Consumption:
    """Carry out a plan in a process of its own, and wait for it."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.consuming_client"],
        input=msgspec.msgpack.encode(plan),
        capture_output=True,
        cwd=_ROOT,
        timeout=plan.warm_seconds + plan.seconds + 4 * _REQUEST_SECONDS_MAX,
        check=False,
    )
    if run.returncode:
        raise ClientFailed(run.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.msgpack.decode(run.stdout, type=Consumption)


class _Clock:
    """Counts from the end of the warm-up to the end of the plan."""

    def __init__(self, plan: Plan) -> None:
        now = time.perf_counter()
        self._begin, self._end = now + plan.warm_seconds, now + plan.warm_seconds + plan.seconds
        self._begun_at = self._ended_at = now
        self._processor = time.process_time()
        self._counted = -1  # -1: still warming up

    def over(self, messages: int) -> bool:
        """So many more were consumed: whether it is time to stop."""
        now = time.perf_counter()
        if self._counted >= 0:
            self._counted += messages
            self._ended_at = now
        elif now >= self._begin:
            self._counted, self._begun_at, self._processor = 0, now, time.process_time()
        return now >= self._end

    def consumption(self) -> Consumption:
        """All of it."""
        if self._counted <= 0:
            raise ClientFailed("nothing was consumed while it was counted")
        spent = time.process_time() - self._processor
        return Consumption(self._counted, self._ended_at - self._begun_at, spent)


def _consume(plan: Plan, clock: _Clock) -> None:
    with Consumer(plan.topic, servers=plan.server) as consumer:
        while True:
            counted = _messages(consumer) if plan.how == "messages" else _batches(consumer, plan)
            for count in counted:
                if clock.over(count):
                    return
            consumer.seek_all("earliest")


def _messages(consumer: Consumer) -> Iterator[int]:
    """Message by message: what is counted is what a loop over them can do."""
    count = size = 0
    for message in consumer.read_to_end():
        count += 1
        size += message.offset
        if count == _LOOK_MESSAGES:
            yield count
            count = 0
    yield count
    if not size:
        raise ClientFailed("the topic is empty")


def _batches(consumer: Consumer, plan: Plan) -> Iterator[int]:
    seen = 0
    while seen < plan.messages:
        batch = consumer.poll_batch(_REQUEST_SECONDS_MAX)
        if batch is None:
            raise ClientFailed(f"{seen} of {plan.messages} messages came")
        rows = batch.to_arrow().num_rows if plan.how == "arrow" else len(batch.values())
        if rows != len(batch):
            raise ClientFailed(f"{len(batch)} messages became {rows}")
        seen += rows
        yield rows


async def _consume_in_loop(plan: Plan, clock: _Clock) -> None:
    async with AsyncConsumer(plan.topic, servers=plan.server) as consumer:
        while True:
            async for count in _counted_by(consumer):
                if clock.over(count):
                    return
            await consumer.seek_all("earliest")


async def _counted_by(consumer: AsyncConsumer) -> AsyncIterator[int]:
    count = 0
    async for _ in consumer.read_to_end():
        count += 1
        if count == _LOOK_MESSAGES:
            yield count
            count = 0
    yield count


async def _call(plan: Plan, clock: _Clock) -> None:
    """The plain API: each call brings one message, and is over when the new position is replicated."""
    client = HttpClient()
    target = f"/consumer/consume?topic={plan.topic}&consumer_id="

    async def consume(*numbers: int) -> None:
        while True:
            for number in numbers:
                await client.call(
                    plan.server, "GET", f"{target}{number}", Consumed, seconds_max=_REQUEST_SECONDS_MAX
                )
                if clock.over(1):
                    return

    try:
        if plan.in_turn:
            await consume(*plan.consumers)
        else:
            await asyncio.gather(*(consume(number) for number in plan.consumers))
    finally:
        await client.close()


def main() -> Consumption:
    """What standard input says."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
    clock = _Clock(plan)
    if plan.how == "plain":
        uvloop.run(_call(plan, clock))
    elif plan.how == "async messages":
        uvloop.run(_consume_in_loop(plan, clock))
    else:
        _consume(plan, clock)
    return clock.consumption()


if __name__ == "__main__":
    try:
        consumption = main()
    except (ClientFailed, TalwegError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(msgspec.msgpack.encode(consumption))
