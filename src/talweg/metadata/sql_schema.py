"""The tables in which `talweg.metadata.sql` keeps metadata, and how a value becomes a row of them.

    talweg_metadata          one row: format, version, lease, and the next number of each sequence
    talweg_topics            one row for each topic
    talweg_assignments       one row for each partition
    talweg_brokers           one row for each broker that ever was
    talweg_producers         one row for each producer
    talweg_consumers         one row for each consumer
    talweg_removed_topics    one row for each of the last topics that were deleted

Whoever writes locks the row of `talweg_metadata` first: writes follow one another, so a version that can
be seen is greater than all that were seen before, and a number is taken by one alone.

A row's `version` is that of its last change. `last_heartbeat_us` is written without a new version.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Column, Integer, MetaData, Row, String, Table, Text
from sqlalchemy.dialects.mysql import VARCHAR

from talweg.metadata.model import (
    TOPIC_NAME_LENGTH_MAX,
    Assignment,
    Broker,
    BrokerStatus,
    Consumer,
    Lease,
    Producer,
    RemovedTopic,
    Replica,
    Start,
    Topic,
    TopicSettings,
)

_MYSQL: Final = ("mysql", "mariadb")
_TEXT_LENGTH_MAX: Final = 500  # of endpoints and the lease's holder

# MySQL's own text is equal when only case differs.
_TopicName: Final = String(TOPIC_NAME_LENGTH_MAX).with_variant(
    VARCHAR(TOPIC_NAME_LENGTH_MAX, charset="ascii", collation="ascii_bin"), *_MYSQL
)

metadata: Final = MetaData()


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(name, metadata, *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def _key(name: str, kind: Any = BigInteger) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _field(name: str, kind: Any = BigInteger, *, null: bool = False, index: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=null, index=index)


state: Final = _table(
    "talweg_metadata",
    _key("id", Integer),  # always 1
    _field("format", Integer),
    _field("version"),
    _field("forgotten"),  # deletions up to this version are no longer remembered
    _field("next_group"),
    _field("next_producer"),
    _field("next_consumer"),
    _field("next_broker"),
    _field("lease_epoch"),  # the last that was handed out, from 1
    _field("lease_holder", String(_TEXT_LENGTH_MAX), null=True),  # null: given back
    _field("lease_endpoint", String(_TEXT_LENGTH_MAX)),
    _field("lease_expires_us"),
)
topics: Final = _table(
    "talweg_topics",
    _key("name", _TopicName),
    _field("incarnation"),
    _field("partitions", Integer),
    _field("replication", Integer),
    _field("retention_ms", null=True),
    _field("retention_bytes", null=True),
    _field("created_us"),
    _field("version", index=True),
)
assignments: Final = _table(
    "talweg_assignments",
    _key("topic", _TopicName),
    _key("partition_number", Integer),  # "partition" is a word of SQL's own
    Column("incarnation", BigInteger, nullable=False, unique=True),
    _field("replicas", Text),  # JSON: [{"broker": 1, "role": "voter"}, …]
    _field("target", Text),  # JSON: [1, …]
    _field("version", index=True),
)
brokers: Final = _table(
    "talweg_brokers",
    _key("id"),
    _field("endpoint", String(_TEXT_LENGTH_MAX)),
    _field("peer_endpoint", String(_TEXT_LENGTH_MAX)),
    Column("incarnation", String(100), nullable=False, unique=True),
    _field("status", String(20)),
    _field("last_heartbeat_us"),
    _field("version", index=True),
)
producers: Final = _table(
    "talweg_producers",
    _key("id"),
    _field("topic", _TopicName),
    _field("topic_incarnation", index=True),
    _field("created_us"),
    _field("last_heartbeat_us"),
    _field("version", index=True),
)
consumers: Final = _table(
    "talweg_consumers",
    _key("id"),
    _field("topic", _TopicName),
    _field("topic_incarnation", index=True),
    _field("partition_number", Integer, null=True),
    _field("start_at", String(30)),  # JSON: "earliest", "latest" or a timestamp
    _field("created_us"),
    _field("last_heartbeat_us"),
    _field("version", index=True),
)
removed_topics: Final = _table(
    "talweg_removed_topics",
    _key("incarnation"),
    _field("name", _TopicName),
    _field("partitions", Integer),
    _field("version", index=True),
)

NEW_STATE: Final = {
    "id": 1,
    "version": 0,
    "forgotten": 0,
    "next_group": 0,
    "next_producer": 0,
    "next_consumer": 0,
    "next_broker": 0,
    "lease_epoch": 0,
    "lease_holder": None,
    "lease_endpoint": "",
    "lease_expires_us": 0,
}

Record = Topic | Assignment | Broker | Producer | Consumer | RemovedTopic


def row_of(record: Record) -> dict[str, Any]:
    """The row of a value, but for its version."""
    row = msgspec.structs.asdict(record)
    match record:
        case Topic():
            row |= msgspec.structs.asdict(row.pop("settings"))
        case Assignment():
            row["partition_number"] = row.pop("partition")
            row["replicas"] = msgspec.json.encode(record.replicas).decode()
            row["target"] = msgspec.json.encode(record.target).decode()
        case Broker():
            row["status"] = record.status.value
        case Consumer():
            row["partition_number"] = row.pop("partition")
            row["start_at"] = msgspec.json.encode(row.pop("start")).decode()
        case _:
            pass
    row.pop("version", None)
    return row


def topic_of(row: Row[Any]) -> Topic:
    """The value of a row."""
    return Topic(
        name=row.name,
        incarnation=row.incarnation,
        partitions=row.partitions,
        replication=row.replication,
        settings=TopicSettings(retention_ms=row.retention_ms, retention_bytes=row.retention_bytes),
        created_us=row.created_us,
    )


def assignment_of(row: Row[Any]) -> Assignment:
    """The value of a row."""
    return Assignment(
        topic=row.topic,
        partition=row.partition_number,
        incarnation=row.incarnation,
        replicas=msgspec.json.decode(row.replicas, type=tuple[Replica, ...]),
        target=msgspec.json.decode(row.target, type=tuple[int, ...]),
        version=row.version,
    )


def broker_of(row: Row[Any]) -> Broker:
    """The value of a row."""
    return Broker(
        id=row.id,
        endpoint=row.endpoint,
        peer_endpoint=row.peer_endpoint,
        incarnation=row.incarnation,
        status=BrokerStatus(row.status),
        last_heartbeat_us=row.last_heartbeat_us,
        version=row.version,
    )


def producer_of(row: Row[Any]) -> Producer:
    """The value of a row."""
    return Producer(
        id=row.id,
        topic=row.topic,
        topic_incarnation=row.topic_incarnation,
        created_us=row.created_us,
        last_heartbeat_us=row.last_heartbeat_us,
    )


def consumer_of(row: Row[Any]) -> Consumer:
    """The value of a row."""
    return Consumer(
        id=row.id,
        topic=row.topic,
        topic_incarnation=row.topic_incarnation,
        partition=row.partition_number,
        start=msgspec.json.decode(row.start_at, type=Start),
        created_us=row.created_us,
        last_heartbeat_us=row.last_heartbeat_us,
    )


def removed_of(row: Row[Any]) -> RemovedTopic:
    """The value of a row."""
    return RemovedTopic(name=row.name, incarnation=row.incarnation, partitions=row.partitions)


def lease_of(row: Row[Any]) -> Lease | None:
    """The lease in the row of `talweg_metadata`."""
    if row.lease_holder is None:
        return None
    return Lease(
        holder=row.lease_holder,
        endpoint=row.lease_endpoint,
        epoch=row.lease_epoch,
        expires_us=row.lease_expires_us,
    )
