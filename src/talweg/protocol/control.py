"""Between brokers and managers, in JSON: registration, heartbeats, what a broker should carry.

Also what a client needs to find leaders (`Metadata`).
"""

from typing import Literal

import msgspec

from talweg.http.calls import Answer, Natural, Parameters


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A group that the broker leads, as its log has it."""

    group: Natural  # its incarnation
    term: Natural  # in which it leads
    voters: tuple[Natural, ...]  # of the configuration that is committed, or is about to be
    learners: tuple[Natural, ...] = ()
    caught_up: tuple[Natural, ...] = ()  # learners that lack next to nothing
    start_offset: Natural = 0
    next_offset: Natural = 0


class Heartbeat(Parameters, frozen=True, kw_only=True):
    """A broker lives; what it carries, and what it leads."""

    broker_id: Natural
    incarnation: str  # of its data directory
    epoch: Natural = 0  # with `version`: of the last answer that it carried out
    version: Natural = 0
    carries: tuple[Natural, ...] = ()  # every group, led or not
    leads: tuple[GroupReport, ...] = ()


class PartitionAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a broker should carry, as the primary wishes it."""

    topic: str
    partition: Natural
    group: Natural  # the incarnation of its group
    voters: tuple[Natural, ...]
    learners: tuple[Natural, ...] = ()
    leader: Natural | None = None  # who should lead: whoever does hands over to it, if it is a voter
    partitions: Natural  # of the topic. This and what follows serves a metadata store that has forgotten it
    replication: Natural
    created_us: Natural = 0
    retention_ms: Natural | None = None
    retention_bytes: Natural | None = None

    @property
    def name(self) -> str:
        """The group's name: what its log is filed under."""
        return f"{self.topic}-{self.partition}"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker is."""

    id: Natural
    endpoint: str  # its URL
    peer_endpoint: str  # host:port, for other brokers


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    """What the broker should carry. One of a lower epoch than was seen before is from a primary of the
    past, and is not heeded."""

    epoch: Natural  # of the primary's lease
    version: Natural  # of the metadata that this was read from
    peers: tuple[Peer, ...]
    # All of them; None when nothing changed since the version and epoch that the broker named. A group
    # that is not among them is carried on: only `removed` is a permission to delete.
    assignments: tuple[PartitionAssignment, ...] | None = None
    removed: tuple[Natural, ...] = ()  # of those that it carries: groups whose logs may go


class AddBroker(Parameters, frozen=True, kw_only=True):
    """Enter a broker. One that does so itself says all; of an endpoint alone the primary asks the rest."""

    endpoint: str
    incarnation: str | None = None
    peer_endpoint: str | None = None


class BrokerAdded(Answer, frozen=True, kw_only=True):
    """Its number: the same again for a data directory that is known."""

    broker_id: Natural


class BrokerFace(Answer, frozen=True, kw_only=True):
    """Who a broker is."""

    role: Literal["broker"]
    version: str
    healthy: bool
    incarnation: str
    peer_endpoint: str
    broker_id: Natural | None = None  # None until it is registered
    managers: tuple[str, ...] = ()  # that it was started with: a client that knew one learns of the others


class GroupAnswer(Answer, frozen=True, kw_only=True):
    """What a broker was last told of a group that it carries."""

    assignment: PartitionAssignment


class PartitionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, and who leads it as far as the manager knows."""

    partition: Natural
    leader: Natural | None
    term: Natural  # in which it leads; 0 if that is a guess
    replicas: tuple[Natural, ...]


class TopicMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its partitions, by number."""

    topic: str
    incarnation: Natural  # another one under the same name is another topic
    partitions: tuple[PartitionMetadata, ...]


class BrokerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker is reached."""

    id: Natural
    endpoint: str


class Metadata(Answer, frozen=True, kw_only=True):
    """What a client needs to find leaders."""

    version: Natural
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]
