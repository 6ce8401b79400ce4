"""Metadata in SQLite, PostgreSQL or MariaDB / MySQL. The tables are described in `metadata.sql_schema`.

What was answered is as safe as a commit of that database is. With PostgreSQL or MySQL that means: do not
turn its durability down, and when a stand-by server can take over, let it be a synchronous one.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Table, case, delete, insert, select, update

from talweg.databases import Waits
from talweg.errors import (
    BrokerNotFound,
    ConsumerNotFound,
    LeaseLost,
    NewerFormat,
    PartitionNotFound,
    ProducerNotFound,
    StaleVersion,
    TopicExists,
    TopicNotFound,
)
from talweg.metadata import sql_schema as schema
from talweg.metadata.model import (
    Assignment,
    Broker,
    Consumer,
    Lease,
    MemberKind,
    Producer,
    RemovedTopic,
    Start,
    Topic,
    TopicSettings,
    check_topic_name,
    check_whole,
    new_topic,
    registered_again,
)
from talweg.metadata.sql_database import WAITS, Database
from talweg.metadata.store import CHANGES_MAX, FORMAT, REMOVED_KEPT, Changes, MetadataStore

_NUMBERS_A_STATEMENT: Final = 500
_MEMBERS: Final = {
    MemberKind.BROKER: schema.brokers,
    MemberKind.PRODUCER: schema.producers,
    MemberKind.CONSUMER: schema.consumers,
}
# What `changes` tells of, by its name there, and how a row becomes a value.
_FOLLOWED: Final[dict[str, tuple[Table, Callable[[Row[Any]], Any]]]] = {
    "topics": (schema.topics, schema.topic_of),
    "assignments": (schema.assignments, schema.assignment_of),
    "brokers": (schema.brokers, schema.broker_of),
    "producers": (schema.producers, schema.producer_of),
    "consumers": (schema.consumers, schema.consumer_of),
    "removed": (schema.removed_topics, schema.removed_of),
}


class _Write:
    """A transaction that holds the row of `talweg_metadata`: versions and numbers are its own to take."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.state = connection.execute(select(schema.state).with_for_update()).one()
        self.changed: dict[str, Any] = {}  # columns of that row

    def check_epoch(self, epoch: int) -> None:
        if self.state.lease_holder is None or self.state.lease_epoch != epoch:
            raise LeaseLost(f"the lease of epoch {epoch} is no longer held")

    def next_version(self) -> int:
        return self.take("version") + 1

    def take(self, column: str, count: int = 1) -> int:
        """What the column holds, which grows by `count`."""
        first: int = self.changed.get(column, getattr(self.state, column))
        self.changed[column] = first + count
        return first

    def insert(self, table: Table, records: Sequence[schema.Record]) -> None:
        rows = [schema.row_of(record) | {"version": self.next_version()} for record in records]
        self.connection.execute(insert(table), rows)

    def save(self) -> None:
        if self.changed:
            self.connection.execute(update(schema.state).values(self.changed))


