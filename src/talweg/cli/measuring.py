"""What `talweg bench` measures: sending and reading a topic of its own, which goes whatever happens."""

import secrets
from collections.abc import Callable
from functools import partial
from statistics import quantiles
from typing import Final

import msgspec

from talweg.cli.complaints import Failed
from talweg.cli.progress import Stopwatch, progress
from talweg.cli.sending import Sent, open_producer
from talweg.client.admin import Admin
from talweg.client.consumer import Consumer
from talweg.client.producer import Producer

_LIST_MESSAGES: Final = 10_000
_SINGLE_MESSAGES: Final = 200
_WARM_UP_MESSAGES: Final = 20  # the first ones find out who leads
_POLL_SECONDS_MAX: Final = 10.0


class Load(msgspec.Struct, frozen=True):
    """What is sent."""

    messages: int
    size: int  # bytes of each
    partitions: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    messages: int
    message_bytes: int
    partitions: int
    produced_per_second: float  # acknowledged: on disk on a majority
    batches_per_second: float  # messages, read as batches
    messages_per_second: float  # read one after another
    median_ms: float  # from a send to its acknowledgement, one at a time
    slowest_ms: float  # of 100, all but one are faster


def measure(admin: Admin, load: Load, servers: str | None, timeout: float) -> Figures:
    """Create a topic, send, read, delete it. Raises Failed if what is read is not what was sent."""
    topic = f"talweg-bench-{secrets.token_hex(4)}"
    admin.create_topic(topic, load.partitions)
    try:
        with progress("measuring", 3 * load.messages) as advance:
            with open_producer(servers, timeout) as producer:
                produced = _produce(producer, topic, load, advance)
                waits = _single(producer, topic, load)
            expected = load.messages + _SINGLE_MESSAGES + _WARM_UP_MESSAGES
            open_consumer = partial(Consumer, topic, servers=servers, api_timeout_ms=round(timeout * 1000))
            batches = _read_batches(open_consumer, expected, advance)
            messages = _read_messages(open_consumer, expected, advance)
    finally:
        admin.delete_topic(topic)
    hundredths = quantiles(waits, n=100)
    return Figures(
        messages=load.messages,
        message_bytes=load.size,
        partitions=load.partitions,
        produced_per_second=round(produced),
        batches_per_second=round(batches),
        messages_per_second=round(messages),
        median_ms=round(1000 * hundredths[49], 3),
        slowest_ms=round(1000 * hundredths[98], 3),
    )


def _produce(producer: Producer, topic: str, load: Load, advance: Callable[[int], None]) -> float:
    values = _values(load)
    sent = Sent()
    for _ in range(_WARM_UP_MESSAGES):
        producer.send(topic, values[0]).result()
    watch = Stopwatch()
    for begin in range(0, load.messages, _LIST_MESSAGES):
        count = min(_LIST_MESSAGES, load.messages - begin)
        sent.add(producer.send_many(topic, values[:count]))
        advance(count)
    producer.flush()
    sent.finish()
    return load.messages / watch.seconds()


def _values(load: Load) -> list[bytes]:
    """Like lines of a log: each another one, and still much the same."""
    words = b" GET /orders 200 a customer looked at what there is and went away again"
    filling = (words * (load.size // len(words) + 1))[: load.size]
    return [(b"%09d" % number + filling)[: load.size] for number in range(_LIST_MESSAGES)]


def _single(producer: Producer, topic: str, load: Load) -> list[float]:
    value = b"x" * load.size
    waits = []
    for _ in range(_SINGLE_MESSAGES):
        watch = Stopwatch()
        producer.send(topic, value)
        producer.flush()  # without waiting for company
        waits.append(watch.seconds())
    return waits


def _read_batches(
    open_consumer: Callable[[], Consumer], expected: int, advance: Callable[[int], None]
) -> float:
    # With the opening: a consumer reads ahead as soon as it is there.
    watch, read = Stopwatch(), 0
    with open_consumer() as consumer:
        while read < expected:
            batch = consumer.poll_batch(_POLL_SECONDS_MAX)
            if batch is None:
                raise Failed(f"{read} of {expected} messages were read, and no more came")
            batch.to_arrow()
            read += len(batch)
            advance(len(batch))
        return read / watch.seconds()


def _read_messages(
    open_consumer: Callable[[], Consumer], expected: int, advance: Callable[[int], None]
) -> float:
    watch, read = Stopwatch(), 0
    with open_consumer() as consumer:
        for _ in consumer.read_to_end():
            read += 1
        seconds = watch.seconds()
    if read != expected:
        raise Failed(f"{read} of {expected} messages were read")
    advance(read)
    return read / seconds
