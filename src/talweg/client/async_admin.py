"""Administration for programs with an event loop: topics, brokers, and who has read how far."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import msgspec

from talweg.client.cluster import SURELY_NOT_DONE, Cluster, Pause
from talweg.client.consumer_listing import list_consumers
from talweg.client.description import (
    ClusterStatus,
    ConsumerListing,
    ManagerDescription,
    PartitionDescription,
    TopicDescription,
)
from talweg.client.leaders import ask_leaders
from talweg.client.message import check_topic
from talweg.client.offsets import (
    Where,
    check_name,
    commit_position,
    delete_position,
    offsets_at,
    read_where,
)
from talweg.client.servers import Servers
from talweg.errors import (
    BadRequest,
    ConsumerNotFound,
    InvalidSetting,
    PartitionNotFound,
    TalwegError,
    TopicExists,
    TopicNotFound,
)
from talweg.http import Answer
from talweg.protocol.batches import OffsetsAnswer
from talweg.protocol.control import AddBroker, BrokerAdded, Metadata, TopicMetadata
from talweg.protocol.plain import (
    BrokerList,
    BrokerNumber,
    BrokerShown,
    ClientShown,
    ConsumerList,
    CreateTopic,
    ManagerFace,
    ProducerList,
    Removing,
    TopicCreated,
)

A = TypeVar("A")

_LOOK_SECONDS_MAX: Final = 2.0  # for what may be missing from a description
_AT_ONCE_MAX: Final = 16  # partitions whose positions are changed


def read_timeout(timeout: object) -> float:
    """Seconds; raises InvalidSetting."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidSetting(f"timeout: {timeout!r}; expected more than 0 seconds")
    return timeout