class SqlMetadata(MetadataStore):
    """See the module's text."""

    def __init__(self, url: str, *, removed_kept: int = REMOVED_KEPT, waits: Waits = WAITS) -> None:
        self._database = Database(url, waits)
        self._removed_kept = removed_kept
        with self._database.reading() as connection:
            written = connection.execute(select(schema.state.c.format)).scalar_one()
        if written > FORMAT:
            self.close()
            raise NewerFormat(f"the metadata has format {written}; this version of Talweg knows {FORMAT}")

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _writing(self, epoch: int | None) -> Iterator[_Write]:
        with self._database.writing() as connection:
            write = _Write(connection)
            if epoch is not None:
                write.check_epoch(epoch)
            yield write
            write.save()

    # The lease

    def acquire_lease(self, holder: str, endpoint: str, *, now_us: int, duration_us: int) -> Lease | None:
        with self._writing(None) as write:
            held = schema.lease_of(write.state)
            if held is not None and held.holder != holder and now_us < held.expires_us:
                return None
            lease = Lease(
                holder=holder,
                endpoint=endpoint,
                epoch=write.take("lease_epoch") + 1,
                expires_us=now_us + duration_us,
            )
            write.changed |= {f"lease_{name}": value for name, value in msgspec.structs.asdict(lease).items()}
            return lease

    def renew_lease(self, epoch: int, *, now_us: int, duration_us: int) -> Lease:
        with self._writing(epoch) as write:
            lease = schema.lease_of(write.state)
            assert lease is not None
            write.changed["lease_expires_us"] = now_us + duration_us
            return msgspec.structs.replace(lease, expires_us=now_us + duration_us)

    def release_lease(self, epoch: int) -> None:
        with contextlib.suppress(LeaseLost), self._writing(epoch) as write:
            write.changed["lease_holder"] = None

    def lease(self) -> Lease | None:
        with self._database.reading() as connection:
            return schema.lease_of(connection.execute(select(schema.state)).one())

    # Following

    def changes(self, since: int, limit: int = CHANGES_MAX) -> Changes:
        with self._database.reading() as connection:
            state = connection.execute(select(schema.state)).one()
            lease = schema.lease_of(state)
            if since and not state.forgotten <= since <= state.version:
                return Changes(version=0, restart=True, lease=lease)
            found = {
                name: _changed(connection, table, since, limit) if since < state.version else []
                for name, (table, _) in _FOLLOWED.items()
            }
        versions = sorted(row.version for rows in found.values() for row in rows)
        more = len(versions) > limit
        end = versions[limit - 1] if more else state.version
        told: dict[str, Any] = {
            name: tuple(_FOLLOWED[name][1](row) for row in rows if row.version <= end)
            for name, rows in found.items()
        }
        return Changes(version=end, more=more, lease=lease, **told)

    # Topics

    def create_topic(
        self,
        name: str,
        replicas: Sequence[Sequence[int]],
        *,
        settings: TopicSettings | None = None,
        now_us: int,
        epoch: int,
    ) -> Topic:
        check_topic_name(name, own=True)  # who may have one of ours is for the manager to say
        with self._writing(epoch) as write:
            incarnation = write.take("next_group", len(replicas))
            topic, assignments = new_topic(name, incarnation, replicas, settings, now_us)
            _enter_topic(write, topic, assignments)
            return topic

    def restore_topic(self, topic: Topic, assignments: Sequence[Assignment], *, epoch: int) -> None:
        check_whole(topic, assignments)
        with self._writing(epoch) as write:
            table = schema.removed_topics
            deleted = select(table).where(table.c.incarnation == topic.incarnation)
            if write.connection.execute(deleted).first():
                raise TopicNotFound(
                    f"the topic {topic.name!r} of incarnation {topic.incarnation} was deleted"
                )
            behind = topic.groups.stop - write.state.next_group
            if behind > 0:
                write.take("next_group", behind)
            _enter_topic(write, topic, assignments)

    def delete_topic(self, name: str, *, epoch: int) -> RemovedTopic:
        with self._writing(epoch) as write:
            topic = _topic(write.connection, name)
            for table in (schema.producers, schema.consumers):
                of_topic = table.c.topic_incarnation == topic.incarnation
                write.connection.execute(delete(table).where(of_topic))
            write.connection.execute(delete(schema.assignments).where(schema.assignments.c.topic == name))
            write.connection.execute(delete(schema.topics).where(schema.topics.c.name == name))
            removed = RemovedTopic(name=name, incarnation=topic.incarnation, partitions=topic.partitions)
            write.insert(schema.removed_topics, [removed])
            self._forget_oldest(write)
            return removed

    def _forget_oldest(self, write: _Write) -> None:
        version = schema.removed_topics.c.version
        oldest_kept = select(version).order_by(version.desc()).offset(self._removed_kept).limit(1)
        forgotten = write.connection.execute(oldest_kept).scalar()
        if forgotten is not None:
            write.connection.execute(delete(schema.removed_topics).where(version <= forgotten))
            write.changed["forgotten"] = forgotten

    def topics(self) -> list[Topic]:
        with self._database.reading() as connection:
            rows = connection.execute(select(schema.topics)).all()
        return sorted(map(schema.topic_of, rows), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic:
        with self._database.reading() as connection:
            return _topic(connection, name)

    # Assignments

    def assignments(self, topic: str | None = None) -> list[Assignment]:
        table = schema.assignments
        wanted = select(table) if topic is None else select(table).where(table.c.topic == topic)
        with self._database.reading() as connection:
            rows = connection.execute(wanted).all()
        return sorted(map(schema.assignment_of, rows), key=lambda a: (a.topic, a.partition))

    def update_assignments(self, assignments: Sequence[Assignment], *, epoch: int) -> list[Assignment]:
        with self._writing(epoch) as write:
            return [_update_assignment(write, assignment) for assignment in assignments]

    # Brokers

    def register_broker(
        self, endpoint: str, incarnation: str, *, peer_endpoint: str = "", now_us: int, epoch: int
    ) -> Broker:
        table = schema.brokers
        with self._writing(epoch) as write:
            known = write.connection.execute(select(table).where(table.c.incarnation == incarnation)).first()
            if known:
                broker = registered_again(schema.broker_of(known), endpoint, peer_endpoint, now_us)
                return _update_broker(write, broker)
            broker = Broker(
                id=write.take("next_broker"),
                endpoint=endpoint,
                peer_endpoint=peer_endpoint,
                incarnation=incarnation,
                last_heartbeat_us=now_us,
            )
            write.insert(table, [broker])
            return msgspec.structs.replace(broker, version=write.changed["version"])

    def update_broker(self, broker: Broker, *, epoch: int) -> Broker:
        with self._writing(epoch) as write:
            return _update_broker(write, broker)

    def brokers(self) -> list[Broker]:
        with self._database.reading() as connection:
            rows = connection.execute(select(schema.brokers).order_by(schema.brokers.c.id)).all()
        return list(map(schema.broker_of, rows))

    # Producers and consumers

    def register_producer(self, topic: str, *, now_us: int, epoch: int) -> Producer:
        with self._writing(epoch) as write:
            producer = Producer(
                topic=topic,
                topic_incarnation=_topic(write.connection, topic).incarnation,
                id=write.take("next_producer"),
                created_us=now_us,
                last_heartbeat_us=now_us,
            )
            write.insert(schema.producers, [producer])
            return producer

    def register_consumer(
        self, topic: str, *, partition: int | None = None, start: Start = "earliest", now_us: int, epoch: int
    ) -> Consumer:
        with self._writing(epoch) as write:
            found = _topic(write.connection, topic)
            if partition is not None and not 0 <= partition < found.partitions:
                raise PartitionNotFound(f"the topic {topic!r} has no partition {partition}")
            consumer = Consumer(
                id=write.take("next_consumer"),
                topic=topic,
                topic_incarnation=found.incarnation,
                partition=partition,
                start=start,
                created_us=now_us,
                last_heartbeat_us=now_us,
            )
            write.insert(schema.consumers, [consumer])
            return consumer

    def producer(self, number: int) -> Producer:
        with self._database.reading() as connection:
            wanted = select(schema.producers).where(schema.producers.c.id == number)
            row = connection.execute(wanted).first()
        if row is None:
            raise ProducerNotFound(f"there is no producer {number}")
        return schema.producer_of(row)

    def consumer(self, number: int) -> Consumer:
        with self._database.reading() as connection:
            wanted = select(schema.consumers).where(schema.consumers.c.id == number)
            row = connection.execute(wanted).first()
        if row is None:
            raise ConsumerNotFound(f"there is no consumer {number}")
        return schema.consumer_of(row)

    # Heartbeats

    def record_heartbeats(
        self, kind: MemberKind, numbers: Collection[int], *, at_us: int, epoch: int
    ) -> None:
        table = _MEMBERS[kind]
        with self._writing(epoch) as write:
            remaining = iter(numbers)
            while some := list(itertools.islice(remaining, _NUMBERS_A_STATEMENT)):
                older = table.c.id.in_(some) & (table.c.last_heartbeat_us < at_us)
                write.connection.execute(update(table).where(older).values(last_heartbeat_us=at_us))

    def heartbeats(self, kind: MemberKind) -> dict[int, int]:
        table = _MEMBERS[kind]
        with self._database.reading() as connection:
            rows = connection.execute(select(table.c.id, table.c.last_heartbeat_us)).all()
        return {row.id: row.last_heartbeat_us for row in rows}


def _changed(connection: Connection, table: Table, since: int, limit: int) -> Sequence[Row[Any]]:
    # One more than asked for, to see whether there is more.
    newer = select(table).where(table.c.version > since).order_by(table.c.version).limit(limit + 1)
    return connection.execute(newer).all()


def _topic(connection: Connection, name: str) -> Topic:
    row = connection.execute(select(schema.topics).where(schema.topics.c.name == name)).first()
    if row is None:
        raise TopicNotFound(f"there is no topic {name!r}")
    return schema.topic_of(row)


def _enter_topic(write: _Write, topic: Topic, assignments: Sequence[Assignment]) -> None:
    with contextlib.suppress(TopicNotFound):
        _topic(write.connection, topic.name)
        raise TopicExists(f"there is a topic {topic.name!r} already")
    # In this order: who follows the changes has a topic's assignments before the topic.
    write.insert(schema.assignments, assignments)
    write.insert(schema.topics, [topic])


def _update_assignment(write: _Write, assignment: Assignment) -> Assignment:
    table = schema.assignments
    place = (table.c.incarnation == assignment.incarnation) & (table.c.topic == assignment.topic)
    version = write.next_version()
    changed = write.connection.execute(
        update(table)
        .where(place, table.c.version == assignment.version)
        .values(schema.row_of(assignment) | {"version": version})
    )
    if not changed.rowcount:
        if write.connection.execute(select(table.c.version).where(place)).first() is None:
            raise PartitionNotFound(f"there is no partition {assignment.group} of that incarnation")
        raise StaleVersion(f"the assignment of {assignment.group} was changed since it was read")
    return msgspec.structs.replace(assignment, version=version)


def _update_broker(write: _Write, broker: Broker) -> Broker:
    table = schema.brokers
    version = write.next_version()
    # It may have been heard of since it was read, and that is no reason to refuse the change.
    heard_us = case(
        (table.c.last_heartbeat_us < broker.last_heartbeat_us, broker.last_heartbeat_us),
        else_=table.c.last_heartbeat_us,
    )
    changed = write.connection.execute(
        update(table)
        .where(table.c.id == broker.id, table.c.version == broker.version)
        .values(schema.row_of(broker) | {"version": version, "last_heartbeat_us": heard_us})
    )
    if not changed.rowcount:
        if write.connection.execute(select(table.c.version).where(table.c.id == broker.id)).first() is None:
            raise BrokerNotFound(f"there is no broker {broker.id}")
        raise StaleVersion(f"broker {broker.id} was changed since it was read")
    return msgspec.structs.replace(broker, version=version)
