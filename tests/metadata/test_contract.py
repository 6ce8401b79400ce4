"""What every metadata store does: topics, assignments, brokers, clients and heartbeats."""

from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import create_engine, text

from metadata.conftest import NOW_US, SECOND_US
from talweg.errors import (
    BadTopicName,
    BrokerNotFound,
    ConsumerNotFound,
    NewerFormat,
    PartitionNotFound,
    ProducerNotFound,
    StaleVersion,
    TopicExists,
    TopicNotFound,
)
from talweg.metadata import (
    BrokerStatus,
    MemberKind,
    MetadataCopy,
    MetadataStore,
    RemovedTopic,
    Replica,
    ReplicaRole,
    Topic,
    TopicSettings,
    open_metadata,
)
from talweg.metadata.redis import RedisMetadata
from talweg.metadata.sql import SqlMetadata

TWO_PARTITIONS = [[0, 1, 2], [1, 2, 0]]


def create(store: MetadataStore, epoch: int, name: str = "orders") -> Topic:
    return store.create_topic(name, TWO_PARTITIONS, now_us=NOW_US, epoch=epoch)


# Topics


def test_a_new_store_holds_nothing(store: MetadataStore) -> None:
    assert store.topics() == []
    assert store.assignments() == []
    assert store.brokers() == []
    assert store.lease() is None
    assert all(store.heartbeats(kind) == {} for kind in MemberKind)


def test_a_topic_is_created_with_its_assignments(store: MetadataStore, epoch: int) -> None:
    settings = TopicSettings(retention_ms=3_600_000)
    topic = store.create_topic("orders", TWO_PARTITIONS, settings=settings, now_us=NOW_US, epoch=epoch)
    assert topic == Topic(
        name="orders",
        incarnation=topic.incarnation,
        partitions=2,
        replication=3,
        settings=settings,
        created_us=NOW_US,
    )
    assert store.topics() == [store.topic("orders")] == [topic]
    first, second = store.assignments("orders")
    assert (first.partition, first.voters, first.target) == (0, (0, 1, 2), ())
    assert (second.partition, second.voters, second.learners) == (1, (1, 2, 0), ())
    assert [first.incarnation, second.incarnation] == list(topic.groups)
    assert [first.group, second.group] == ["orders-0", "orders-1"]


def test_a_name_is_taken_once(store: MetadataStore, epoch: int) -> None:
    topic = create(store, epoch)
    with pytest.raises(TopicExists):
        create(store, epoch)
    assert store.topics() == [topic]


def test_names_that_differ_in_case_are_two_topics(store: MetadataStore, epoch: int) -> None:
    names = ["Orders", "orders", "orders-0", "orders_0", "ORDERS"]
    for name in names:
        create(store, epoch, name)
    assert [topic.name for topic in store.topics()] == sorted(names)
    assert store.topic("ORDERS").name == "ORDERS"
    assert {assignment.topic for assignment in store.assignments("Orders")} == {"Orders"}
    assert len(store.assignments()) == 2 * len(names)


def test_a_name_may_be_as_long_as_the_rule_allows(store: MetadataStore, epoch: int) -> None:
    create(store, epoch, "n" * 249)
    assert store.topic("n" * 249).partitions == 2


def test_a_bad_name_is_refused(store: MetadataStore, epoch: int) -> None:
    with pytest.raises(BadTopicName):
        create(store, epoch, "a/b")
    assert store.topics() == []


def test_a_topic_that_is_not_there_is_not_found(store: MetadataStore, epoch: int) -> None:
    with pytest.raises(TopicNotFound):
        store.topic("orders")
    with pytest.raises(TopicNotFound):
        store.delete_topic("orders", epoch=epoch)
    assert store.assignments("orders") == []


def test_a_deleted_topic_takes_everything_of_it_along(store: MetadataStore, epoch: int) -> None:
    kept, gone = create(store, epoch, "kept"), create(store, epoch, "gone")
    clients = [
        (
            store.register_producer(topic.name, now_us=NOW_US, epoch=epoch),
            store.register_consumer(topic.name, now_us=NOW_US, epoch=epoch),
        )
        for topic in (kept, gone)
    ]
    removed = store.delete_topic("gone", epoch=epoch)
    assert removed == RemovedTopic(name="gone", incarnation=gone.incarnation, partitions=2)
    assert removed.groups == gone.groups
    assert store.topics() == [kept]
    assert {assignment.topic for assignment in store.assignments()} == {"kept"}
    assert store.producer(clients[0][0].id) == clients[0][0]
    assert store.consumer(clients[0][1].id) == clients[0][1]
    with pytest.raises(ProducerNotFound):
        store.producer(clients[1][0].id)
    with pytest.raises(ConsumerNotFound):
        store.consumer(clients[1][1].id)
    assert store.heartbeats(MemberKind.PRODUCER) == {clients[0][0].id: NOW_US}
    assert store.heartbeats(MemberKind.CONSUMER) == {clients[0][1].id: NOW_US}


