"""Administration for programs that block: topics, brokers, and who has read how far."""

import os
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from talweg.client.async_admin import AsyncAdmin, read_timeout
from talweg.client.background import Background
from talweg.client.description import (
    ClusterStatus,
    ConsumerListing,
    ManagerDescription,
    TopicDescription,
)
from talweg.client.dropped import end_in_thread
from talweg.client.offsets import Where
from talweg.client.servers import Servers, read_servers
from talweg.errors import Unavailable
from talweg.protocol.plain import BrokerShown, ClientShown

A = TypeVar("A")


class Admin:
    """Any number of threads may use it. Everything is tried again, for `timeout` seconds at most."""

    _closed = True  # until there is something to close

    def __init__(self, servers: Servers = None, *, timeout: float = 30.0) -> None:
        known, seconds_max = read_servers(servers), read_timeout(timeout)
        self._process = os.getpid()
        self._background = Background("talweg admin")
        self._admin = self._background.run(_begin(known, seconds_max))
        self._closed = False

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._closed = True
        with suppress(Unavailable):  # it is closed already
            self._background.run(self._admin.close())
        self._background.close()

    def __del__(self) -> None:
        if not self._closed and os.getpid() == self._process:
            end_in_thread(self, "an Admin", self._background, self._admin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, A]) -> A:
        return self._background.run(work)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication: int | None = None,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> int:
        """Create a topic; how many partitions it has. What is not given is as the managers' settings say.

        Raises TopicExists, BadTopicName, TooFewBrokers and TooManyPartitions.
        """
        return self._run(
            self._admin.create_topic(
                name, partitions, replication, retention_ms=retention_ms, retention_bytes=retention_bytes
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it; raises TopicNotFound."""
        self._run(self._admin.delete_topic(name))

    def topics(self) -> list[str]:
        """The names of all topics, in order."""
        return self._run(self._admin.topics())

    def topic(self, name: str) -> TopicDescription:
        """A topic with its partitions: who leads, who carries them, what they hold. Raises TopicNotFound."""
        return self._run(self._admin.topic(name))

    def offsets(self, topic: str, at: Where) -> dict[int, int]:
        """By partition: `earliest`, `latest`, or the first message not older than a moment."""
        return self._run(self._admin.offsets(topic, at))

    # Brokers and managers

    def brokers(self) -> list[BrokerShown]:
        """All brokers, by number."""
        return self._run(self._admin.brokers())

    def add_broker(self, endpoint: str) -> int:
        """Add a broker that runs there; its number, the same again for one that is known."""
        return self._run(self._admin.add_broker(endpoint))

    def remove_broker(self, broker_id: int) -> str:
        """Move everything away from a broker, then remove it; what becomes of it. It returns before that.

        Raises BrokerNotFound and NowhereToMove.
        """
        return self._run(self._admin.remove_broker(broker_id))

    def activate_broker(self, broker_id: int) -> None:
        """Let a broker have partitions and lead. Raises BrokerNotFound."""
        self._run(self._admin.activate_broker(broker_id))

    def deactivate_broker(self, broker_id: int) -> None:
        """Give a broker no new partitions, and let others lead. Raises BrokerNotFound."""
        self._run(self._admin.deactivate_broker(broker_id))

    def managers(self) -> list[ManagerDescription]:
        """Every manager that is known, also from brokers, and how it answers."""
        return self._run(self._admin.managers())

    def status(self) -> ClusterStatus:
        """Managers, brokers and topics at a glance."""
        return self._run(self._admin.status())

    # Producers and consumers

    def producers(self) -> list[ClientShown]:
        """Every registered producer, by number."""
        return self._run(self._admin.producers())

    def consumers(self, topic: str | None = None, *, partial: bool = False) -> ConsumerListing:
        """Groups, by name, then registered consumers, by number: how far each has read. Of one topic, or all.

        Raises TopicNotFound; and Unavailable if partitions cannot be asked, unless `partial`: then what was
        found will do, and its `unasked` says what is missing.
        """
        return self._run(self._admin.consumers(topic, partial=partial))

    def seek(
        self, consumer: str | int, topic: str, where: Where, partition: int | None = None
    ) -> dict[int, int]:
        """Send a group, by its name, or a registered consumer, by its number, elsewhere; where, by partition.

        A group that is being read just then goes on where it was, and may commit that. Raises
        ConsumerNotFound, PartitionNotFound, OffsetOutOfRange.
        """
        return self._run(self._admin.seek(consumer, topic, where, partition))

    def hold(
        self, consumer: str | int, topic: str, keep_bytes: int, partition: int | None = None
    ) -> list[int]:
        """Have retention wait for a group, by its name, or a registered consumer, by its number; in which
        partitions. What it has not read is kept while the log of its partition has at most `keep_bytes`.

        Who has no position begins with the first message that is kept. Raises ConsumerNotFound,
        PartitionNotFound.
        """
        return self._run(self._admin.hold(consumer, topic, keep_bytes, partition))

    def release(self, consumer: str | int, topic: str, partition: int | None = None) -> list[int]:
        """End what `hold` began; in which partitions. Releasing what is not held does nothing.

        Raises ConsumerNotFound, PartitionNotFound.
        """
        return self._run(self._admin.release(consumer, topic, partition))

    def delete_positions(self, consumer: str | int, topic: str, partition: int | None = None) -> list[int]:
        """Forget how far a group, by its name, or a registered consumer, by its number, has read, and its
        hold; in which partitions. If it reads again, it begins as a new one does. Deleting what is not there
        does nothing.

        A group that is being read just then may commit anew. Raises ConsumerNotFound, PartitionNotFound.
        """
        return self._run(self._admin.delete_positions(consumer, topic, partition))


async def _begin(servers: tuple[str, ...], timeout: float) -> AsyncAdmin:  # noqa: ASYNC109 - it is for later
    return AsyncAdmin(servers, timeout=timeout)
