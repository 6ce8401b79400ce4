"""Administration on a real cluster: everything it can be asked, and both kinds of it alike."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import pytest

from client.consuming import TIMESTAMP, numbered, produce, taken
from talweg.client.admin import Admin
from talweg.client.async_admin import AsyncAdmin
from talweg.client.background import Background
from talweg.client.consumer import Consumer
from talweg.errors import (
    BadRequest,
    BadTopicName,
    BrokerNotFound,
    ConsumerNotFound,
    InvalidSetting,
    OffsetOutOfRange,
    PartitionNotFound,
    TooFewBrokers,
    TopicExists,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


class Twin:
    """An AsyncAdmin in a loop of its own, to be used as an Admin is."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        async def make() -> AsyncAdmin:
            return AsyncAdmin(*arguments, **named)

        self._background = Background("twin")
        self._twin = self._background.run(make())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: self._background.run(
            getattr(self._twin, name)(*arguments, **named)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._twin.close())
        self._background.close()


@pytest.fixture(params=[Admin, Twin], ids=["Admin", "AsyncAdmin"])
def admin(request: pytest.FixtureRequest, servers: list[str]) -> Iterator[Any]:
    with request.param(servers, timeout=20) as made:
        yield made


# Topics


def test_a_topic_comes_is_described_and_goes(cluster: LocalCluster, topic: str, admin: Any) -> None:
    assert admin.create_topic(topic, partitions=2, replication=3) == 2
    assert topic in admin.topics()
    produce(cluster, topic, numbered(5), 1)
    described = admin.topic(topic)
    assert described.topic == topic
    assert [part.partition for part in described.partitions] == [0, 1]
    assert [(part.start_offset, part.next_offset, part.size) for part in described.partitions] == [
        (0, 0, 0),
        (0, 5, 5),
    ]
    assert described.size == 5
    for part in described.partitions:
        assert part.leader in part.replicas
        assert len(part.replicas) == 3
    admin.delete_topic(topic)
    assert topic not in admin.topics()
    for gone in (admin.topic, admin.delete_topic, admin.consumers):
        with pytest.raises(TopicNotFound, match=topic):
            gone(topic)


def test_what_is_not_given_is_as_the_settings_say(topic: str, admin: Any) -> None:
    assert admin.create_topic(topic) == 4
    assert {len(part.replicas) for part in admin.topic(topic).partitions} == {3}


def test_topics_that_cannot_be_are_refused(topic: str, admin: Any) -> None:
    admin.create_topic(topic, 1)
    with pytest.raises(TopicExists):
        admin.create_topic(topic, 1)
    with pytest.raises(BadTopicName):
        admin.create_topic("no spaces, please")
    with pytest.raises(BadRequest, match="partitions"):
        admin.create_topic(f"{topic}-none", 0)
    for use in (admin.create_topic, admin.delete_topic, admin.topic):
        with pytest.raises(TypeError, match="topic: expected a str, not bytes"):
            use(b"abc")  # it would be YWJj on the wire
    assert "YWJj" not in admin.topics()


def test_too_few_brokers_are_said_in_time(cluster: LocalCluster, topic: str, servers: list[str]) -> None:
    with Admin(servers, timeout=1) as admin, pytest.raises(TooFewBrokers):
        admin.create_topic(topic, 1, replication=5)


def test_offsets_are_by_partition(cluster: LocalCluster, topic: str, admin: Any) -> None:
    admin.create_topic(topic, 2)
    produce(cluster, topic, numbered(3), timestamps=[TIMESTAMP + 1_000_000 * each for each in range(3)])
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=TIMESTAMP + 1_500_000)
    assert admin.offsets(topic, "earliest") == {0: 0, 1: 0}
    assert admin.offsets(topic, "latest") == {0: 3, 1: 0}
    assert admin.offsets(topic, moment) == {0: 2, 1: 0}
    assert admin.offsets(topic, moment.isoformat()) == {0: 2, 1: 0}


# What nobody knows whether it was done


class Lossy:
    """Between a client and the primary: carries out what is asked, and loses the first answers to writes."""

    def __init__(self, endpoint: str) -> None:
        self._port = int(endpoint.rpartition(":")[2])
        self.background = Background("lossy")
        self.lost = 0
        self.losses = 1
        self.server = self.background.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while request := await reader.read(1 << 16):
                up_writer.write(request)
                answer = await up_reader.read(1 << 16)
                if request.startswith((b"POST", b"DELETE")) and self.lost < self.losses:
                    self.lost += 1
                    break
                writer.write(answer)
        finally:
            writer.close()
            up_writer.close()

    def close(self) -> None:
        self.background.loop.call_soon_threadsafe(self.server.close)
        self.background.close()