def test_no_group_has_the_incarnation_of_another(store: MetadataStore, epoch: int) -> None:
    groups: list[int] = []
    for _ in range(3):
        groups += create(store, epoch).groups
        groups += create(store, epoch, "others").groups
        store.delete_topic("orders", epoch=epoch)
        store.delete_topic("others", epoch=epoch)
    assert len(set(groups)) == len(groups) == 12


def test_a_forgotten_topic_is_restored_as_it_was(store: MetadataStore, epoch: int) -> None:
    with_both = create(store, epoch)
    forgotten = msgspec.structs.replace(
        with_both, name="forgotten", incarnation=with_both.incarnation + 1_000
    )
    assignments = [
        msgspec.structs.replace(a, topic="forgotten", incarnation=a.incarnation + 1_000, version=0)
        for a in store.assignments("orders")
    ]
    store.restore_topic(forgotten, assignments, epoch=epoch)
    assert store.topic("forgotten") == forgotten
    restored = store.assignments("forgotten")
    assert [msgspec.structs.replace(a, version=0) for a in restored] == assignments
    assert create(store, epoch, "later").incarnation >= forgotten.groups.stop, "its groups' numbers are taken"
    with pytest.raises(TopicExists):
        store.restore_topic(forgotten, assignments, epoch=epoch)


def test_a_deleted_topic_is_not_restored(store: MetadataStore, epoch: int) -> None:
    topic = create(store, epoch)
    assignments = store.assignments("orders")
    store.delete_topic("orders", epoch=epoch)
    with pytest.raises(TopicNotFound):
        store.restore_topic(topic, assignments, epoch=epoch)
    assert store.topics() == []


# Assignments


def test_an_assignment_is_replaced_when_it_is_still_what_was_read(store: MetadataStore, epoch: int) -> None:
    create(store, epoch)
    first, second = store.assignments("orders")
    learner = Replica(7, ReplicaRole.LEARNER)
    wish = msgspec.structs.replace(first, replicas=(*first.replicas, learner), target=(7, 1, 2))
    (written,) = store.update_assignments([wish], epoch=epoch)
    assert written == msgspec.structs.replace(wish, version=written.version)
    assert written.version > second.version
    assert store.assignments("orders") == [written, second]
    again = msgspec.structs.replace(written, target=())
    assert store.update_assignments([again], epoch=epoch)[0].target == ()


def test_an_assignment_that_was_changed_meanwhile_is_stale(store: MetadataStore, epoch: int) -> None:
    create(store, epoch)
    first, second = store.assignments("orders")
    (written,) = store.update_assignments([msgspec.structs.replace(first, target=(3, 4, 5))], epoch=epoch)
    with pytest.raises(StaleVersion):
        store.update_assignments([second, msgspec.structs.replace(first, target=(6, 7, 8))], epoch=epoch)
    with pytest.raises(StaleVersion):
        store.update_assignments([msgspec.structs.replace(written, version=0)], epoch=epoch)
    assert store.assignments("orders") == [written, second], "all or none"


def test_an_assignment_of_a_former_topic_is_not_found(store: MetadataStore, epoch: int) -> None:
    create(store, epoch)
    before = store.assignments("orders")
    store.delete_topic("orders", epoch=epoch)
    with pytest.raises(PartitionNotFound):
        store.update_assignments(before, epoch=epoch)
    create(store, epoch)
    now = store.assignments("orders")
    with pytest.raises(PartitionNotFound):
        store.update_assignments(before, epoch=epoch)
    assert store.assignments("orders") == now


# Brokers


def test_brokers_are_numbered_from_0(store: MetadataStore, epoch: int) -> None:
    registered = [
        store.register_broker(f"http://host:{port}", f"disk-{port}", now_us=NOW_US, epoch=epoch)
        for port in range(3)
    ]
    assert [broker.id for broker in registered] == [0, 1, 2]
    assert {broker.status for broker in registered} == {BrokerStatus.ACTIVE}
    assert store.brokers() == registered
    assert registered[2].last_heartbeat_us == NOW_US


