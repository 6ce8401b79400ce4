"""Consumers while brokers and managers die, stand still and come back; topics that go; retention."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from client.consuming import CONSUMERS, create, numbered, produce, taken
from talweg.client.consumer import Consumer
from talweg.errors import OffsetOutOfRange, TopicNotFound, Unavailable
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


class Writer(threading.Thread):
    """Writes numbered messages, ten at a time, until it is told to stop."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.cluster, self.topic = cluster, topic
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.01):
            who = {"producer_id": self.id, "producer_epoch": 0, "sequence": self.count}
            offset = produce(self.cluster, self.topic, numbered(10, self.count), **who)
            assert offset == self.count
            self.count += 10

    id = 0

    def __enter__(self) -> "Writer":
        with self.cluster.ask() as manager:
            self.id = manager.post("/producer/register", topic=self.topic)["producer_id"]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(60)
        assert not self.is_alive()


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_leader_that_goes_costs_a_delay(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any, fault: str
) -> None:
    create(cluster, topic)
    settings = {"group": "g", "auto_commit_interval_ms": 50, "fetch_wait_ms": 200}
    with Writer(cluster, topic) as writer, kind(topic, servers=servers, **settings) as consumer:
        seen = [message.offset for message in taken(consumer, 50)]
        leader = cluster.wait_for_leader(topic, 0)
        getattr(cluster, fault)(leader)
        try:
            cluster.wait_for_leader(topic, 0, other_than=leader)
            seen += [message.offset for message in taken(consumer, 500)]
        finally:
            cluster.resume(leader) if fault == "pause" else cluster.restart(leader)
        seen += [message.offset for message in taken(consumer, 200)]
        writer.stopping.set()
        writer.join(60)
        seen += [message.offset for message in consumer.read_to_end()]
        assert seen == list(range(writer.count))
        consumer.commit()
        assert consumer.committed(topic, 0) == writer.count


def test_a_leader_that_stands_still_at_the_end_is_noticed(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, [b"first"])
    # An answer may take very long here: it is the metadata that says that another one leads.
    with Consumer(topic, servers=servers, fetch_wait_ms=500, request_timeout_ms=60_000) as consumer:
        assert len(taken(consumer, 1)) == 1
        leader = cluster.wait_for_leader(topic, 0)
        cluster.pause(leader)
        try:
            cluster.wait_for_leader(topic, 0, other_than=leader)
            produce(cluster, topic, [b"second"])
            assert next(consumer.messages(timeout=15)).value == b"second"
        finally:
            cluster.resume(leader)


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_managers_may_all_go(cluster: LocalCluster, topic: str, servers: list[str], kind: Any) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with kind(topic, servers=servers, group="g", fetch_wait_ms=200) as consumer:
        assert len(taken(consumer, 2)) == 2
        cluster.pause(cluster.primary)
        cluster.kill(*cluster.readers)
        assert len(taken(consumer, 1)) == 1
        consumer.commit()
        assert consumer.committed(topic, 0) == 3
        assert consumer.lag() == {(topic, 0): 0}
        cluster.resume(cluster.primary)
        produce(cluster, topic, numbered(1, 3))
        assert [message.offset for message in taken(consumer, 1)] == [3]


def test_a_broker_that_is_down_is_named_when_patience_ends(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with Consumer(topic, servers=servers, api_timeout_ms=1000, fetch_wait_ms=100) as consumer:
        assert len(taken(consumer, 3)) == 3
        cluster.kill(*cluster.brokers)
        with pytest.raises(Unavailable):
            consumer.poll_batch(timeout=30)
        cluster.restart(*cluster.brokers)
        produce(cluster, topic, numbered(1, 3))
        assert _patient(consumer) == [3]


def _patient(consumer: Consumer) -> list[int]:
    """The offsets that come next, whatever is raised before."""
    while True:
        try:
            return [message.offset for message in taken(consumer, 1)]
        except Unavailable:
            continue


# Topics that go


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_topic_that_is_deleted_is_missed(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic, 2)
    produce(cluster, topic, numbered(3), 1)
    with kind(topic, servers=servers, fetch_wait_ms=100) as consumer:
        assert len(taken(consumer, 3)) == 3
        with cluster.ask() as manager:
            manager.delete(f"/topics/{topic}")
        for _ in range(3):
            with pytest.raises(TopicNotFound, match=f"no topic {topic} any more"):
                consumer.poll_batch(timeout=30)


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with kind(topic, servers=servers, group="g", fetch_wait_ms=100) as consumer:
        assert len(taken(consumer, 3)) == 3
        consumer.commit()
        with cluster.ask() as manager:
            manager.delete(f"/topics/{topic}")
        create(cluster, topic, 2)
        for partition in range(2):
            # More than were read of the old one, whose offsets mean nothing here.
            produce(cluster, topic, [b"new"] * 5, partition)
        seen: list[tuple[int, int]] = []
        while len(seen) < 10:
            try:
                for message in taken(consumer, 10 - len(seen)):
                    assert message.value == b"new"
                    seen.append((message.partition, message.offset))
            except TopicNotFound:
                continue  # for a moment there was none
        assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(5)]
        consumer.commit()
        assert [consumer.committed(topic, partition) for partition in range(2)] == [5, 5]


