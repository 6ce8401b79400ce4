"""What an administrator is told: topics, consumers, managers, and the cluster as a whole.

What nobody could be asked about is not the same as what is not there: descriptions tell the two apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from talweg.errors import Unavailable
from talweg.protocol.control import TopicMetadata
from talweg.protocol.plain import BrokerShown

_NAMED_MAX: Final = 8  # partitions that an error names; of the others, how many
_GONE: Final = frozenset({"inactive", "removed"})  # brokers of such a status lead nothing


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
    def size(self) -> int | None:
        """How many messages are kept; None unless each partition has a leader that says so."""
        sizes = [part.size for part in self.partitions if part.size is not None]
        return sum(sizes) if len(sizes) == len(self.partitions) else None

    def check_whole(self) -> None:
        """Raise Unavailable if there are partitions whose leader could not be asked."""
        unknown = [str(part.partition) for part in self.partitions if part.size is None]
        if unknown:
            raise Unavailable(
                f"nobody could be asked what partition {_few(unknown)} of topic {self.topic} holds: talweg "
                "doctor says more"
            )


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


class ConsumerListing(list[ConsumerDescription]):
    """Groups and registered consumers, as far as leaders could be asked for them."""

    def __init__(
        self,
        found: Iterable[ConsumerDescription] = (),
        unasked: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(found)
        self.unasked = dict(unasked or {})  # by topic, partitions whose leader could not be asked

    def check_whole(self) -> None:
        """Raise Unavailable if it is not all there is, since some partitions could not be asked."""
        places = [f"{topic} {number}" for topic, numbers in self.unasked.items() for number in numbers]
        if places:
            raise Unavailable(
                f"nobody could be asked who reads {_few(places)} (topic and partition): talweg doctor says "
                "more"
            )


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
        """Partitions that nobody leads, as (topic, number). Managers go on naming a broker until another one
        leads: if it is gone, or most of the replicas are, nobody does."""
        there = {broker.id for broker in self.brokers if broker.status not in _GONE}
        return [
            (topic.topic, part.partition)
            for topic in self.topics
            for part in topic.partitions
            if part.leader not in there or 2 * len(there & set(part.replicas)) <= len(part.replicas)
        ]

    @property
    def healthy(self) -> bool:
        """A primary answers, all brokers are active that should be, and every partition has a leader."""
        primary = any(manager.role == "primary" and manager.healthy for manager in self.managers)
        return primary and not self.leaderless and all(broker.status != "inactive" for broker in self.brokers)


def _few(places: Sequence[str]) -> str:
    more = [f"and {len(places) - _NAMED_MAX} more"] if len(places) > _NAMED_MAX else []
    return ", ".join([*places[:_NAMED_MAX], *more])
