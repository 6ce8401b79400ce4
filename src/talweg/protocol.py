"""What brokers, managers and clients say to each other: the parameters and answers of calls between them.

Calls that people make are declared where they are answered. Those that one process makes to another are
declared here, so that both ends read the same words. Two sorts:

- **control**, in JSON: registration, heartbeats, what a broker should carry, who leads what;
- **bundles**, in MessagePack: many single messages at once, between a manager and a broker. The outcome
  of each is its own, and stands in the place of what was asked.

    POST /broker/heartbeat      broker → primary     Heartbeat → HeartbeatAnswer
    POST /admin/broker/add      broker → primary     AddBroker → BrokerAdded
    GET  /v1/metadata           client → manager     → Metadata
    GET  /                      manager → broker     → BrokerFace
    POST /nudge                 primary → broker     send a heartbeat now: something has changed
    GET  /groups/{group}        primary → broker     → GroupAnswer: what it knows of a group that it carries
    POST /bundle/append         manager → broker     list of Append → list of Written or Failed
    POST /bundle/take           manager → broker     list of Take → list of Taken, Moved, Empty or Failed
    POST /bundle/ends           manager → broker     AskEnds → list of Ends or Failed
    POST /bundle/start          manager → broker     list of StartAt → list of Started or Failed
"""

from typing import Final, Literal

import msgspec

from talweg.errors import NotLeader, TalwegError, error_named
from talweg.http import Answer, Natural, Parameters

MSGPACK: Final = "application/msgpack"

# Control


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


# Bundles


class Append(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame, not yet stamped, for a group."""

    group: int
    frame: bytes


class Take(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next message of a partition, for a consumer that is thought to be at `position`."""

    group: int
    consumer: str
    position: int | None  # the offset it is to be given; None: wherever it is
    token: int  # of this attempt and its repetitions: the same take is answered alike again


class AskEnds(msgspec.Struct, frozen=True, array_like=True):
    """Where partitions begin and end. Waits until one of them ends beyond what is named, or for so long."""

    groups: list["AskEnd"]
    wait_ms: int = 0


class AskEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of them, with a consumer's position if one is named."""

    group: int
    consumer: str | None = None
    beyond: int = -1  # -1: do not wait


class StartAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a new consumer begins: a position is written, so that it is settled once and for all."""

    group: int
    consumer: str
    start: Literal["earliest", "latest"] | int  # an int is a timestamp in microseconds


class Failed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """It was not done, or, with a code that says so, perhaps it was."""

    code: str
    message: str
    leader: int | None = None  # with `not_leader`: who leads, if it is known


class Written(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """It is on disk on a majority."""

    offset: int


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A message, and the consumer's position behind it is replicated."""

    offset: int
    timestamp: int  # microseconds since 1970
    value: bytes | None
    key: bytes | None
    producer_id: int  # -1: none


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """The consumer is not where it was thought to be. Nothing was taken."""

    position: int


class Empty(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The consumer has read everything. Nothing was taken."""

    position: int


class Ends(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Where a partition begins and ends now, as its leader knows it."""

    start_offset: int  # the first message kept
    next_offset: int  # the first one not committed
    position: int  # of the consumer: the first one it has not read; `start_offset` without a consumer


class Started(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The consumer is here."""

    position: int


Outcome = Failed | Written | Taken | Moved | Empty | Ends | Started

encode = msgspec.msgpack.Encoder().encode
decode_appends = msgspec.msgpack.Decoder(list[Append]).decode
decode_takes = msgspec.msgpack.Decoder(list[Take]).decode
decode_ask_ends = msgspec.msgpack.Decoder(AskEnds).decode
decode_starts = msgspec.msgpack.Decoder(list[StartAt]).decode
decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


def consumer_name(number: int) -> str:
    """What the position of a registered consumer is filed under. Other names never begin like this."""
    return f"#{number}"


def failed(error: TalwegError) -> Failed:
    """An error as the outcome of a part of a bundle."""
    leader = error.leader if isinstance(error, NotLeader) else None
    return Failed(error.code, str(error), leader)


def error_of_failed(outcome: Failed) -> TalwegError:
    """The error that it was."""
    kind = error_named(outcome.code)
    if issubclass(kind, NotLeader):
        return kind(outcome.message, outcome.leader)
    return kind(outcome.message)