class AsyncAdmin:
    """Any number of tasks may use it at once. Everything is tried again, for `timeout` seconds at most."""

    def __init__(self, servers: Servers = None, *, timeout: float = 30.0) -> None:
        self._cluster = Cluster(servers)
        self._seconds_max = read_timeout(timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, method: str, target: str, answer: type[A], body: msgspec.Struct | None = None) -> A:
        return await self._cluster.ask_manager(method, target, answer, body, seconds_max=self._seconds_max)

    # Topics

    async def create_topic(
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
        check_topic(name)
        wanted = CreateTopic(
            name=name,
            partitions=partitions,
            replication=replication,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )
        try:
            return (await self._once("POST", "/topics", TopicCreated, wanted)).partitions
        except _PerhapsDone as perhaps:
            if not isinstance(perhaps.then, TopicExists):
                raise perhaps.then from None
            made = await self._cluster.fresh_topic(name, seconds_max=self._seconds_max)
            if partitions is not None and len(made.partitions) != partitions:
                raise perhaps.then from None  # it is not ours
            return len(made.partitions)
        finally:
            self._cluster.forget_topic(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it; raises TopicNotFound."""
        check_topic(name)
        try:
            await self._once("DELETE", f"/topics/{quote(name, safe='')}", Answer)
        except _PerhapsDone as perhaps:
            if not isinstance(perhaps.then, TopicNotFound):
                raise perhaps.then from None
        except TopicNotFound:
            raise TopicNotFound(f"there is no topic {name}") from None
        finally:
            self._cluster.forget_topic(name)

    async def _once(self, method: str, target: str, answer: type[A], body: msgspec.Struct | None = None) -> A:
        """Ask again even when it may have been carried out; an answer after that is raised as such."""
        pause = Pause(self._cluster, self._seconds_max)
        perhaps = False
        while True:
            try:
                return await self._cluster.ask_manager(
                    method, target, answer, body, seconds_max=max(pause.left(), 0.001), repeatable=False
                )
            except TalwegError as error:
                if not error.retriable:
                    raise (_PerhapsDone(error) if perhaps else error) from None
                perhaps = perhaps or not isinstance(error, SURELY_NOT_DONE)
                await pause.wait(error)

    async def topics(self) -> list[str]:
        """The names of all topics, in order."""
        return [topic.topic for topic in await self._all_topics()]

    async def _all_topics(self) -> tuple[TopicMetadata, ...]:
        return (await self._ask("GET", "/v1/metadata", Metadata)).topics

    async def topic(self, name: str) -> TopicDescription:
        """A topic with its partitions: who leads, who carries them, what they hold. Raises TopicNotFound."""
        topic = await self._cluster.fresh_topic(name, seconds_max=self._seconds_max)
        numbers = range(len(topic.partitions))
        first, behind = await asyncio.gather(
            *(
                ask_leaders(
                    self._cluster,
                    name,
                    numbers,
                    f"/offsets?at={at}",
                    OffsetsAnswer,
                    read=lambda answer: answer.offsets,
                    seconds_max=min(_LOOK_SECONDS_MAX, self._seconds_max),
                    partial=True,
                )
                for at in ("earliest", "latest")
            )
        )
        return TopicDescription(
            topic=name,
            incarnation=topic.incarnation,
            partitions=tuple(
                PartitionDescription(
                    partition=part.partition,
                    leader=part.leader,
                    replicas=part.replicas,
                    start_offset=first.get(part.partition),
                    next_offset=behind.get(part.partition),
                )
                for part in topic.partitions
            ),
        )

    async def offsets(self, topic: str, at: Where) -> dict[int, int]:
        """By partition: `earliest`, `latest`, or the first message not older than a moment."""
        where = read_where(at)
        numbers = await self._numbers(topic)
        return await offsets_at(self._cluster, topic, numbers, where, seconds_max=self._seconds_max)

    async def _numbers(self, topic: str) -> list[int]:
        found = await self._cluster.fresh_topic(topic, seconds_max=self._seconds_max)
        return [part.partition for part in found.partitions]

    # Brokers and managers

    async def brokers(self) -> list[BrokerShown]:
        """All brokers, by number."""
        return (await self._ask("GET", "/admin/brokers", BrokerList)).brokers

    async def add_broker(self, endpoint: str) -> int:
        """Add a broker that runs there; its number, the same again for one that is known."""
        body = AddBroker(endpoint=endpoint)
        return (await self._ask("POST", "/admin/broker/add", BrokerAdded, body)).broker_id

    async def remove_broker(self, broker_id: int) -> str:
        """Move everything away from a broker, then remove it; what becomes of it. It returns before that.

        Raises BrokerNotFound and NowhereToMove.
        """
        body = BrokerNumber(broker_id=broker_id)
        return (await self._ask("POST", "/admin/broker/remove", Removing, body)).message

    async def activate_broker(self, broker_id: int) -> None:
        """Let a broker have partitions and lead. Raises BrokerNotFound."""
        await self._ask("POST", "/admin/broker/activate", Answer, BrokerNumber(broker_id=broker_id))

    async def deactivate_broker(self, broker_id: int) -> None:
        """Give a broker no new partitions, and let others lead. Raises BrokerNotFound."""
        await self._ask("POST", "/admin/broker/deactivate", Answer, BrokerNumber(broker_id=broker_id))

    async def managers(self) -> list[ManagerDescription]:
        """Every manager that is known, also from brokers, and how it answers."""
        try:
            await self._cluster.all_topics(seconds_max=min(_LOOK_SECONDS_MAX, self._seconds_max))
            await self._cluster.learn_managers()
        except TalwegError:
            pass  # then those that we were told of must do
        return list(await asyncio.gather(*(self._manager(each) for each in sorted(self._cluster.managers))))

    async def _manager(self, endpoint: str) -> ManagerDescription:
        seconds_max = min(_LOOK_SECONDS_MAX, self._seconds_max)
        try:
            face = await self._cluster.ask_server(endpoint, "/", ManagerFace, seconds_max=seconds_max)
        except TalwegError as error:
            return ManagerDescription(endpoint=endpoint, error=str(error))
        return ManagerDescription(
            endpoint=endpoint,
            role=face.role,
            version=face.version,
            healthy=face.healthy,
            metadata_available=face.metadata_available,
        )

    async def status(self) -> ClusterStatus:
        """Managers, brokers and topics at a glance."""
        managers, brokers, topics = await asyncio.gather(self.managers(), self.brokers(), self._all_topics())
        return ClusterStatus(managers=managers, brokers=brokers, topics=list(topics))

    # Producers and consumers

    async def producers(self) -> list[ClientShown]:
        """Every registered producer, by number."""
        return (await self._ask("GET", "/admin/producers", ProducerList)).producers

    async def consumers(self, topic: str | None = None, *, partial: bool = False) -> ConsumerListing:
        """Groups, by name, then registered consumers, by number: how far each has read. Of one topic, or all.

        Raises TopicNotFound; and Unavailable if partitions cannot be asked, unless `partial`: then what was
        found will do, and its `unasked` says what is missing.
        """
        if topic is None:
            topics = await self._cluster.all_topics(seconds_max=self._seconds_max)
        else:
            topics = (await self._cluster.fresh_topic(topic, seconds_max=self._seconds_max),)
        registered = (await self._ask("GET", "/admin/consumers", ConsumerList)).consumers
        seconds_max = min(_LOOK_SECONDS_MAX, self._seconds_max) if partial else self._seconds_max
        found = await list_consumers(self._cluster, topics, registered, seconds_max=seconds_max)
        if not partial:
            found.check_whole()
        return found

    async def seek(
        self, consumer: str | int, topic: str, where: Where, partition: int | None = None
    ) -> dict[int, int]:
        """Send a group, by its name, or a registered consumer, by its number, elsewhere; where, by partition.

        A group that is being read just then goes on where it was, and may commit that. Raises
        ConsumerNotFound, PartitionNotFound, OffsetOutOfRange.
        """
        at = read_where(where)
        numbers = await self._read_by(consumer, topic, partition)
        found = await offsets_at(self._cluster, topic, numbers, at, seconds_max=self._seconds_max)
        await self._commit(consumer, topic, found, seek=True)
        return found

    async def hold(
        self, consumer: str | int, topic: str, keep_bytes: int, partition: int | None = None
    ) -> list[int]:
        """Have retention wait for a group, by its name, or a registered consumer, by its number; in which
        partitions. What it has not read is kept while the log of its partition has at most `keep_bytes`.

        Who has no position begins with the first message that is kept. Raises ConsumerNotFound,
        PartitionNotFound.
        """
        if isinstance(keep_bytes, bool) or not 1 <= keep_bytes < 1 << 63:
            raise BadRequest(f"keep_bytes: expected a number of bytes from 1 up, got {keep_bytes!r}")
        numbers = await self._read_by(consumer, topic, partition)
        await self._commit(consumer, topic, dict.fromkeys(numbers), keep_bytes=keep_bytes)
        return numbers

    async def release(self, consumer: str | int, topic: str, partition: int | None = None) -> list[int]:
        """End what `hold` began; in which partitions. Releasing what is not held does nothing.

        Raises ConsumerNotFound, PartitionNotFound.
        """
        numbers = await self._read_by(consumer, topic, partition)
        await self._commit(consumer, topic, dict.fromkeys(numbers), keep_bytes=0)
        return numbers

    async def delete_positions(
        self, consumer: str | int, topic: str, partition: int | None = None
    ) -> list[int]:
        """Forget how far a group, by its name, or a registered consumer, by its number, has read, and its
        hold; in which partitions. If it reads again, it begins as a new one does. Deleting what is not there
        does nothing.

        A group that is being read just then may commit anew. Raises ConsumerNotFound, PartitionNotFound.
        """
        numbers = await self._read_by(consumer, topic, partition)
        few = asyncio.Semaphore(_AT_ONCE_MAX)

        async def delete(number: int) -> None:
            async with few:
                await delete_position(self._cluster, consumer, topic, number, seconds_max=self._seconds_max)

        await asyncio.gather(*map(delete, numbers))
        return numbers

    async def _read_by(self, consumer: str | int, topic: str, partition: int | None) -> list[int]:
        """The partitions that are meant: one, or all that a consumer reads."""
        only = None
        if isinstance(consumer, str):
            check_name(consumer)
        else:
            only = (await self._registered(consumer, topic)).partition
        numbers = await self._numbers(topic)
        if partition is None:
            return numbers if only is None else [only]
        if partition not in numbers:
            raise PartitionNotFound(
                f"topic {topic} has no partition {partition}, only {numbers[0]} to {numbers[-1]}"
            )
        return [partition]

    async def _commit(
        self,
        consumer: str | int,
        topic: str,
        offsets: Mapping[int, int | None],
        *,
        seek: bool = False,
        keep_bytes: int | None = None,
    ) -> None:
        few = asyncio.Semaphore(_AT_ONCE_MAX)

        async def commit(number: int, offset: int | None) -> None:
            async with few:
                await commit_position(
                    self._cluster,
                    consumer,
                    topic,
                    number,
                    offset,
                    seek=seek,
                    keep_bytes=keep_bytes,
                    seconds_max=self._seconds_max,
                )

        await asyncio.gather(*(commit(number, offset) for number, offset in offsets.items()))

    async def _registered(self, number: int, topic: str) -> ClientShown:
        consumers = (await self._ask("GET", "/admin/consumers", ConsumerList)).consumers
        for each in consumers:
            if each.id == number and each.topic == topic:
                return each
        raise ConsumerNotFound(f"no consumer {number} is registered for topic {topic}")


class _PerhapsDone(Exception):
    """What was answered, after an attempt of which nobody knows whether it was carried out."""

    def __init__(self, then: TalwegError) -> None:
        super().__init__(str(then))
        self.then = then
