"""What the cluster knows of itself, as frozen values: topics, assignments, brokers, clients, the lease.

Pure: times are passed in, as timestamps in microseconds since 1970, and numbers come from the store's
sequences. None of them is ever handed out twice, which is what makes a number a name:

- a *group* is named on the wire by its incarnation alone, so that no message for a deleted topic reaches
  one that was created later under the same name. A topic's incarnation is that of its first group, and
  partition `p` is group `incarnation + p`;
- a *producer's* number keeps its sequence numbers apart from everybody else's;
- a *lease's* epoch tells a primary from all that were primary before it.
"""

import string
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal

import msgspec

from talweg.errors import BadTopicName

TOPIC_NAME_LENGTH_MAX: Final = 249
RESERVED_PREFIX: Final = "__"  # for topics of our own
_TOPIC_NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")

Start = Literal["earliest", "latest"] | int  # an int is a timestamp: the first message not older


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen for a topic. None keeps messages whatever their age, or their size in sum."""

    retention_ms: int | None = None
    retention_bytes: int | None = None  # of each partition


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a number of partitions."""

    name: str
    incarnation: int  # of its first group
    partitions: int  # 1 or more, numbered from 0
    replication: int  # voters of each partition, when no move is under way
    settings: TopicSettings = TopicSettings()
    created_us: int

    @property
    def groups(self) -> range:
        """The incarnations of its groups."""
        return range(self.incarnation, self.incarnation + self.partitions)


class RemovedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a deleted topic: the permission to delete the logs of its groups.

    Absence from the metadata is no such permission. A store that forgets its last writes (see
    `metadata.redis`) may forget a topic whose messages brokers hold and have acknowledged.
    """

    name: str
    incarnation: int
    partitions: int

    @property
    def groups(self) -> range:
        """The incarnations of its groups."""
        return range(self.incarnation, self.incarnation + self.partitions)


class ReplicaRole(Enum):
    """A voter counts for majorities; a learner only receives."""

    VOTER = "voter"
    LEARNER = "learner"


class Replica(msgspec.Struct, frozen=True):
    """A broker that carries a partition."""

    broker: int
    role: ReplicaRole = ReplicaRole.VOTER


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to carry a partition now, and who when the move that is under way has ended.

    It is a wish. What is so is the configuration in the group's own log, which the leader brings up to
    the wish and reports; see `placement.next_step`.
    """

    topic: str
    partition: int
    incarnation: int  # of the group; == topic.incarnation + partition
    replicas: tuple[Replica, ...]  # no broker twice; the first voter is the preferred leader
    target: tuple[int, ...] = ()  # the voters to be, in their order; empty when no move is under way
    version: int = 0  # of the last change of this assignment, for compare and set

    @property
    def group(self) -> str:
        """The group's name: what its log is filed under. No two groups share it at one time."""
        return f"{self.topic}-{self.partition}"

    @property
    def voters(self) -> tuple[int, ...]:
        """The brokers whose vote and whose disk are to count."""
        return tuple(r.broker for r in self.replicas if r.role is ReplicaRole.VOTER)

    @property
    def learners(self) -> tuple[int, ...]:
        """The brokers that are to receive and have no voice."""
        return tuple(r.broker for r in self.replicas if r.role is ReplicaRole.LEARNER)

    @property
    def brokers(self) -> frozenset[int]:
        """Everyone who carries the partition now or will when the move has ended."""
        return frozenset(self.target).union(r.broker for r in self.replicas)

    @property
    def intended(self) -> tuple[int, ...]:
        """The voters when no move is, or will be, under way. The first is the preferred leader."""
        return self.target or self.voters