# Retention


def _overtake(cluster: LocalCluster, topic: str, offset: int) -> None:
    """Write until retention has dropped a message."""

    def dropped() -> bool:
        produce(cluster, topic, [os.urandom(1 << 15) for _ in range(4)])  # noise, which does not shrink
        with Asker(cluster.endpoint(cluster.wait_for_leader(topic, 0))) as broker:
            offsets = broker.get(f"/v1/topics/{topic}/offsets", at="earliest")["offsets"]
        return int(offsets.get("0", 0)) > offset

    wait_until(dropped, "retention to drop something", 30, pause_seconds=0.1)


@pytest.fixture
def overtaken(cluster: LocalCluster, topic: str, servers: list[str]) -> str:
    """A topic in which retention has overtaken the position of the group `g`."""
    create(cluster, topic, retention_bytes=64 << 10)
    produce(cluster, topic, numbered(3))
    with Consumer(topic, servers=servers, group="g") as consumer:
        assert len(taken(consumer, 1)) == 1
    _overtake(cluster, topic, 2)
    return topic


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_group_that_retention_overtook_goes_on_with_what_is_left(
    cluster: LocalCluster, overtaken: str, servers: list[str], kind: Any
) -> None:
    with kind(overtaken, servers=servers, group="g", fetch_wait_ms=100) as consumer:
        end = produce(cluster, overtaken, [b"last"])
        seen = [message.offset for message in consumer.read_to_end()]
        assert seen == list(range(seen[0], end + 1))
        assert 2 < seen[0] < end


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_group_that_retention_overtook_goes_on_with_what_comes(
    cluster: LocalCluster, overtaken: str, servers: list[str], kind: Any
) -> None:
    settings = {"group": "g", "fetch_wait_ms": 100, "auto_offset_reset": "latest"}
    with kind(overtaken, servers=servers, **settings) as consumer:
        wait_until(lambda: consumer.position(overtaken, 0) > 2, "it to be put right", 30)
        end = produce(cluster, overtaken, [b"last"])
        assert [message.offset for message in taken(consumer, 1)] == [end]


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_group_that_retention_overtook_is_told_if_it_wants(
    cluster: LocalCluster, overtaken: str, servers: list[str], kind: Any
) -> None:
    settings = {"group": "g", "fetch_wait_ms": 100, "auto_offset_reset": "none"}
    with kind(overtaken, servers=servers, **settings) as consumer:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="auto_offset_reset"):
                consumer.poll_batch(timeout=30)
        consumer.seek_all("latest")
        end = produce(cluster, overtaken, [b"last"])
        assert [message.offset for message in taken(consumer, 1)] == [end]


@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_what_was_read_ahead_is_handed_out_though_it_was_dropped_meanwhile(
    cluster: LocalCluster, topic: str, servers: list[str], kind: Any
) -> None:
    create(cluster, topic, retention_bytes=64 << 10)
    produce(cluster, topic, numbered(3))
    with kind(topic, servers=servers, group="g", fetch_wait_ms=100) as consumer:
        assert [message.offset for message in taken(consumer, 2)] == [0, 1]
        _overtake(cluster, topic, 2)
        consumer.commit()  # of a position that is gone: the first one that is left stands for it
        assert consumer.committed(topic, 0) > 2
        assert [message.offset for message in taken(consumer, 1)] == [2]


# Ctrl-C


def test_an_interrupt_ends_a_wait_at_once_and_commits(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    program = (
        "import sys\n"
        "from talweg.client.consumer import Consumer\n"
        "with Consumer(sys.argv[1], servers=sys.argv[2:], group='g', fetch_wait_ms=20000) as consumer:\n"
        "    for message in consumer:\n"
        "        print(message.offset, flush=True)\n"
    )
    command = [sys.executable, "-c", program, topic, *servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=15)
    assert "KeyboardInterrupt" in complaint
    with Consumer(topic, servers=servers, group="g") as consumer:
        # 2 if it struck before the next message was asked for: then nobody was done with the last one.
        assert consumer.committed(topic, 0) in (2, 3)
