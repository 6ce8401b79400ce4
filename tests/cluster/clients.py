"""Producers and consumers as threads, and what must be true of what they saw.

A producer sends one message after the other, numbered, and sends each again with the same sequence until it
is acknowledged. A consumer takes one after the other and never asks twice for the same. Both go to another
manager when one fails them.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from talweg.errors import NoMessage, NotLeader, Overloaded, TalwegError, Unreachable
from talweg.testing.asking import Answer, Asker
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

SURELY_NOT_DONE = (NotLeader, Overloaded, Unreachable)
PAUSE_SECONDS = 0.005  # between a producer's messages: there are two cores, and much else to do
AHEAD_MAX = 200  # messages that the producers of a load are ahead of its consumers, who are slower
SECONDS_MAX = 60.0  # for one message to be acknowledged, whatever happens meanwhile


class Seen(NamedTuple):
    """A message where it is."""

    partition: int
    offset: int
    text: str


class Everywhere:
    """A client of several managers, for one thread: asks the next one when one cannot."""

    def __init__(self, endpoints: Sequence[str], seconds_max: float = 5.0) -> None:
        self._askers = [Asker(endpoint, seconds_max) for endpoint in endpoints]
        self._turn = 0
        self.retries = 0

    @property
    def asker(self) -> Asker:
        return self._askers[self._turn % len(self._askers)]

    def next(self) -> None:
        self._turn += 1
        self.retries += 1
        time.sleep(0.01)

    def post(self, path: str, **body: object) -> Answer:
        """Until it succeeds, or fails for good. For what does no harm when it is done twice."""
        return self._until_done("post", path, body)

    def get(self, path: str, **query: object) -> Answer:
        """Until it succeeds, or fails for good. Not for consuming."""
        return self._until_done("get", path, query)

    def _until_done(self, method: str, path: str, given: dict[str, object]) -> Answer:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                answer: Answer = getattr(self.asker, method)(path, **given)
                return answer
            except TalwegError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            self.next()

    def close(self) -> None:
        for asker in self._askers:
            asker.close()


class _Client(threading.Thread):
    def __init__(self, endpoints: Sequence[str], topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.client = Everywhere(endpoints)
        self.error: Exception | None = None
        self.done = threading.Event()  # set from outside: finish what is under way, and end

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - told by whoever joins
            self.error = error
        finally:
            self.client.close()

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.done.set()
        self.join(SECONDS_MAX + 10)
        assert not self.is_alive(), f"{self} hangs"
        if self.error is not None:
            raise self.error


class Producer(_Client):
    """Sends `NAME:0`, `NAME:1`… until it is done; `acknowledged` has them where they were written."""

    def __init__(
        self,
        endpoints: Sequence[str],
        topic: str,
        name: str,
        count: int | None = None,
        *,
        is_ahead: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(endpoints, topic)
        self.label = name
        self.count = count
        self.is_ahead = is_ahead  # whether it should wait for the others
        self.acknowledged: list[Seen] = []

    def work(self) -> None:
        number = self.client.post("/producer/register", topic=self.topic)["producer_id"]
        for sequence in itertools.count():
            if self.done.is_set() or sequence == self.count:
                return
            text = f"{self.label}:{sequence}"
            answer = self.client.post(
                "/producer/produce", topic=self.topic, producer_id=number, message=text, sequence=sequence
            )
            self.acknowledged.append(Seen(answer["partition"], answer["offset"], text))
            while not self.done.wait(PAUSE_SECONDS) and self.is_ahead():
                pass


class Consumer(_Client):
    """Takes messages until it is done and, after that, until none is left."""

    def __init__(self, endpoints: Sequence[str], topic: str, *, pause_seconds: float = 0.0) -> None:
        super().__init__(endpoints, topic)
        self.pause_seconds = pause_seconds
        self.seen: list[Seen] = []
        self.lost_answers = 0  # of requests that may have been carried out
        self.number: int | None = None

    def register(self) -> None:
        """Become one, if it is none yet."""
        if self.number is None:
            self.number = self.client.post("/consumer/register", topic=self.topic)["consumer_id"]

    def wait_for(self, messages: int) -> None:
        """Until it has seen so many."""
        wait_until(lambda: self.error is not None or len(self.seen) >= messages, "messages", SECONDS_MAX)
        assert self.error is None, repr(self.error)

    def work(self) -> None:
        self.register()
        deadline = None
        while True:
            if self.done.is_set() and deadline is None:
                deadline = time.monotonic() + SECONDS_MAX
            try:
                answer = self.client.asker.get(
                    "/consumer/consume", topic=self.topic, consumer_id=self.number, wait_ms=50
                )
            except NoMessage:
                if self.done.is_set():
                    return
                continue
            except TalwegError as error:
                if not error.retriable or (deadline is not None and time.monotonic() > deadline):
                    raise
                self.lost_answers += not isinstance(error, SURELY_NOT_DONE)
                self.client.next()
                continue
            self.seen.append(Seen(answer["partition"], answer["offset"], answer["message"]))
            if self.pause_seconds:
                self.done.wait(self.pause_seconds)


class Load:
    """Producers and consumers on one topic, from `with` to its end; then everything is checked."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        *,
        producers: int = 4,
        consumers: int = 2,
        partitions: int = 4,
        managers: Sequence[str] | None = None,
        count: int | None = None,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        endpoints = [cluster.endpoint(name) for name in managers or cluster.managers]
        client = Everywhere(endpoints)
        client.post("/topics", name=topic, partitions=partitions)
        client.close()
        self.endpoints = endpoints
        self.producers = [
            Producer(_rotated(endpoints, index), topic, f"p{index}", count, is_ahead=self._is_ahead)
            for index in range(producers)
        ]
        self.consumers = [Consumer(_rotated(endpoints, index), topic) for index in range(consumers)]

    def __enter__(self) -> "Load":
        for thread in (*self.producers, *self.consumers):
            thread.start()
        self.wait_for_progress(5)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for thread in (*self.producers, *self.consumers):
            thread.done.set()
        if error is None:
            self.finish()

    @property
    def acknowledged(self) -> int:
        return sum(len(producer.acknowledged) for producer in self.producers)

    def _is_ahead(self) -> bool:
        # What is left at the end takes a test longer to read than anything else that it does.
        return self.acknowledged > AHEAD_MAX + min(len(consumer.seen) for consumer in self.consumers)

    def wait_for_progress(self, messages: int = 20, seconds_max: float = SECONDS_MAX) -> None:
        """Every producer gets so many more acknowledged, and every consumer sees something new."""
        wanted = [(producer.acknowledged, messages) for producer in self.producers]
        wanted += [(consumer.seen, 1) for consumer in self.consumers]
        wanted = [(seen, len(seen) + more) for seen, more in wanted]
        deadline = time.monotonic() + seconds_max
        while any(len(seen) < count for seen, count in wanted):
            for thread in (*self.producers, *self.consumers):
                assert thread.error is None, repr(thread.error)
            stuck = [f"{len(seen)}/{count}" for seen, count in wanted]
            assert time.monotonic() < deadline, f"no progress in {seconds_max} s: {stuck}"
            time.sleep(0.01)

    def finish(self) -> None:
        """Stop, read everything from the beginning, and compare."""
        for producer in self.producers:
            producer.finish()
        for consumer in self.consumers:
            consumer.finish()
        self.check()

    def check(self) -> None:
        acknowledged = sorted(seen for producer in self.producers for seen in producer.acknowledged)
        everything = sorted(read_all(self.endpoints, self.topic))
        check_log(everything)
        assert everything == acknowledged, _difference(everything, acknowledged)
        for consumer in self.consumers:
            check_log_of_consumer(consumer, acknowledged)


