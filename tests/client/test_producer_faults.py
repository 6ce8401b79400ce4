"""Brokers and managers fail while a producer sends: nothing is lost, nothing there twice, order is kept."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from client.producing import FACES, closing, read_topic, values_of
from talweg.client.cluster import Cluster
from talweg.client.delivery import Delivery, wait_in_loop
from talweg.client.draft import draft
from talweg.client.producer import Producer
from talweg.client.producer_settings import read_settings
from talweg.client.sending import Sending, Wanted
from talweg.errors import (
    DeliveryFailed,
    NotFound,
    OutOfSequence,
    Overloaded,
    TalwegError,
    Unavailable,
    Undecided,
    Unreachable,
)
from talweg.http import HttpResponse
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


class Load:
    """A thread that sends numbered messages, one after another, until it is told to stop."""

    def __init__(self, producer: Any, topic: str) -> None:
        self.deliveries: list[Delivery] = []
        self._producer = producer
        self._topic = topic
        self._over = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over:
            self.deliveries.append(self._producer.send(self._topic, b"%d" % len(self.deliveries)))
            if len(self.deliveries) % 50 == 0:
                time.sleep(0.001)  # some thousands a second are enough

    def wait_for_progress(self) -> None:
        """What is sent from now on is delivered."""
        sent = len(self.deliveries)
        wait_until(lambda: len(self.deliveries) > sent, "a message to be sent", 30)
        self.deliveries[sent].result(60)

    def stop(self) -> None:
        self._over = True
        self._thread.join()


@contextmanager
def load(face: Any, servers: list[str], topic: str) -> Iterator[Load]:
    """At its end everything that was sent is there once, in order, where its delivery says."""
    with closing(face(servers, request_timeout_ms=1500, batch_bytes=20_000)) as producer:
        producer.send_many(topic, [])
        running = Load(producer, topic)
        try:
            running.wait_for_progress()
            yield running
            running.wait_for_progress()
        finally:
            running.stop()
    log = read_topic(servers, topic)
    numbers = [[int(value or b"") for value in values_of(messages)] for messages in log]
    assert all(partition == sorted(partition) for partition in numbers)
    assert sorted(itertools.chain(*numbers)) == list(range(len(running.deliveries)))
    for number, delivery in enumerate(running.deliveries):
        sent = delivery.result(0)
        assert sent.offset is not None
        assert log[sent.partition][sent.offset].value == b"%d" % number


def test_a_leader_is_killed(face: Any, cluster: LocalCluster, servers: list[str], topic: str) -> None:
    with load(face, servers, topic) as running:
        leader = cluster.wait_for_leader(topic, 0)
        cluster.kill(leader)
        running.wait_for_progress()
        cluster.restart(leader)


def test_a_leader_is_paused(face: Any, cluster: LocalCluster, servers: list[str], topic: str) -> None:
    with load(face, servers, topic) as running:
        leader = cluster.wait_for_leader(topic, 0)
        cluster.pause(leader)
        cluster.wait_for_leader(topic, 0, other_than=leader)
        running.wait_for_progress()
        cluster.resume(leader)


def test_the_primary_is_killed(face: Any, cluster: LocalCluster, servers: list[str], topic: str) -> None:
    with load(face, servers, topic) as running:
        cluster.kill(cluster.primary)
        running.wait_for_progress()
        leader = cluster.wait_for_leader(topic, 0)
        cluster.kill(leader)
        running.wait_for_progress()
        cluster.restart(cluster.primary, leader)


def test_all_brokers_are_killed_and_come_back(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with load(face, servers, topic):
        cluster.kill(*cluster.brokers)
        cluster.restart(*cluster.brokers)


def test_time_is_up_while_all_brokers_are_down_and_then_it_goes_on(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with closing(face(servers, delivery_timeout_ms=700, request_timeout_ms=500)) as producer:
        before = producer.send(topic, b"before", partition=0)
        producer.flush()
        cluster.kill(*cluster.brokers)
        lost = [producer.send(topic, b"lost", partition=number % 4) for number in range(8)]
        looked_at = producer.send(topic, b"looked at", partition=0)
        with pytest.raises(DeliveryFailed, match="9 messages were accepted and not delivered") as failed:
            producer.flush()
        assert failed.value.count == 9
        assert isinstance(failed.value.first, Unavailable)
        producer.flush()  # it was said once
        for delivery in (*lost, looked_at):
            error = delivery.exception()
            assert error is not None
            assert "delivery_timeout_ms (700)" in str(error)
            with pytest.raises(Unavailable, match="topic-"):
                delivery.result()
        cluster.restart(*cluster.brokers)
        cluster.wait_for_leader(topic, 0)

        def delivered() -> bool:
            after = producer.send(topic, b"after", partition=0)
            try:
                producer.flush()
            except DeliveryFailed:
                return False  # leaders are still being elected
            return after.result().offset is not None

        wait_until(delivered, "a message to be delivered", 30)
    values = values_of(read_topic(servers, topic)[0])
    assert values[0] == b"before"
    assert values[-1] == b"after"
    assert before.result().offset == 0


def test_failures_that_somebody_looked_at_are_not_told_again(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with Producer(servers, delivery_timeout_ms=500) as producer:
        producer.send(topic, b"before")
        producer.flush()
        cluster.kill(*cluster.brokers)
        first = producer.send(topic, b"a")
        second = producer.send(topic, b"b")
        many = producer.send_many(topic, [b"c"] * 100)
        assert first.exception() is not None
        assert many.exception() is not None
        with pytest.raises(DeliveryFailed, match="1 message was"):
            producer.flush()
        assert second.exception() is not None


def test_a_full_buffer_makes_send_wait_and_then_says_so(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    settings = {
        "buffer_bytes": 50_000,
        "batch_bytes": 10_000,
        "max_block_ms": 300,
        "delivery_timeout_ms": 20_000,
    }
    with Producer(servers) as first:  # a busy machine may take its time to create a topic
        first.send(topic, b"first", partition=0)
    with closing(face(servers, **settings)) as producer:
        wait_until(lambda: _sent(producer, topic, b"second"), "the producer to be known", 30)
        producer.flush()
        leader = cluster.wait_for_leader(topic, 0)
        paused = [name for name in cluster.brokers if name != leader]
        for name in paused:
            cluster.pause(name)
        accepted = [b"first", b"second"]
        many = [b"%0900d" % number for number in range(100)]
        with pytest.raises(Overloaded, match="of 100 messages were accepted") as halfway:
            producer.send_many(topic, many, partition=0)
        assert 20 <= (halfway.value.accepted or 0) <= 55
        accepted += many[: halfway.value.accepted]

        def fill() -> None:
            while True:
                value = b"%0900d" % len(accepted)
                producer.send(topic, value, partition=0)
                accepted.append(value)

        began = time.monotonic()
        with pytest.raises(Overloaded, match=r"50000 bytes \(buffer_bytes\).*max_block_ms \(300\)"):
            fill()
        assert time.monotonic() - began >= 0.3
        assert 40 <= len(accepted) <= 60, "it takes what it has room for, and no more"
        with pytest.raises(Overloaded, match="0 of 10 messages were accepted") as none:
            producer.send_many(topic, many[:10], partition=0)
        assert none.value.accepted == 0
        assert none.value.rest.column("value").to_pylist() == many[:10]
        for name in paused:
            cluster.resume(name)
        _send_rest(producer, topic, halfway.value.rest)
        accepted += many[halfway.value.accepted :]
        for _ in range(100):  # waits as often as it must
            value = b"%0900d" % len(accepted)
            wait_until(lambda value=value: _sent(producer, topic, value), "room", 30)  # type: ignore[misc]
            accepted.append(value)
    assert values_of(read_topic(servers, topic)[0]) == accepted


def _send_rest(producer: Any, topic: str, rest: Any) -> None:
    """As a program would: a busy machine may not have room for all of it within max_block_ms."""
    while True:
        try:
            producer.send_arrow(topic, rest, partition=0)
        except Overloaded as error:
            rest = error.rest
        else:
            return


def _sent(producer: Any, topic: str, value: bytes) -> bool:
    try:
        producer.send(topic, value, partition=0)
    except Unavailable:
        return False
    return True


def test_closing_gives_up_in_time_and_says_what_was_not_delivered(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    producer = face(servers)
    producer.send(topic, b"first", partition=0)
    producer.flush()
    cluster.kill(*cluster.brokers)
    delivery = producer.send(topic, b"a", partition=0)
    with pytest.raises(DeliveryFailed, match="1 message was"):
        producer.close(timeout=0.3)
    error = delivery.exception(0)
    assert isinstance(error, Undecided)
    assert "the producer was closed before an answer came" in str(error)
    assert "delivery_timeout_ms" not in str(error), "it was not that"


def test_acks_0_does_not_hide_what_was_lost(cluster: LocalCluster, servers: list[str], topic: str) -> None:
    producer = Producer(servers, acks=0, delivery_timeout_ms=500)
    producer.send(topic, b"first", partition=0)
    producer.flush()
    cluster.kill(*cluster.brokers)
    producer.send(topic, b"a", partition=0)
    with pytest.raises(DeliveryFailed, match="1 message was"):
        producer.close()


def test_a_topic_that_was_made_anew_is_written_to(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with closing(face(servers, delivery_timeout_ms=20_000)) as producer:
        for number in range(10):
            producer.send(topic, b"old %d" % number, partition=0)
            producer.flush()
        with cluster.ask() as manager:
            manager.delete(f"/topics/{topic}")
            manager.post("/topics", name=topic, partitions=4, replication=3)
        cluster.wait_for_leader(topic, 0)
        new = [producer.send(topic, b"new %d" % number, partition=0) for number in range(10)]
        producer.flush()
    assert values_of(read_topic(servers, topic)[0]) == [b"new %d" % number for number in range(10)]
    assert [delivery.result().offset for delivery in new] == list(range(10))


def test_a_topic_that_was_deleted_fails_and_the_next_message_creates_it(
    face: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with closing(face(servers, delivery_timeout_ms=20_000)) as producer:
        producer.send(topic, b"old", partition=0)
        producer.flush()
        with cluster.ask() as manager:
            manager.delete(f"/topics/{topic}")
        lost: list[Delivery] = []

        def fails() -> bool:
            lost.append(producer.send(topic, b"lost", partition=0))
            try:
                producer.flush()
            except DeliveryFailed as failed:
                return "no topic" in str(failed)
            return False  # brokers have yet to hear that the topic is no more

        wait_until(fails, "the topic to be gone", 30)
        assert isinstance(lost[-1].exception(0), NotFound)
        producer.send(topic, b"new", partition=0)
        producer.flush()
    assert values_of(read_topic(servers, topic)[0]) == [b"new"]


def test_managers_that_cannot_be_reached_fail_the_first_send(face: Any, topic: str) -> None:
    with closing(face("127.0.0.1:1", max_block_ms=300)) as producer:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
            producer.send(topic, b"a")
        with pytest.raises(Unreachable):
            producer.send_many(topic, [b"a"] * 100, keys=[b"k"] * 100)


class LossyCluster(Cluster):
    """Carries requests to leaders out, and loses some of the answers."""

    def __init__(self, servers: list[str], loses: Callable[[int], bool]) -> None:
        super().__init__(servers)
        self.asked = 0
        self._loses = loses

    async def ask_leader(self, *arguments: Any, repeatable: bool = True, **named: Any) -> HttpResponse:
        deadline = time.monotonic() + named["seconds_max"]
        while True:
            self.asked += 1
            answer = await super().ask_leader(*arguments, repeatable=repeatable, **named)
            if not self._loses(self.asked):
                return answer
            if not repeatable or time.monotonic() > deadline:
                raise Unavailable("the answer was lost")
            await asyncio.sleep(0.02)


def play(
    servers: list[str],
    topic: str,
    loses: Callable[[int], bool],
    batches: int,
    *,
    delivery_timeout_ms: int = 5_000,
    first_is_over: Callable[[], None] = lambda: None,
) -> list[TalwegError | int]:
    """Send batches of one message each, the first one alone; where each stands, or why it does not."""

    async def main() -> list[TalwegError | int]:
        settings = read_settings(
            acks="all",
            linger_ms=0,
            batch_bytes=60,  # a batch for each message
            compression="lz4",
            buffer_bytes=1 << 20,
            max_block_ms=10_000,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=5_000,
            message_bytes_max=1000,
        )
        cluster = LossyCluster(servers, loses)
        failed: list[Any] = []
        sending = Sending(cluster, settings, failed.append)
        try:
            await sending.register(topic)
            fates = []
            for number in range(batches):
                made = draft(b"%016d" % number, None, 0, None, None, message_bytes_max=1000)
                accepted = sending.accept(topic, made)
                assert not isinstance(accepted, Wanted)
                fates.append(accepted[0])
                if accepted[2] is not None:
                    sending.encode(accepted[2])
                if not number:
                    await wait_in_loop(fates)
                    first_is_over()
            await wait_in_loop(fates)
            assert [fate for fate in fates if fate.error] == failed
            return [fate.error or fate.first_offset or 0 for fate in fates]
        finally:
            await sending.close()
            await cluster.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "loses",
    [
        pytest.param(lambda asked: asked == 1, id="the first"),
        pytest.param(lambda asked: asked % 2 == 1, id="every second"),
        pytest.param(lambda asked: asked % 5 != 0, id="most"),
    ],
)
def test_what_is_sent_again_after_a_lost_answer_is_written_once(
    servers: list[str], topic: str, loses: Callable[[int], bool]
) -> None:
    offsets = play(servers, topic, loses, batches=30)
    assert offsets == list(range(30))
    assert values_of(read_topic(servers, topic)[0]) == [b"%016d" % number for number in range(30)]


def test_what_comes_behind_a_message_in_doubt_is_not_taken_for_it(servers: list[str], topic: str) -> None:
    over: list[int] = []  # how often it was asked until the first one was given up
    times = 0

    def loses(asked: int) -> bool:
        nonlocal times
        times += 1
        return not over or times <= over[0] + 3

    lost, *rest = play(
        servers, topic, loses, 10, delivery_timeout_ms=2_000, first_is_over=lambda: over.append(times)
    )
    assert isinstance(lost, Undecided)
    assert "may have been written" in str(lost)
    assert rest == list(range(1, 10))
    assert values_of(read_topic(servers, topic)[0]) == [b"%016d" % number for number in range(10)]


def test_a_message_in_doubt_is_not_sent_under_another_name(servers: list[str], topic: str) -> None:
    """A partition that has forgotten who sent it would take it for another."""

    def loses(asked: int) -> bool:
        if asked == 2:
            raise OutOfSequence("expected 5")
        return asked == 1

    lost, *rest = play(servers, topic, loses, 3)
    assert isinstance(lost, OutOfSequence)
    assert rest == [1, 2]
    assert values_of(read_topic(servers, topic)[0]) == [b"%016d" % number for number in range(3)]
