"""Metadata in a Redis Cluster, or in one Redis for small set-ups. The keys are in `metadata.redis_scripts`.

All of it lies in one hash slot, on one master, because a write and the check of the writer's lease must be
one transaction, and Redis has none across slots. The cluster is there to outlive a node, not to spread
load: metadata is small. Only the marks of the sequences lie in three slots; see `metadata.redis_sequences`.
Redis 7 or later; append-only files on.

**What a failover of one master may cost.** Redis replicates behind its answers, so every change waits
until a replica of the master has confirmed it. Then:

- a change that was answered while a replica was connected survives the failover;
- a change that no replica confirms in time is answered with MetadataUnavailable. It may be there or not:
  it is there until a failover to that replica, which forgets it;
- while no replica is connected at all, changes go on unconfirmed, or the death of one node would stop them.
  What is answered then can be forgotten only if the master dies and Redis promotes the replica that had
  been cut off, which it does only within `cluster-replica-validity-factor` node timeouts;
- heartbeats are not waited for. Some may be forgotten: their senders send them again;
- the lease is void after every failover, and after a restart of the master's process. The primary gets
  LeaseLost, takes the lease again, and reads the metadata anew, as do all who follow (`Changes.restart`),
  because what they know may have been forgotten;
- numbers never come again, nor do versions: a version is a number of its epoch, and epochs are numbers.

**It can never cost messages**, so long as brokers and managers keep to this: messages are in the partitions'
logs, on brokers' disks, and a log is deleted only for a `RemovedTopic`, or because the group's own committed
configuration has moved on, never because the metadata does not mention it. A forgotten topic is entered
again with `restore_topic` from what the brokers hold. A forgotten step of a move is decided again from the
configuration that the group reports. A forgotten deletion is a topic that is there until it is deleted
again. A forgotten producer or consumer hears that it is not found and registers anew.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from talweg.errors import (
    BrokerNotFound,
    ConsumerNotFound,
    LeaseLost,
    MetadataUnavailable,
    NewerFormat,
    PartitionNotFound,
    ProducerNotFound,
    StaleVersion,
    TopicExists,
    TopicNotFound,
)
from talweg.metadata import redis_scripts as scripts
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
from talweg.metadata.redis_nodes import ClusterNodes, Command, Confirmation, Nodes, OneNode, read_url
from talweg.metadata.redis_records import (
    ABSENT,
    FOLLOWED,
    Plan,
    Refused,
    field_of,
    lease_of,
    record_of,
    texts,
    version_of,
)
from talweg.metadata.redis_sequences import TAGS, Numbered, Sequences
from talweg.metadata.store import CHANGES_MAX, FORMAT, REMOVED_KEPT, Changes, MetadataStore

REPLICA_WAIT_MS_MAX: Final = 1_000  # for a replica to confirm a change
VERSIONS_OF_AN_EPOCH: Final = 1 << 24  # changes that a primary makes before it has to take the lease anew
_DELETE_ATTEMPTS_MAX: Final = 5


class RedisMetadata(MetadataStore):
    """See the module's text."""

    def __init__(
        self,
        url: str,
        *,
        replica_wait_ms_max: int = REPLICA_WAIT_MS_MAX,
        removed_kept: int = REMOVED_KEPT,
    ) -> None:
        address = read_url(url)
        self._nodes: Nodes = ClusterNodes(address) if address.cluster else OneNode(address)
        self._sequences = Sequences(self._nodes, address.namespace, replica_wait_ms_max)
        prefix = f"{{{TAGS[0]}}}:{address.namespace}:"
        self._keys = [prefix + key.name for key in scripts.Key]
        self._wait_ms_max = replica_wait_ms_max
        self._removed_kept = removed_kept
        try:
            written = int(self._state().get("format", FORMAT))
            if written > FORMAT:
                raise NewerFormat(f"the metadata has format {written}; this version of Talweg knows {FORMAT}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._nodes.close()

    def _script(self, script: str, *arguments: str | int) -> Command:
        return ("EVAL", script, len(self._keys), *self._keys, *arguments)

    def _run(self, script: str, *arguments: str | int) -> Any:
        return self._nodes.run(self._keys[0], self._script(script, *arguments))

    def _commit(self, plan: Plan, epoch: int) -> int:
        """Carry a plan out; the version of its last record. Raises LeaseLost and Refused."""
        commit = self._script(
            scripts.COMMIT,
            epoch,
            msgspec.json.encode(plan).decode(),
            self._removed_kept,
            VERSIONS_OF_AN_EPOCH,
        )
        (outcome, *rest), confirmation = self._nodes.run_confirmed(self._keys[0], commit, self._wait_ms_max)
        if outcome == b"lost":
            raise LeaseLost(f"the lease of epoch {epoch} is no longer held")
        if outcome == b"refused":
            raise Refused(rest[0] - 1)
        if confirmation is Confirmation.MISSING:
            raise MetadataUnavailable("the change is made, but no replica of the Redis master confirmed it")
        return int(rest[0])

    # The lease

    def acquire_lease(self, holder: str, endpoint: str, *, now_us: int, duration_us: int) -> Lease | None:
        held = self.lease()
        if held is not None and held.holder != holder and now_us < held.expires_us:
            return None  # without taking an epoch for it
        lease = Lease(
            holder=holder,
            endpoint=endpoint,
            epoch=self._sequences.take(Numbered.EPOCH) + 1,
            expires_us=now_us + duration_us,
        )
        given = self._run(
            scripts.ACQUIRE,
            holder,
            endpoint,
            now_us,
            lease.expires_us,
            lease.epoch,
            FORMAT,
            VERSIONS_OF_AN_EPOCH,
        )
        return lease if given else None

    def renew_lease(self, epoch: int, *, now_us: int, duration_us: int) -> Lease:
        expires_us = now_us + duration_us
        held = self._run(scripts.RENEW, epoch, expires_us)
        if not held:
            raise LeaseLost(f"the lease of epoch {epoch} is no longer held")
        holder, endpoint = (value.decode() for value in held)
        return Lease(holder=holder, endpoint=endpoint, epoch=epoch, expires_us=expires_us)

    def release_lease(self, epoch: int) -> None:
        self._run(scripts.RENEW, epoch, "")

    def lease(self) -> Lease | None:
        return lease_of(self._state())

    def _state(self) -> dict[str, str]:
        return texts(self._nodes.run(self._keys[0], ("HGETALL", self._key("state"))))

    def _key(self, name: str) -> str:
        return self._keys[scripts.Key[name] - 1]

    # Following

    def changes(self, since: int, limit: int = CHANGES_MAX) -> Changes:
        fields, rows = self._run(scripts.CHANGES, since, limit)
        state = texts(fields)
        version, forgotten = int(state.get("version", 0)), int(state.get("forgotten", 0))
        if since and not forgotten <= since <= version:
            return Changes(version=0, restart=True, lease=lease_of(state))
        told: dict[str, list[Any]] = {name: [] for name, _ in FOLLOWED.values()}
        for kind, *row in rows[:limit]:
            name, record_type = FOLLOWED[kind.decode()]
            told[name].append(record_of(record_type, *row))
        more = len(rows) > limit
        end = int(rows[limit - 1][2]) if more else version
        found: dict[str, Any] = {name: tuple(records) for name, records in told.items()}
        return Changes(version=end, more=more, lease=lease_of(state), **found)

    def _read(self, kind: str, *fields: str) -> list[Any]:
        record_type = FOLLOWED[kind][1]
        return [record_of(record_type, *row) for _, *row in self._run(scripts.READ, kind, *fields)]

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
        if self._read("topic", name):  # without taking numbers for it
            raise TopicExists(f"there is a topic {name!r} already")
        incarnation = self._sequences.take(Numbered.GROUP, len(replicas))
        topic, assignments = new_topic(name, incarnation, replicas, settings, now_us)
        self._enter_topic(topic, assignments, epoch)
        return topic

    def restore_topic(self, topic: Topic, assignments: Sequence[Assignment], *, epoch: int) -> None:
        check_whole(topic, assignments)
        self._sequences.skip_to(Numbered.GROUP, topic.groups.stop)
        self._enter_topic(topic, assignments, epoch)

    def _enter_topic(self, topic: Topic, assignments: Sequence[Assignment], epoch: int) -> None:
        plan = Plan(checks=[("topic", topic.name, ABSENT), ("removed", str(topic.incarnation), ABSENT)])
        # In this order: who follows the changes has a topic's assignments before the topic.
        for assignment in assignments:
            plan.put(assignment)
        plan.put(topic)
        try:
            self._commit(plan, epoch)
        except Refused as refused:
            if refused.check == 0:
                raise TopicExists(f"there is a topic {topic.name!r} already") from None
            raise TopicNotFound(
                f"the topic {topic.name!r} of incarnation {topic.incarnation} was deleted"
            ) from None

    def delete_topic(self, name: str, *, epoch: int) -> RemovedTopic:
        for _ in range(_DELETE_ATTEMPTS_MAX):
            topic, version = self._topic(name)
            removed = RemovedTopic(name=name, incarnation=topic.incarnation, partitions=topic.partitions)
            plan = Plan(
                checks=[("topic", name, version)],
                drops=[("topic", name), *(("assignment", f"{name}/{p}") for p in range(topic.partitions))],
                clients_of=topic.incarnation,
            )
            plan.put(removed)
            try:
                self._commit(plan, epoch)
            except Refused:
                continue  # Another deleted it, and perhaps created it again: look once more.
            return removed
        raise StaleVersion(f"the topic {name!r} changes too often to be deleted")

    def topics(self) -> list[Topic]:
        return sorted(self._read("topic"), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic:
        return self._topic(name)[0]

    def _topic(self, name: str) -> tuple[Topic, int]:
        for _, value, version, _ in self._run(scripts.READ, "topic", name):
            return msgspec.json.decode(value, type=Topic), int(version)
        raise TopicNotFound(f"there is no topic {name!r}")

    # Assignments

    def assignments(self, topic: str | None = None) -> list[Assignment]:
        fields = []
        if topic is not None:
            found = self._read("topic", topic)
            if not found:
                return []
            fields = [f"{topic}/{partition}" for partition in range(found[0].partitions)]
        return sorted(self._read("assignment", *fields), key=lambda a: (a.topic, a.partition))

    def update_assignments(self, assignments: Sequence[Assignment], *, epoch: int) -> list[Assignment]:
        plan = Plan(checks=[("assignment", field_of(a), version_of(a)) for a in assignments])
        for assignment in assignments:
            plan.put(assignment)
        try:
            last = self._commit(plan, epoch)
        except Refused as refused:
            wrong = assignments[refused.check]
            there = self._read("assignment", field_of(wrong))
            if not there or there[0].incarnation != wrong.incarnation:
                raise PartitionNotFound(f"there is no partition {wrong.group} of that incarnation") from None
            raise StaleVersion(f"the assignment of {wrong.group} was changed since it was read") from None
        first = last - len(assignments) + 1
        return [
            msgspec.structs.replace(assignment, version=version)
            for version, assignment in enumerate(assignments, start=first)
        ]

    # Brokers

    def register_broker(
        self, endpoint: str, incarnation: str, *, peer_endpoint: str = "", now_us: int, epoch: int
    ) -> Broker:
        known = [broker for broker in self.brokers() if broker.incarnation == incarnation]
        if known:
            return self.update_broker(
                registered_again(known[0], endpoint, peer_endpoint, now_us), epoch=epoch
            )
        broker = Broker(
            id=self._sequences.take(Numbered.BROKER),
            endpoint=endpoint,
            peer_endpoint=peer_endpoint,
            incarnation=incarnation,
            last_heartbeat_us=now_us,
        )
        plan = Plan(checks=[("directory", incarnation, ABSENT)], names=[(incarnation, str(broker.id))])
        plan.put(broker)
        try:
            return msgspec.structs.replace(broker, version=self._commit(plan, epoch))
        except Refused:
            raise StaleVersion(f"the broker at {endpoint} is being registered already") from None

    def update_broker(self, broker: Broker, *, epoch: int) -> Broker:
        plan = Plan(
            checks=[("broker", field_of(broker), 0), ("broker", field_of(broker), version_of(broker))]
        )
        plan.put(broker)
        try:
            return msgspec.structs.replace(broker, version=self._commit(plan, epoch))
        except Refused as refused:
            if refused.check == 0:
                raise BrokerNotFound(f"there is no broker {broker.id}") from None
            raise StaleVersion(f"broker {broker.id} was changed since it was read") from None

    def brokers(self) -> list[Broker]:
        return sorted(self._read("broker"), key=lambda broker: broker.id)

    # Producers and consumers

    def register_producer(self, topic: str, *, now_us: int, epoch: int) -> Producer:
        found, version = self._topic(topic)
        producer = Producer(
            id=self._sequences.take(Numbered.PRODUCER),
            topic=topic,
            topic_incarnation=found.incarnation,
            created_us=now_us,
            last_heartbeat_us=now_us,
        )
        self._enter_client(producer, version, epoch)
        return producer

    def register_consumer(
        self, topic: str, *, partition: int | None = None, start: Start = "earliest", now_us: int, epoch: int
    ) -> Consumer:
        found, version = self._topic(topic)
        if partition is not None and not 0 <= partition < found.partitions:
            raise PartitionNotFound(f"the topic {topic!r} has no partition {partition}")
        consumer = Consumer(
            id=self._sequences.take(Numbered.CONSUMER),
            topic=topic,
            topic_incarnation=found.incarnation,
            partition=partition,
            start=start,
            created_us=now_us,
            last_heartbeat_us=now_us,
        )
        self._enter_client(consumer, version, epoch)
        return consumer

    def _enter_client(self, client: Producer | Consumer, topic_version: int, epoch: int) -> None:
        plan = Plan(checks=[("topic", client.topic, topic_version)])
        plan.put(client)
        try:
            self._commit(plan, epoch)
        except Refused:
            raise TopicNotFound(f"the topic {client.topic!r} was deleted meanwhile") from None

    def producer(self, number: int) -> Producer:
        for producer in self._read("producer", str(number)):
            return producer  # type: ignore[no-any-return]
        raise ProducerNotFound(f"there is no producer {number}")

    def consumer(self, number: int) -> Consumer:
        for consumer in self._read("consumer", str(number)):
            return consumer  # type: ignore[no-any-return]
        raise ConsumerNotFound(f"there is no consumer {number}")

    # Heartbeats

    def record_heartbeats(
        self, kind: MemberKind, numbers: Collection[int], *, at_us: int, epoch: int
    ) -> None:
        if not self._run(scripts.HEARTBEATS, epoch, kind.value, at_us, *numbers):
            raise LeaseLost(f"the lease of epoch {epoch} is no longer held")

    def heartbeats(self, kind: MemberKind) -> dict[int, int]:
        found = self._nodes.run(self._keys[0], ("HGETALL", self._key(f"heard_{kind.value}")))
        return {int(number): int(at_us) for number, at_us in texts(found).items()}