@pytest.fixture
def lossy(cluster: LocalCluster) -> Iterator[Lossy]:
    made = Lossy(cluster.url)
    yield made
    made.close()


def test_a_topic_whose_answer_was_lost_is_ours(lossy: Lossy, topic: str) -> None:
    with Admin(lossy.url, timeout=20) as admin:
        assert admin.create_topic(topic, 2) == 2
        assert lossy.lost == 1
        with pytest.raises(TopicExists):
            admin.create_topic(topic, 2)
        lossy.lost = 0
        admin.delete_topic(topic)
        assert lossy.lost == 1
        with pytest.raises(TopicNotFound):
            admin.delete_topic(topic)


def test_a_topic_of_another_shape_is_not_ours(lossy: Lossy, topic: str) -> None:
    with Admin(lossy.url, timeout=20) as admin:
        lossy.losses = 0
        admin.create_topic(topic, 1)
        lossy.losses = 1
        with pytest.raises(TopicExists):
            admin.create_topic(topic, 2)
        assert lossy.lost == 1


# Brokers and managers


def test_brokers_are_listed_and_set_aside(cluster: LocalCluster, admin: Any) -> None:
    brokers = admin.brokers()
    assert {broker.endpoint for broker in brokers} == {cluster.endpoint(name) for name in cluster.brokers}
    number = brokers[0].id
    assert admin.add_broker(brokers[0].endpoint) == number
    admin.deactivate_broker(number)
    assert {broker.id: broker.status for broker in admin.brokers()}[number] == "deactivated"
    admin.activate_broker(number)
    assert {broker.id: broker.status for broker in admin.brokers()}[number] == "active"
    for refused in (admin.remove_broker, admin.activate_broker, admin.deactivate_broker):
        with pytest.raises(BrokerNotFound):
            refused(999)


def test_all_managers_are_found_from_one(cluster: LocalCluster) -> None:
    with Admin(cluster.url) as admin:
        managers = {manager.endpoint: manager for manager in admin.managers()}
        assert set(managers) == {cluster.endpoint(name) for name in cluster.managers}
        assert managers[cluster.url].role == "primary"
        assert all(manager.healthy and manager.version for manager in managers.values())
        cluster.kill(cluster.readers[0])
        (dead,) = [manager for manager in admin.managers() if manager.role is None]
        assert dead.endpoint == cluster.endpoint(cluster.readers[0])
        assert dead.error


def test_the_status_says_who_does_not_lead(cluster: LocalCluster, topic: str, admin: Any) -> None:
    admin.create_topic(topic, 1)
    wait_until(lambda: admin.status().healthy, "the cluster to be well", 20)
    status = admin.status()
    assert topic in {each.topic for each in status.topics}
    assert len(status.brokers) == 3
    cluster.kill(cluster.brokers[0])
    wait_until(lambda: not admin.status().healthy, "the cluster to be unwell", 20)


def test_nobody_at_the_address_is_said_in_time() -> None:
    threads = threading.active_count()
    with Admin("127.0.0.1:1", timeout=0.3) as admin:
        with pytest.raises(Unreachable, match=r"no manager answers at .*:1: start the cluster.*TALWEG_URL"):
            admin.topics()
        (manager,) = admin.managers()
        assert manager.role is None
    assert threading.active_count() == threads
    with pytest.raises(Unavailable, match="closed"):
        admin.topics()
    admin.close()


@pytest.mark.parametrize("timeout", [None, 0, -1, "5", True, float("nan")])
def test_a_timeout_that_cannot_be_is_refused(timeout: Any) -> None:
    for kind in (Admin, AsyncAdmin):
        with pytest.raises(InvalidSetting, match="timeout: "):
            kind("127.0.0.1:1", timeout=timeout)


def test_one_that_is_dropped_ends_by_itself(servers: list[str]) -> None:
    threads = threading.active_count()
    kept = [Admin(servers)]
    kept[0].topics()
    with pytest.warns(ResourceWarning, match="an Admin was not closed"):
        kept.clear()
    wait_until(lambda: threading.active_count() == threads, "its threads to end", 20)


