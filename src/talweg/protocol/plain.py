"""What people and clients ask of a manager, in JSON: topics, single messages, administration."""

from typing import Annotated, Literal

import msgspec

from talweg.http.calls import Answer, Natural, Parameters

# Topics


class TopicPath(Parameters, frozen=True, kw_only=True):
    """A topic, by its name."""

    name: str


class CreateTopic(Parameters, frozen=True, kw_only=True):
    """A new topic. What is not given is as the manager's settings have it."""

    name: str
    partitions: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    replication: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    retention_ms: Natural | None = None
    retention_bytes: Natural | None = None  # of each partition


class TopicCreated(Answer, frozen=True, kw_only=True):
    """It is there."""

    message: str
    partitions: Natural


class TopicList(Answer, frozen=True, kw_only=True):
    """The names of all topics, in order."""

    topics: list[str]


class PartitionShown(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. What its leader would say is null while nobody leads."""

    id: Natural
    leader: Natural | None
    replicas: tuple[Natural, ...]  # brokers; the one that should lead comes first
    size: Natural | None  # messages that are kept


class PartitionList(Answer, frozen=True, kw_only=True):
    """A topic's partitions, by number."""

    partitions: list[PartitionShown]


# Producers


class RegisterProducer(Parameters, frozen=True, kw_only=True):
    """A producer to be, of a topic that is created if it is not there."""

    topic: str


class ProducerRegistered(Answer, frozen=True, kw_only=True):
    """Its number."""

    producer_id: Natural


class Produce(Parameters, frozen=True, kw_only=True):
    """A message. Without a partition, its key decides where it goes, or its sequence, or whose turn it is."""

    topic: str
    producer_id: Natural
    message: str
    partition: Natural | None = None
    key: str | None = None
    sequence: Natural | None = None  # grows with each message of a producer: one sent again is written once


class Produced(Answer, frozen=True, kw_only=True):
    """Where it is, on disk on a majority of the partition's replicas."""

    partition: Natural
    offset: Natural


class ClientHeartbeat(Parameters, frozen=True, kw_only=True):
    """A client lives."""

    id: Natural


# Consumers


class RegisterConsumer(Parameters, frozen=True, kw_only=True):
    """A consumer to be, of a topic or of one of its partitions. It starts with the `earliest` message, with
    the `latest` (what comes from now on), or at a moment: microseconds since 1970, or ISO 8601."""

    topic: str
    partition: Natural | None = None
    start: Natural | str = "earliest"


class ConsumerRegistered(Answer, frozen=True, kw_only=True):
    """Its number."""

    consumer_id: Natural


class Consume(Parameters, frozen=True, kw_only=True):
    """Who consumes, from which partition if from one, and how long it would wait for a message."""

    topic: str
    consumer_id: Natural
    partition: Natural | None = None
    wait_ms: Natural = 0


class Consumed(Answer, frozen=True, kw_only=True):
    """A message. One that is no UTF-8 is null, and `message_base64` has it."""

    message: str | None
    partition: Natural
    offset: Natural
    timestamp: int  # microseconds since 1970
    producer_id: Natural | None
    message_base64: str | msgspec.UnsetType = msgspec.UNSET


class AskSize(Parameters, frozen=True, kw_only=True):
    """Of which consumer, and of which partition if of one. Either the number of a registered consumer, or the
    name that a group commits its positions under; one that has committed nothing has everything left."""

    topic: str
    consumer_id: Natural | None = None
    consumer: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    partition: Natural | None = None


class Size(Answer, frozen=True, kw_only=True):
    """How many messages the consumer has not read; by partition, if none was named."""

    size: Natural
    partitions: dict[str, Natural] | msgspec.UnsetType = msgspec.UNSET


# Administration


class BrokerNumber(Parameters, frozen=True, kw_only=True):
    """A broker, by its number."""

    broker_id: Natural


class Removing(Answer, frozen=True, kw_only=True):
    """What becomes of it."""

    message: str


class BrokerShown(msgspec.Struct, frozen=True, kw_only=True):
    """A broker."""

    id: Natural
    endpoint: str
    status: Literal["active", "inactive", "deactivated", "draining", "removed"]
    last_heartbeat: Natural  # microseconds since 1970
    partitions: Natural  # replicas that it carries, or is about to
    leaders: Natural  # partitions that it leads, as far as this manager knows


class BrokerList(Answer, frozen=True, kw_only=True):
    """All brokers, by number."""

    brokers: list[BrokerShown]


class ClientShown(msgspec.Struct, frozen=True, kw_only=True):
    """A producer or a consumer. Nothing of an inactive one is lost: it may go on at any time."""

    id: Natural
    topic: str
    status: Literal["active", "inactive"]
    last_heartbeat: Natural  # microseconds since 1970
    partition: Natural | None = None  # of a consumer that is registered for one alone


class ProducerList(Answer, frozen=True, kw_only=True):
    """All producers, by number."""

    producers: list[ClientShown]


class ConsumerList(Answer, frozen=True, kw_only=True):
    """All consumers, by number."""

    consumers: list[ClientShown]


# Cluster


class ManagerFace(Answer, frozen=True, kw_only=True):
    """Who a manager is. A stand-by becomes the primary when the primary is gone."""

    role: Literal["primary", "stand-by", "read-only"]
    version: str
    healthy: bool  # it knows the cluster, and can answer
    metadata_available: bool  # it can reach the metadata store: what is listed is up to date
    primary: str | None  # the URL of the primary, or of who was it last


class AskMetadata(Parameters, frozen=True, kw_only=True):
    """Which topics; all of them if none is named. Several with commas between them, or named one by one."""

    topics: tuple[str, ...] = ()
    internal: bool = False  # of all, those too that belong to Talweg itself
