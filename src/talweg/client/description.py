"""What an administrator is told: topics, consumers, managers, and the cluster as a whole."""

import msgspec

from talweg.protocol.control import TopicMetadata
from talweg.protocol.plain import BrokerShown


class PartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. What its leader would say is None while nobody leads."""

    partition: int
    leader: int | None  # a broker's number
    replicas: tuple[int, ...]  # brokers; the one that should lead comes first
    start_offset: int | None  # the first message kept
    next_offset: int | None  # the first that is not there yet

    @property
    def size(self) -> int | None:
        """How many messages are kept."""
        known = self.start_offset is not None and self.next_offset is not None
        return (self.next_offset or 0) - (self.start_offset or 0) if known else None


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic and its partitions, by number."""

    topic: str
    incarnation: int  # another one under the same name is another topic
    partitions: tuple[PartitionDescription, ...]

    @property
    def size(self) -> int:
        """How many messages are kept, as far as partitions have leaders to say so."""
        return sum(part.size or 0 for part in self.partitions)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition was read."""

    position: int  # the first offset that was not read
    start_offset: int
    next_offset: int
    keep_bytes: int | None = None  # its hold: up to which size of the log retention waits for it

    @property
    def overtaken(self) -> bool:
        """Whether retention has dropped messages that were not read."""
        return self.position < self.start_offset

    @property
    def lag(self) -> int:
        """How many messages there are that were not read; what retention has dropped does not count."""
        return max(self.next_offset - max(self.position, self.start_offset), 0)


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group of clients, by its name, or a registered consumer, by its number; of one topic."""

    group: str | None
    consumer_id: int | None  # exactly one of the two is there
    topic: str
    status: str | None  # of a registered one: active or inactive
    last_heartbeat: int | None  # of a registered one: microseconds since 1970
    partitions: dict[int, Progress]  # those that it reads, as far as they have a leader to say so

    @property
    def name(self) -> str:
        """What commands call it: the group's name, or the number."""
        return str(self.consumer_id) if self.group is None else self.group

    @property
    def lag(self) -> int:
        """How many messages it has not read."""
        return sum(progress.lag for progress in self.partitions.values())

    @property
    def keep_bytes(self) -> int | None:
        """The largest of its holds; None if it has none."""
        return max((each.keep_bytes for each in self.partitions.values() if each.keep_bytes), default=None)

    @property
    def overtaken(self) -> bool:
        """Whether retention has dropped messages, of any partition, that it has not read."""
        return any(progress.overtaken for progress in self.partitions.values())


class ManagerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A manager that is known, and how it answers."""

    endpoint: str
    role: str | None = None  # primary, stand-by or read-only; None: it does not answer
    version: str | None = None
    healthy: bool = False
    metadata_available: bool = False
    error: str | None = None  # why it does not answer


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at a glance."""

    managers: list[ManagerDescription]
    brokers: list[BrokerShown]
    topics: list[TopicMetadata]

    @property
    def leaderless(self) -> list[tuple[str, int]]:
        """Partitions that nobody is known to lead, as (topic, number)."""
        return [
            (topic.topic, part.partition)
            for topic in self.topics
            for part in topic.partitions
            if part.leader is None
        ]

    @property
    def healthy(self) -> bool:
        """A primary answers, all brokers are active that should be, and every partition has a leader."""
        primary = any(manager.role == "primary" and manager.healthy for manager in self.managers)
        return primary and not self.leaderless and all(broker.status != "inactive" for broker in self.brokers)