def test_a_data_directory_keeps_its_number(store: MetadataStore, epoch: int) -> None:
    first = store.register_broker("http://host:1", "disk", peer_endpoint="host:2", now_us=NOW_US, epoch=epoch)
    moved = store.register_broker("http://host:3", "disk", now_us=NOW_US + 5, epoch=epoch)
    assert moved.id == first.id
    assert (moved.endpoint, moved.peer_endpoint) == ("http://host:3", "host:2")
    assert moved.last_heartbeat_us == NOW_US + 5
    assert moved.version > first.version
    assert store.brokers() == [moved]
    wiped = store.register_broker("http://host:3", "another disk", now_us=NOW_US, epoch=epoch)
    assert wiped.id == first.id + 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BrokerStatus.REMOVED, BrokerStatus.ACTIVE),
        (BrokerStatus.DRAINING, BrokerStatus.DRAINING),
        (BrokerStatus.DEACTIVATED, BrokerStatus.DEACTIVATED),
    ],
)
def test_a_broker_that_registers_again_is_what_it_was_unless_it_had_been_removed(
    store: MetadataStore, epoch: int, before: BrokerStatus, after: BrokerStatus
) -> None:
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    store.update_broker(msgspec.structs.replace(broker, status=before), epoch=epoch)
    assert store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch).status is after


def test_a_brokers_status_is_changed_by_compare_and_set(store: MetadataStore, epoch: int) -> None:
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    inactive = store.update_broker(msgspec.structs.replace(broker, status=BrokerStatus.INACTIVE), epoch=epoch)
    with pytest.raises(StaleVersion):
        store.update_broker(msgspec.structs.replace(broker, status=BrokerStatus.DRAINING), epoch=epoch)
    assert store.brokers() == [inactive]
    with pytest.raises(BrokerNotFound):
        store.update_broker(msgspec.structs.replace(broker, id=99), epoch=epoch)


def test_a_heartbeat_in_between_makes_no_change_stale(store: MetadataStore, epoch: int) -> None:
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    store.record_heartbeats(MemberKind.BROKER, [broker.id], at_us=NOW_US + SECOND_US, epoch=epoch)
    store.update_broker(msgspec.structs.replace(broker, status=BrokerStatus.INACTIVE), epoch=epoch)
    (now,) = store.brokers()
    assert (now.status, now.last_heartbeat_us) == (BrokerStatus.INACTIVE, NOW_US + SECOND_US)


# Producers and consumers


def test_producers_and_consumers_are_numbered_from_0_each_on_their_own(
    store: MetadataStore, epoch: int
) -> None:
    topic = create(store, epoch)
    producers = [store.register_producer("orders", now_us=NOW_US, epoch=epoch) for _ in range(3)]
    consumers = [store.register_consumer("orders", now_us=NOW_US, epoch=epoch) for _ in range(2)]
    assert [producer.id for producer in producers] == [0, 1, 2]
    assert [consumer.id for consumer in consumers] == [0, 1]
    assert {producer.topic_incarnation for producer in producers} == {topic.incarnation}
    assert {consumer.topic_incarnation for consumer in consumers} == {topic.incarnation}
    assert store.producer(1) == producers[1]
    assert store.consumer(1) == consumers[1]


@pytest.mark.parametrize("start", ["earliest", "latest", NOW_US])
@pytest.mark.parametrize("partition", [None, 1])
def test_a_consumer_keeps_where_it_begins(
    store: MetadataStore, epoch: int, start: object, partition: int | None
) -> None:
    create(store, epoch)
    consumer = store.register_consumer(
        "orders",
        partition=partition,
        start=start,  # type: ignore[arg-type]
        now_us=NOW_US,
        epoch=epoch,
    )
    assert (consumer.start, consumer.partition) == (start, partition)
    assert store.consumer(consumer.id) == consumer


def test_clients_need_a_topic_and_a_partition_that_exist(store: MetadataStore, epoch: int) -> None:
    with pytest.raises(TopicNotFound):
        store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    with pytest.raises(TopicNotFound):
        store.register_consumer("orders", now_us=NOW_US, epoch=epoch)
    create(store, epoch)
    for partition in (2, -1):
        with pytest.raises(PartitionNotFound):
            store.register_consumer("orders", partition=partition, now_us=NOW_US, epoch=epoch)
    with pytest.raises(ProducerNotFound):
        store.producer(0)
    with pytest.raises(ConsumerNotFound):
        store.consumer(0)