def test_one_that_was_closed_says_so_at_once() -> None:
    async def work() -> None:
        admin = AsyncAdmin("127.0.0.1:1", timeout=60)
        await admin.close()
        async with asyncio.timeout(10):
            for call in (admin.topics(), admin.create_topic("t"), admin.offsets("t", "latest")):
                with pytest.raises(Unavailable, match="closed"):
                    await call

    asyncio.run(work())


# Who has read how far


def test_groups_and_registered_consumers_are_listed_with_their_lag(
    cluster: LocalCluster, topic: str, servers: list[str], admin: Any
) -> None:
    admin.create_topic(topic, 2)
    assert admin.consumers(topic) == []
    for partition in range(2):
        produce(cluster, topic, numbered(5), partition)
    with Consumer(topic, servers=servers, group="readers", partitions=[0]) as consumer:
        taken(consumer, 3)
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=topic)["consumer_id"]
        manager.get("/consumer/consume", topic=topic, consumer_id=number)
    group, registered = admin.consumers(topic)
    assert (group.group, group.consumer_id, group.status) == ("readers", None, None)
    assert {number: (each.position, each.lag) for number, each in group.partitions.items()} == {0: (3, 2)}
    assert group.lag == 2
    assert (registered.group, registered.consumer_id, registered.status) == (None, number, "active")
    assert sorted(registered.partitions) == [0, 1]
    assert registered.lag == 9
    assert {consumer.topic for consumer in admin.consumers()} >= {topic}


def test_what_nobody_can_say_is_not_told_as_nothing(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    with Admin(servers, timeout=3) as admin:
        admin.create_topic(topic, 2)
        admin.seek("readers", topic, "earliest")
        cluster.kill(*cluster.brokers[:2])
        with pytest.raises(Unavailable, match=f"who reads {topic} 0, {topic} 1"):
            admin.consumers(topic)
        found = admin.consumers(topic, partial=True)
        assert (found, found.unasked) == ([], {topic: (0, 1)})
        assert admin.topic(topic).size is None
        for name in cluster.brokers[:2]:
            cluster.wait_for_status(name, "inactive")
        assert {(topic, 0), (topic, 1)} <= set(admin.status().leaderless)


def test_producers_are_listed(cluster: LocalCluster, topic: str, admin: Any) -> None:
    with cluster.ask() as manager:
        number = manager.post("/producer/register", topic=topic)["producer_id"]
    assert (number, topic) in {(producer.id, producer.topic) for producer in admin.producers()}


def test_a_group_and_a_registered_consumer_are_sent_elsewhere(
    cluster: LocalCluster, topic: str, servers: list[str], admin: Any
) -> None:
    admin.create_topic(topic, 2)
    for partition in range(2):
        produce(cluster, topic, numbered(5), partition)
    assert admin.seek("readers", topic, "latest") == {0: 5, 1: 5}
    assert admin.seek("readers", topic, 2, partition=1) == {1: 2}
    with Consumer(topic, servers=servers, group="readers") as consumer:
        assert [(each.partition, each.offset) for each in consumer.read_to_end()] == [(1, 2), (1, 3), (1, 4)]
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=topic, start="latest")["consumer_id"]
        assert admin.seek(number, topic, 4, partition=0) == {0: 4}
        read = manager.get("/consumer/consume", topic=topic, consumer_id=number)
        assert (read["partition"], read["offset"]) == (0, 4)
    with pytest.raises(ConsumerNotFound):
        admin.seek(12345, topic, "earliest")
    with pytest.raises(PartitionNotFound, match="only 0 to 1"):
        admin.seek("readers", topic, "earliest", partition=2)
    with pytest.raises(OffsetOutOfRange, match="holds 0 to 5"):
        admin.seek("readers", topic, 6)
    with pytest.raises(BadRequest, match="#"):
        admin.seek("#1", topic, 0)


# Holds


