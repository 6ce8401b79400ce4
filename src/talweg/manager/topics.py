"""Topics made and unmade, by the primary."""

import asyncio
import contextlib
import time
from typing import Final

from talweg.config import ManagerSettings
from talweg.errors import Forbidden, TalwegError, TopicExists
from talweg.manager.follower import Follower
from talweg.manager.nudging import Nudging
from talweg.manager.restoring import Restoring
from talweg.manager.routing import ENDS, Question, Router
from talweg.manager.writer import Writer
from talweg.metadata import (
    RESERVED_PREFIX,
    Topic,
    TopicSettings,
    check_topic_name,
    loads_of,
    place_topic,
)
from talweg.protocol.bundles import AskEnd
from talweg.protocol.transactions import TRANSACTIONS

_DECISION_PARTITIONS: Final = 4  # of the internal topic of transactions: this many decide at once
_DECISION_LOG_BYTES: Final = 1 << 20  # kept of each; what counts is in the snapshot that the log begins with
_LEADERS_SECONDS_MAX: Final = 5.0  # that a new topic has to find its leaders before it is answered


class Topics:
    """Raises LeaseLost on a manager that is not the primary."""

    def __init__(
        self,
        follower: Follower,
        writer: Writer,
        router: Router,
        nudging: Nudging,
        settings: ManagerSettings,
        *,
        restoring: Restoring,
    ) -> None:
        self._follower = follower
        self._writer = writer
        self._router = router
        self._nudging = nudging
        self._restoring = restoring
        self._settings = settings

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> Topic:
        """Create a topic; what is None is as the settings have it. It is usable when this returns, or at
        least will be by itself. Raises TopicExists, BadTopicName, TooFewBrokers, TooManyPartitions."""
        check_topic_name(name)
        return await self._create(
            name,
            partitions=partitions,
            replication=replication,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )

    async def _create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> Topic:
        defaults = self._settings
        if retention_ms is None and defaults.retention_seconds is not None:
            retention_ms = int(defaults.retention_seconds * 1000)
        if retention_bytes is None:
            retention_bytes = defaults.retention_bytes
        await self._restoring.wait_until_known()
        async with self._writer.deciding:
            if name in self._follower.copy.topics:
                raise TopicExists(f"there is a topic {name} already")
            self._restoring.check_free(name)
            replicas = place_topic(
                self._follower.copy.brokers.values(),
                loads_of(self._follower.groups.values()),
                partitions=defaults.partitions if partitions is None else partitions,
                replication=defaults.replication if replication is None else replication,
                partitions_max=defaults.partitions_max,
            )
            topic = await self._writer.write(
                lambda store, epoch: store.create_topic(
                    name,
                    replicas,
                    settings=TopicSettings(retention_ms=retention_ms, retention_bytes=retention_bytes),
                    now_us=time.time_ns() // 1000,
                    epoch=epoch,
                )
            )
        self._nudging.nudge({broker for brokers in replicas for broker in brokers})
        await self.wait_for_leaders(topic)
        return topic

    async def wait_for_leaders(self, topic: Topic) -> None:
        """Wait until every partition has a leader that answers, but not for ever."""
        deadline = asyncio.get_running_loop().time() + _LEADERS_SECONDS_MAX
        questions = [Question(ENDS, group, AskEnd(group), deadline) for group in topic.groups]
        with contextlib.suppress(TalwegError):  # it is created in any case
            await self._router.ask_all(questions)

    async def delete(self, name: str) -> None:
        """Remove a topic with everything in it; raises TopicNotFound, and Forbidden for one of our own."""
        if name.startswith(RESERVED_PREFIX):
            raise Forbidden(f"topics whose names begin with {RESERVED_PREFIX!r} belong to Talweg itself")
        async with self._writer.deciding:
            await self._writer.write(lambda store, epoch: store.delete_topic(name, epoch=epoch))
        self._nudging.nudge_all()

    async def find_or_create(self, name: str) -> Topic:
        """A topic of that name, as the settings have it if it is new. Raises as `create` does."""
        check_topic_name(name)
        topic = self._follower.copy.topics.get(name)
        if topic is None:
            try:
                topic = await self.create(name)
            except TopicExists:  # another was quicker
                topic = await self._follower.topic(name)
        return topic

    async def find_or_create_transactions(self) -> Topic:
        """The internal topic that decisions on transactions are kept in. Raises as `create` does."""
        topic = self._follower.copy.topics.get(TRANSACTIONS)
        if topic is None:
            try:
                # As many replicas as any topic has: were it made with fewer while brokers are away, what
                # was decided would for ever be less safe than what it is about.
                topic = await self._create(
                    TRANSACTIONS, partitions=_DECISION_PARTITIONS, retention_bytes=_DECISION_LOG_BYTES
                )
            except TopicExists:  # another was quicker
                topic = await self._follower.topic(TRANSACTIONS)
        return topic