# Heartbeats


def test_heartbeats_are_recorded_many_at_once_and_never_go_back(store: MetadataStore, epoch: int) -> None:
    create(store, epoch)
    numbers = [store.register_producer("orders", now_us=NOW_US, epoch=epoch).id for _ in range(4)]
    strangers = range(100, 1_500)  # more than a statement takes, and none of them exists
    store.record_heartbeats(MemberKind.PRODUCER, [*strangers, *numbers[1:]], at_us=NOW_US + 2, epoch=epoch)
    store.record_heartbeats(MemberKind.PRODUCER, numbers[2:], at_us=NOW_US + 1, epoch=epoch)
    expected = {0: NOW_US, 1: NOW_US + 2, 2: NOW_US + 2, 3: NOW_US + 2}
    assert store.heartbeats(MemberKind.PRODUCER) == expected
    assert store.producer(3).last_heartbeat_us == NOW_US + 2
    assert store.heartbeats(MemberKind.CONSUMER) == {}
    store.record_heartbeats(MemberKind.PRODUCER, [], at_us=NOW_US + 3, epoch=epoch)


def test_a_heartbeat_is_no_change(store: MetadataStore, epoch: int) -> None:
    broker = store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    before = store.changes(0).version
    store.record_heartbeats(MemberKind.BROKER, [broker.id], at_us=NOW_US + 9, epoch=epoch)
    changes = store.changes(before)
    assert (changes.version, changes.brokers) == (before, ())
    assert store.brokers()[0].last_heartbeat_us == NOW_US + 9


# Life


def test_everything_is_there_for_the_next_who_opens_it(url: str, store: MetadataStore, epoch: int) -> None:
    create(store, epoch)
    store.register_broker("http://host", "disk", now_us=NOW_US, epoch=epoch)
    store.register_producer("orders", now_us=NOW_US, epoch=epoch)
    store.register_consumer("orders", now_us=NOW_US, epoch=epoch)
    with open_metadata(url) as other:
        mine, others = MetadataCopy(), MetadataCopy()
        mine.follow(store)
        others.follow(other)
        assert vars(others) == vars(mine)
        assert others.topics
        assert other.register_producer("orders", now_us=NOW_US, epoch=epoch).id == 1


def test_what_a_newer_version_has_written_is_refused(url: str, store: MetadataStore, epoch: int) -> None:
    _set_format(url, store, 2)
    with pytest.raises(NewerFormat, match="format 2"):
        open_metadata(url)


def _set_format(url: str, store: MetadataStore, number: int) -> None:
    if isinstance(store, RedisMetadata):
        key = store._key("state")
        store._nodes.run(key, ("HSET", key, "format", number))
        return
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE talweg_metadata SET format = {number}"))
    engine.dispose()


@pytest.fixture
def open_forgetful(url: str) -> Callable[[int], MetadataStore]:
    """Opens the store anew, so that it remembers few deleted topics."""

    def opened(removed_kept: int) -> MetadataStore:
        sort = RedisMetadata if url.startswith("redis") else SqlMetadata
        return sort(url, removed_kept=removed_kept)

    return opened


def test_who_missed_deletions_that_are_forgotten_begins_anew(
    store: MetadataStore, epoch: int, open_forgetful: Callable[[int], MetadataStore]
) -> None:
    early, late = MetadataCopy(), MetadataCopy()
    for name in ("a", "b", "c", "d", "kept"):
        create(store, epoch, name)
    early.follow(store)
    with open_forgetful(2) as forgetful:
        for name in ("a", "b"):
            forgetful.delete_topic(name, epoch=epoch)
        late.follow(store)
        assert not store.changes(early.version).restart, "both are remembered"
        for name in ("c", "d"):
            forgetful.delete_topic(name, epoch=epoch)
    assert store.changes(early.version).restart
    assert not store.changes(late.version).restart
    early.follow(store)
    late.follow(store)
    assert set(early.topics) == set(late.topics) == {"kept"}
    assert {removed.name for removed in early.removed.values()} == {"c", "d"}
    assert {removed.name for removed in late.removed.values()} == {"a", "b", "c", "d"}
