"""`MyConsumer`: messages out of topics, from their end on, each once."""

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from myqueue.answers import Message
from myqueue.api_handler import TIMEOUT_SECONDS, ApiHandler
from myqueue.heartbeat import Heartbeat
from myqueue.inlet import Inlet
from myqueue.managers import Broker
from talweg.errors import ConsumerNotFound

HEARTBEAT_SECONDS: Final = 5.0  # a client that is silent for 30 s is listed as inactive
_LOOK_SECONDS: Final = 0.2  # for one topic of several, while nothing is there in any of them


class MyConsumer:
    """Registers for each of its topics, which must be there, and is given what is produced from then on.
    Safe to use from many threads: each message is given to one of them.

    With `start="earliest"`, or a moment, it begins there instead; with `partition` it reads only that one. An
    answer that was lost is asked for again, for `timeout` seconds in all; no message is lost with it.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        broker: Broker = None,
        *,
        start: str | int = "latest",
        partition: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._start = start
        self._partition = partition
        self._api = ApiHandler(broker, timeout=timeout)
        self._heartbeat = Heartbeat(self._api.consumer_heartbeat, heartbeat_seconds)
        self._lock = threading.Lock()  # of registering, and of whose turn it is
        self._inlets: dict[str, Inlet] = {}
        self._turn = 0
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
        return tuple(self._inlets)

    @property
    def consumer_ids(self) -> dict[str, int]:
        """Its number for each of its topics."""
        return {topic: inlet.consumer_id for topic, inlet in self._inlets.items()}

    def register(self, topic: str) -> int:
        """Register for one more topic; its number there. The same one if it is registered already. Raises
        TopicNotFound and PartitionNotFound."""
        with self._lock:
            inlet = self._inlets.get(topic)
            if inlet is None:
                inlet = self._inlets[topic] = Inlet(self._api, topic, self._partition, self._start)
                self._heartbeat.add(inlet.consumer_id)
            return inlet.consumer_id

    def consume(self, topic: str | None = None, *, wait_seconds: float = 0.0) -> Message | None:
        """The next message of a topic, or of any of its topics in turn; None if there is none, also after the
        wait. Raises ConsumerNotFound for a topic that it is not registered for, and at the deadline
        Unavailable, or what says why."""
        wait_until = time.monotonic() + wait_seconds
        if topic is None and len(self._inlets) == 1:
            (topic,) = self._inlets
        if topic is not None:
            return self._inlet(topic).consume(wait_until)
        while True:
            inlets = self._in_turn()
            for inlet in inlets:
                message = inlet.consume(0.0)
                if message is not None:
                    return message
            now = time.monotonic()
            if now >= wait_until or not inlets:
                return None
            message = inlets[0].consume(min(wait_until, now + _LOOK_SECONDS))
            if message is not None:
                return message

    def messages(self, *, idle_seconds: float | None = None) -> Iterator[Message]:
        """Messages of all its topics as they come; ends when none came for so long, or when it is closed."""
        idle_since = time.monotonic()
        while not self._api.managers.closing.is_set():
            try:
                message = self.consume(wait_seconds=1.0 if idle_seconds is None else min(idle_seconds, 1.0))
            except RuntimeError:
                if self._api.managers.closing.is_set():
                    return
                raise
            if message is not None:
                yield message
                idle_since = time.monotonic()
            elif idle_seconds is not None and time.monotonic() - idle_since >= idle_seconds:
                return

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def size(self, topic: str | None = None, *, partition: int | None = None) -> int:
        """How many messages it has not read: of a topic or of all, of a partition or of all."""
        topics = self.topics if topic is None else (topic,)
        return sum(self._api.size(t, self._inlet(t).consumer_id, partition=partition) for t in topics)

    def close(self) -> None:
        """Fall silent, and let go of all connections. A consume that waits ends."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _inlet(self, topic: str) -> Inlet:
        inlet = self._inlets.get(topic)
        if inlet is None:
            raise ConsumerNotFound(f"this consumer is not registered for {topic}: register it first")
        return inlet

    def _in_turn(self) -> list[Inlet]:
        with self._lock:
            inlets = list(self._inlets.values())
            self._turn += 1
            first = self._turn % len(inlets) if inlets else 0
        return inlets[first:] + inlets[:first]


def _end(heartbeat: Heartbeat, api: ApiHandler) -> None:
    heartbeat.stop()
    api.close()