class BrokerStatus(Enum):
    """Whether a broker is given partitions. Only `INACTIVE` ends by itself, with the next heartbeats."""

    ACTIVE = "active"
    INACTIVE = "inactive"  # missed its heartbeats
    DEACTIVATED = "deactivated"  # by hand, until it is activated by hand
    DRAINING = "draining"  # what it carries is being moved away, then it is removed
    REMOVED = "removed"  # kept, so that its number is seen to be taken


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that carries replicas, known by the data directory that it works on."""

    id: int
    endpoint: str  # the URL at which clients and managers reach it
    peer_endpoint: str = ""  # host:port at which other brokers reach its replicas; empty until it says
    incarnation: str  # of its data directory: a wiped disk comes back as another broker
    status: BrokerStatus = BrokerStatus.ACTIVE
    last_heartbeat_us: int = 0  # when this was read: a heartbeat is no change and has no version
    version: int = 0  # of the last change, for compare and set


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was given a number to produce under, to one topic."""

    id: int
    topic: str
    topic_incarnation: int  # a topic of the same name that was created later is another one
    created_us: int
    last_heartbeat_us: int = 0  # when this was read


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was given a number to consume under, from one topic or one partition of it."""

    id: int
    topic: str
    topic_incarnation: int
    partition: int | None  # None: all of them
    start: Start  # where it begins, in a partition in which it has no position
    created_us: int
    last_heartbeat_us: int = 0  # when this was read


class MemberKind(Enum):
    """Who sends heartbeats."""

    BROKER = "broker"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who is the primary. Only the holder of the newest epoch can write."""

    holder: str  # a name that no other process has
    endpoint: str  # the URL at which the primary is reached
    epoch: int  # grows with every holder, and when a holder takes it anew; never used twice
    expires_us: int  # first moment at which another may take it


def check_topic_name(name: str, *, own: bool = False) -> None:
    """Raise BadTopicName for what a user's topic, or one of our own, cannot be called."""
    if not 1 <= len(name) <= TOPIC_NAME_LENGTH_MAX:
        raise BadTopicName(f"a topic's name has 1 to {TOPIC_NAME_LENGTH_MAX} characters, not {len(name)}")
    if not _TOPIC_NAME_CHARACTERS.issuperset(name):
        raise BadTopicName(f"the topic's name {name!r} may contain only A-Z, a-z, 0-9, '.', '_' and '-'")
    if name in (".", ".."):
        raise BadTopicName(f"a topic cannot be called {name!r}")
    if name.startswith(RESERVED_PREFIX) and not own:
        raise BadTopicName(f"topics whose names begin with {RESERVED_PREFIX!r} belong to Talweg itself")


def new_topic(
    name: str,
    incarnation: int,
    replicas: Sequence[Sequence[int]],
    settings: TopicSettings | None,
    now_us: int,
) -> tuple[Topic, list[Assignment]]:
    """A topic as it begins, with these brokers for each partition, the preferred leader first."""
    assert replicas, "a topic has a partition"
    assert len({len(brokers) for brokers in replicas}) == 1, "all partitions have as many replicas"
    assert all(len(set(brokers)) == len(brokers) > 0 for brokers in replicas), "no broker twice"
    topic = Topic(
        name=name,
        incarnation=incarnation,
        partitions=len(replicas),
        replication=len(replicas[0]),
        settings=settings or TopicSettings(),
        created_us=now_us,
    )
    assignments = [
        Assignment(
            topic=name,
            partition=partition,
            incarnation=incarnation + partition,
            replicas=tuple(Replica(broker) for broker in brokers),
        )
        for partition, brokers in enumerate(replicas)
    ]
    return topic, assignments


def check_whole(topic: Topic, assignments: Sequence[Assignment]) -> None:
    """Assert that these are the assignments of the topic, all of them."""
    assert [assignment.incarnation for assignment in assignments] == list(topic.groups)
    assert all(assignment.topic == topic.name for assignment in assignments)


def registered_again(broker: Broker, endpoint: str, peer_endpoint: str, now_us: int) -> Broker:
    """A broker that is known, at the endpoints that it has now. Who was removed and comes back is active."""
    return msgspec.structs.replace(
        broker,
        endpoint=endpoint,
        peer_endpoint=peer_endpoint or broker.peer_endpoint,
        status=BrokerStatus.ACTIVE if broker.status is BrokerStatus.REMOVED else broker.status,
        last_heartbeat_us=max(now_us, broker.last_heartbeat_us),
    )
