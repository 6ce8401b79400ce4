"""Ctrl-C, forks, and programs that end without closing their producer."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

import pytest

from client.producing import read_topic, values_of
from talweg.client.async_producer import AsyncProducer
from talweg.client.delivery import Delivery
from talweg.client.draft import draft
from talweg.client.gathered import Gathered, Lane
from talweg.client.producer import Producer
from talweg.client.producer_settings import read_settings
from talweg.records import Batch, Codec
from talweg.testing.cluster import LocalCluster


def run(program: str, servers: list[str], topic: str) -> subprocess.CompletedProcess[str]:
    head = "import sys\nfrom talweg.client.producer import Producer\nservers, topic = sys.argv[1:]\n"
    return subprocess.run(
        [sys.executable, "-c", head + program, ",".join(servers), topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_program_that_ends_without_closing_delivers_what_it_sent(servers: list[str], topic: str) -> None:
    program = """
producer = Producer(servers, linger_ms=60_000)
for number in range(20_000):
    producer.send(topic, b"%0100d" % number, partition=0)
producer.send_many(topic, [b"%0100d" % number for number in range(20_000, 30_000)], partition=0)
"""
    ended = run(program, servers, topic)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert values_of(read_topic(servers, topic)[0]) == [b"%0100d" % number for number in range(30_000)]


def test_a_program_that_ends_says_what_it_could_not_deliver(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"first")
    cluster.kill(*cluster.brokers)
    program = """
producer = Producer(servers, delivery_timeout_ms=500)
for number in range(3):
    producer.send(topic, b"lost")
"""
    ended = run(program, servers, topic)
    assert re.search("3 messages were accepted and not delivered.*delivery_timeout_ms", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_an_asynchronous_program_that_ends_says_what_it_did_not_deliver(
    servers: list[str], topic: str
) -> None:
    program = """
import asyncio
from talweg.client.async_producer import AsyncProducer
async def main():
    producer = AsyncProducer(servers, linger_ms=60_000)
    await producer.send(topic, b"lost")
    await producer.send(topic, b"lost")
asyncio.run(main())
"""
    ended = run(program, servers, topic)
    assert "a producer was not closed, and 2 messages were not delivered" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_asynchronous_producer_that_is_forgotten_delivers_and_is_complained_about(
    servers: list[str], topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def send_and_forget_it() -> Delivery:
        return await AsyncProducer(servers, linger_ms=60_000).send(topic, b"a", partition=0)

    async def test() -> None:
        before = len(asyncio.all_tasks())
        with pytest.warns(ResourceWarning, match="a producer was not closed"):
            delivery = await send_and_forget_it()
        async with asyncio.timeout(30):
            assert (await delivery).offset == 0
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nobody else hears of their end
                await asyncio.sleep(0.01)

    asyncio.run(test())
    assert capsys.readouterr().err == ""


def test_a_producer_that_is_forgotten_delivers_and_is_complained_about(
    servers: list[str], topic: str
) -> None:
    producer = Producer(servers, linger_ms=60_000)
    delivery = producer.send(topic, b"a", partition=0)
    kept = [producer]
    del producer
    with pytest.warns(ResourceWarning, match="not closed"):
        kept.clear()
    assert delivery.result(30).offset == 0


class Interrupting(list[bytes | None]):
    """A list to which the second element is added at the second attempt."""

    attempts = 0

    def append(self, element: bytes | None) -> None:
        self.attempts += 1
        if self.attempts == 2:
            raise KeyboardInterrupt
        super().append(element)


def test_a_key_whose_message_was_interrupted_goes_to_no_other() -> None:
    settings = read_settings(**dict(Producer.__init__.__kwdefaults__ or {}))
    loop = asyncio.new_event_loop()
    batch = Gathered(Lane("logs", 0, 1, 1), loop, settings)
    loop.close()
    batch.values = Interrupting()
    for value in (b"a", b"b", b"c"):
        message = draft(value, value, None, ord(value), {"h": value}, message_bytes_max=100)
        with suppress(KeyboardInterrupt):
            batch.append(message)
    batch.encode(Codec.NONE)
    assert isinstance(batch.frame, bytes)
    read = Batch.from_frame(batch.frame)
    found = [(each.value, each.key, each.timestamp, dict(each.headers)) for each in map(read.message, (0, 1))]
    assert found == [(b"a", b"a", 97, {"h": b"a"}), (b"c", b"c", 99, {"h": b"c"})]


def test_what_is_added_to_what_is_gone_does_not_count() -> None:
    settings = read_settings(**dict(Producer.__init__.__kwdefaults__ or {}))
    loop = asyncio.new_event_loop()
    batch = Gathered(Lane("logs", 0, 1, 1), loop, settings)
    loop.close()
    batch.values.append(b"a")
    batch.fix_count()
    before = batch.values
    batch.let_go()
    batch.values.append(b"b")
    assert batch.counted(before, 0)
    assert not batch.counted(batch.values, 0)


# An interrupt that strikes in a weak reference's callback is swallowed by Python itself, with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_it_usable(servers: list[str], topic: str) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    accepted: list[tuple[int, Delivery]] = []
    tried = interrupted = 0

    def send_until_interrupted() -> None:
        # A function: Python may let an interrupt at a loop's jump back slip past a try around that loop.
        nonlocal tried
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)
        for _ in range(20_000):
            tried += 1
            key = b"key" if tried % 3 == 0 else None
            accepted.append((tried, producer.send(topic, b"%d" % tried, partition=0, key=key)))
            if tried % 1000 == 0:
                producer.flush()

    try:
        with Producer(servers, linger_ms=1, batch_bytes=5_000, buffer_bytes=100_000) as producer:
            producer.send(topic, b"-1", partition=0).result()
            for _ in range(60):
                try:
                    send_until_interrupted()
                except KeyboardInterrupt:
                    interrupted += 1
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            producer.flush(30)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    messages = read_topic(servers, topic)[0][1:]
    numbers = [int(message.value or b"") for message in messages]
    assert numbers == sorted(set(numbers)), "in order, and nothing twice"
    assert {number for number, _ in accepted} <= set(numbers), "what was accepted is there"
    assert len(numbers) <= len(accepted) + interrupted
    for message in messages:
        assert (message.key == b"key") == (int(message.value or b"") % 3 == 0), "each with its own key"


def test_a_fork_says_that_it_cannot_use_it_and_the_parent_goes_on(servers: list[str], topic: str) -> None:
    program = """
import os, warnings
from talweg.errors import Unavailable
producer = Producer(servers, linger_ms=60_000)
delivery = producer.send(topic, b"parent 1", partition=0)
warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads is forked is the point
child = os.fork()
if not child:
    said = []
    for attempt in (
        lambda: producer.send(topic, b"child", partition=0),
        lambda: producer.send_many(topic, [b"child"] * 100),
        lambda: delivery.result(5),
        lambda: producer.flush(5),
    ):
        try:
            attempt()
        except Unavailable as error:
            said.append("fork" in str(error))
    producer.close()
    sys.exit(0 if said == [True] * 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send(topic, b"parent 2", partition=0)
producer.close()
assert delivery.result(0).offset == 0
"""
    ended = run(program, servers, topic)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values_of(read_topic(servers, topic)[0]) == [b"parent 1", b"parent 2"]
