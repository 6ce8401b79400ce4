"""`MyProducer`: messages into topics, from any number of threads, each written once."""

import itertools
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from myqueue.answers import Produced
from myqueue.api_handler import TIMEOUT_SECONDS, ApiHandler
from myqueue.heartbeat import Heartbeat
from myqueue.managers import Broker
from talweg.errors import Overloaded, PartitionNotFound, ProducerNotFound

HEARTBEAT_SECONDS: Final = 5.0  # a client that is silent for 30 s is listed as inactive


class MyProducer:
    """Registers for each of its topics, which are created if they are not there. Safe to use from many
    threads.

    A message that was answered for is on disk on a majority of its partition's replicas. One whose answer was
    lost is sent again, for `timeout` seconds in all, and is written once.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        broker: Broker = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._api = ApiHandler(broker, timeout=timeout)
        self._heartbeat = Heartbeat(self._api.producer_heartbeat, heartbeat_seconds)
        self._lock = threading.Lock()  # of registering
        self._outlets: dict[str, _Outlet] = {}
        self._finalizer = weakref.finalize(self, _end, self._heartbeat, self._api)
        try:
            for topic in [topics] if isinstance(topics, str) else topics:
                self.register(topic)
        except BaseException:
            self.close()
            raise

    @property
    def topics(self) -> tuple[str, ...]:
        """What it is registered for."""
        return tuple(self._outlets)

    @property
    def producer_ids(self) -> dict[str, int]:
        """Its number for each of its topics."""
        return {topic: outlet.producer_id for topic, outlet in self._outlets.items()}

    def register(self, topic: str) -> int:
        """Register for one more topic; its number there. The same one if it is registered already."""
        with self._lock:
            outlet = self._outlets.get(topic)
            if outlet is None:
                outlet = self._outlets[topic] = _Outlet(self._api, topic)
                self._heartbeat.add(outlet.producer_id)
            return outlet.producer_id

    def produce(
        self, topic: str, message: str, *, key: str | None = None, partition: int | None = None
    ) -> Produced:
        """Produce a message; where it is. Messages go round robin over the topic's partitions; those with the
        same key go to the same one, in the order in which they were sent.

        Raises ProducerNotFound for a topic that it is not registered for, PartitionNotFound, BodyTooLarge,
        and at the deadline Unavailable, or what says why: the message may then be there or not.
        """
        outlet = self._outlets.get(topic)
        if outlet is None:
            raise ProducerNotFound(f"this producer is not registered for {topic}: register it first")
        return outlet.produce(message, key, partition)

    def close(self) -> None:
        """Fall silent, and let go of all connections. Nothing waits to be sent: `produce` waits itself."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Outlet:
    """One topic. A partition takes one message at a time, because a producer's sequence must grow there: of
    two under way, the second may arrive first, and the other would be refused."""

    def __init__(self, api: ApiHandler, topic: str) -> None:
        self._api = api
        self._topic = topic
        self.producer_id = api.register_producer(topic)
        sizes = [partition.size or 0 for partition in api.list_partitions(topic)]
        self._lanes = [threading.Lock() for _ in sizes]
        self._sequences = itertools.count()
        # Begins where least is written, as managers do: consumers, who read where they have read least, then
        # see the messages of a single producer in their order.
        self._turns = itertools.count(sizes.index(min(sizes)))

    def produce(self, message: str, key: str | None, partition: int | None) -> Produced:
        """Send it when its partition is free."""
        if partition is None:
            partition = (next(self._turns) if key is None else _hash(key)) % len(self._lanes)
        elif not 0 <= partition < len(self._lanes):
            raise PartitionNotFound(f"{self._topic} has no partition {partition}")
        lane = self._lanes[partition]
        deadline = self._api.managers.deadline()
        if not lane.acquire(timeout=self._api.managers.timeout):
            raise Overloaded(f"partition {partition} of {self._topic} is busy: nothing was sent")
        try:
            return self._api.produce(
                self._topic,
                self.producer_id,
                message,
                partition=partition,
                key=key,
                sequence=next(self._sequences),  # here, where nobody can overtake
                deadline=deadline,
            )
        finally:
            lane.release()


def _hash(key: str) -> int:
    """As managers have it, so that a key's messages meet, whoever sends them."""
    import crc32c  # noqa: PLC0415 - most producers have no keys

    return crc32c.crc32c(key.encode())


def _end(heartbeat: Heartbeat, api: ApiHandler) -> None:
    heartbeat.stop()
    api.close()