def test_retention_is_held_back_where_a_consumer_is(cluster: LocalCluster, topic: str, admin: Any) -> None:
    admin.create_topic(topic, 2)
    produce(cluster, topic, numbered(5), 0)
    admin.seek("slow", topic, 3, partition=0)
    assert admin.hold("slow", topic, 1_000_000) == [0, 1]
    assert admin.hold("slow", topic, 500, partition=1) == [1]
    (slow,) = admin.consumers(topic)
    held = {number: (each.position, each.keep_bytes) for number, each in slow.partitions.items()}
    assert held == {0: (3, 1_000_000), 1: (0, 500)}  # where it was, and from the first message on
    assert (slow.keep_bytes, slow.overtaken) == (1_000_000, False)
    admin.seek("slow", topic, 1, partition=0)  # it may move, and is still waited for
    assert admin.release("slow", topic, partition=1) == [1]
    (slow,) = admin.consumers(topic)
    held = {number: (each.position, each.keep_bytes) for number, each in slow.partitions.items()}
    assert held == {0: (1, 1_000_000), 1: (0, None)}
    assert admin.release("slow", topic) == [0, 1]
    assert admin.release("nobody", topic) == [0, 1]
    (slow,) = admin.consumers(topic)  # and nobody has become somebody by that
    assert slow.keep_bytes is None


def test_a_registered_consumer_is_held_for_in_what_it_reads(
    cluster: LocalCluster, topic: str, admin: Any
) -> None:
    admin.create_topic(topic, 2)
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=topic, partition=1)["consumer_id"]
    assert admin.hold(number, topic, 1_000_000) == [1]
    (registered,) = admin.consumers(topic)
    assert {number: each.keep_bytes for number, each in registered.partitions.items()} == {1: 1_000_000}


# Deleting positions


def test_a_group_whose_positions_are_deleted_is_gone_with_its_hold(
    cluster: LocalCluster, topic: str, servers: list[str], admin: Any
) -> None:
    admin.create_topic(topic, 2)
    produce(cluster, topic, numbered(5), 0)
    admin.seek("gone & lost", topic, 3, partition=0)
    admin.hold("gone & lost", topic, 1_000)
    admin.seek("stays", topic, 2, partition=0)
    assert admin.delete_positions("gone & lost", topic, partition=1) == [1]
    assert [(each.name, sorted(each.partitions)) for each in admin.consumers(topic)] == [
        ("gone & lost", [0]),
        ("stays", [0]),
    ]
    assert admin.delete_positions("gone & lost", topic) == [0, 1]
    assert [each.name for each in admin.consumers(topic)] == ["stays"]
    assert admin.delete_positions("gone & lost", topic) == [0, 1]  # once more does nothing
    with Consumer(topic, servers=servers, group="gone & lost") as consumer:
        assert [message.value for message in taken(consumer, 5)] == numbered(5)
    with pytest.raises(ConsumerNotFound):
        admin.delete_positions(12345, topic)
    with pytest.raises(PartitionNotFound, match="no partition 2"):
        admin.delete_positions("stays", topic, partition=2)


def test_a_registered_consumer_begins_anew_when_its_positions_are_deleted(
    cluster: LocalCluster, topic: str, admin: Any
) -> None:
    admin.create_topic(topic, 2)
    produce(cluster, topic, numbered(3), 0)
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=topic)["consumer_id"]

        def consume() -> str:
            taken: str = manager.get("/consumer/consume", topic=topic, consumer_id=number)["message"]
            return taken

        first = [consume(), consume()]
        assert admin.delete_positions(number, topic) == [0, 1]
        # The manager remembers where it was, and is put right by the broker.
        assert [consume(), consume(), consume()] == [*first, "message 2"]


def test_holds_that_cannot_be_are_refused(topic: str, admin: Any) -> None:
    admin.create_topic(topic, 1)
    with pytest.raises(ConsumerNotFound):
        admin.hold(12345, topic, 1_000)
    with pytest.raises(PartitionNotFound, match="no partition 2"):
        admin.hold("slow", topic, 1_000, partition=2)
    with pytest.raises(BadRequest, match="keep_bytes: expected a number of bytes from 1 up, got 0"):
        admin.hold("slow", topic, 0)
    with pytest.raises(BadRequest, match="#"):
        admin.release("#1", topic)
    assert admin.consumers(topic) == []


# What dies


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_primary_that_goes_costs_a_delay(cluster: LocalCluster, topic: str, admin: Any, fault: str) -> None:
    admin.create_topic(topic, 1)
    getattr(cluster, fault)(cluster.primary)
    back = threading.Timer(
        0.5, lambda: cluster.resume(cluster.primary) if fault == "pause" else cluster.restart(cluster.primary)
    )
    back.start()
    try:
        # Whoever answers in its place may have heard of the topic a moment later than the primary.
        wait_until(lambda: topic in admin.topics(), "the topic to be listed", 20)
        assert admin.offsets(topic, "latest") == {0: 0}
        assert admin.create_topic(f"{topic}-more", 1) == 1
    finally:
        back.join()