def read_all(endpoints: Sequence[str], topic: str) -> list[Seen]:
    """All messages of a topic, by a consumer of its own. Nothing fails meanwhile, so none may be missing."""
    consumer = Consumer(endpoints, topic)
    consumer.done.set()
    consumer.run()
    if consumer.error is not None:
        raise consumer.error
    assert consumer.lost_answers == 0
    return consumer.seen


def check_log(seen: Sequence[Seen]) -> None:
    """No message twice, no offset missing, and each producer's messages in the order they were sent."""
    texts = [message.text for message in seen]
    assert len(texts) == len(set(texts)), "a message is there twice"
    by_partition: dict[int, list[Seen]] = defaultdict(list)
    for message in sorted(seen):
        by_partition[message.partition].append(message)
    for messages in by_partition.values():
        assert [message.offset for message in messages] == list(range(len(messages)))
        check_order(messages)


def check_order(messages: Sequence[Seen]) -> None:
    """Each producer's messages, in one partition, in the order they were sent."""
    last: dict[str, int] = {}
    for message in messages:
        name, _, number = message.text.partition(":")
        assert int(number) > last.get(name, -1), f"{message} is out of order"
        last[name] = int(number)


def check_log_of_consumer(consumer: Consumer, acknowledged: Sequence[Seen]) -> None:
    """It saw nothing twice, nothing out of order, nothing else; and missed only what answers were lost of."""
    by_partition: dict[int, list[Seen]] = defaultdict(list)
    for message in consumer.seen:
        by_partition[message.partition].append(message)
    for messages in by_partition.values():
        offsets = [message.offset for message in messages]
        assert offsets == sorted(set(offsets)), "a message was given twice, or a position went back"
        check_order(messages)
    assert set(consumer.seen) <= set(acknowledged)
    missed = set(acknowledged) - set(consumer.seen)
    assert len(missed) <= consumer.lost_answers, f"{len(missed)} missed, {consumer.lost_answers} answers lost"


def _rotated(endpoints: Sequence[str], by: int) -> list[str]:
    by %= len(endpoints)
    return [*endpoints[by:], *endpoints[:by]]


def _difference(everything: Sequence[Seen], acknowledged: Sequence[Seen]) -> str:
    lost = sorted(set(acknowledged) - set(everything))
    strange = sorted(set(everything) - set(acknowledged))
    return f"{len(lost)} lost: {lost[:5]}; {len(strange)} that nobody was told of: {strange[:5]}"
