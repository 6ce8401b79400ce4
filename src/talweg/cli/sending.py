"""Messages into a topic: what `talweg import` and `talweg topic produce` share."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from talweg.cli.complaints import EXIT_INTERRUPTED, Failed
from talweg.client.delivery import Deliveries, Delivery
from talweg.client.producer import Producer
from talweg.errors import PartitionNotFound, TalwegError, TopicNotFound

if TYPE_CHECKING:
    from talweg.client.admin import Admin


def open_producer(servers: str | None, timeout: float) -> Producer:
    """A producer that gives up after that time, as people at a terminal would."""
    return Producer(servers, delivery_timeout_ms=timeout * 1000, max_block_ms=timeout * 1000)


def ensure_topic(admin: "Admin", topic: str, partition: int | None, *, create: bool) -> None:
    """Raise TopicNotFound or PartitionNotFound unless they are there; with `create`, a topic is made.

    A producer would make the topic by itself. Here that would more often be a slip of the pen.
    """
    try:
        found = len(admin.topic(topic).partitions)
    except TopicNotFound:
        if not create:
            raise TopicNotFound(
                f"there is no topic {topic}: talweg topic create {topic}, or say --create"
            ) from None
        found = admin.create_topic(topic)
    if partition is not None and partition >= found:
        raise PartitionNotFound(f"topic {topic} has no partition {partition}, only 0 to {found - 1}")


class Sent:
    """How much of what was given to a producer has arrived. Forgets what has, so that it stays small."""

    def __init__(self, on_arrival: Callable[[Any], None] | None = None) -> None:
        self._arrived = 0
        self._under_way: deque[Delivery | Deliveries] = deque()
        self._on_arrival = on_arrival  # called with each delivery, in order
        self._error: TalwegError | None = None

    def add(self, delivery: Delivery | Deliveries) -> None:
        """Messages were accepted. Raises why earlier ones could not be delivered."""
        self._under_way.append(delivery)
        self._look()
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Everything is over, one way or the other; raises why it was not delivered."""
        self._look()
        if self._error is not None:
            raise self._error

    def arrived(self) -> int:
        """Messages that are known to be on disk on a majority."""
        self._look()
        return self._arrived

    def interrupted(self) -> Failed:
        """What to say to somebody who pressed Ctrl-C. What was just being accepted may not be counted."""
        return Failed(f"interrupted; at least {self.arrived()} messages were sent", EXIT_INTERRUPTED)

    def _look(self) -> None:
        while self._under_way and self._under_way[0].done():
            delivery = self._under_way.popleft()
            error = delivery.exception()
            if error is not None:
                self._error = self._error or error
                continue
            self._arrived += len(delivery) if isinstance(delivery, Deliveries) else 1
            if self._on_arrival is not None:
                self._on_arrival(delivery)
