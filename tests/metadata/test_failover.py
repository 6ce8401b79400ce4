"""What the failover of a Redis master costs: never a number, never a confirmed change, always the lease.

One cluster for the whole file: each test leaves it whole. Replicas that lag are replicas that are paused.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from metadata.conftest import NOW_US, SECOND_US, redis_url_of
from server_process import stands_still, wait_until
from servers import RedisCluster, RedisServer
from talweg.errors import LeaseLost, MetadataUnavailable
from talweg.metadata import MetadataCopy
from talweg.metadata.redis import RedisMetadata
from talweg.metadata.redis_sequences import Numbered

WAIT_MS = 1000  # a replica on a busy disk takes its time, too: it syncs whatever it gets


class Shard:
    """A master and its replica, at the time of asking."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        nodes = {node.port: node for node in cluster.nodes}
        witness = next(node for node in cluster.nodes if node.process is not None)
        slot = int(witness.ask("CLUSTER", "KEYSLOT", key))
        lines = [line.split() for line in witness.ask("CLUSTER", "NODES").splitlines()]
        (master,) = (line for line in lines if "master" in line[2] and _serves(line[8:], slot))
        (replica,) = (line for line in lines if line[3] == master[0])
        self.master, self.replica = (
            nodes[int(line[1].partition("@")[0].rpartition(":")[2])] for line in (master, replica)
        )


def _serves(ranges: list[str], slot: int) -> bool:
    ends = [part.partition("-") for part in ranges]
    return any(int(first) <= slot <= int(last or first) for first, _, last in ends)


@contextlib.contextmanager
def paused(*nodes: RedisServer) -> Iterator[None]:
    for node in nodes:
        os.kill(node.pid, signal.SIGSTOP)
    wait_until(lambda: all(stands_still(node.pid) for node in nodes), "them to stand still")
    try:
        yield
    finally:
        for node in nodes:
            if node.process is not None:
                os.kill(node.pid, signal.SIGCONT)


@contextlib.contextmanager
def cut_off(shard: Shard) -> Iterator[None]:
    """The master's replica is alive and hears nothing of it."""
    with paused(shard.replica):
        shard.master.ask("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: "connected_slaves:0" in shard.master.ask("INFO", "replication"), "the cut")
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as started:
        yield started


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[RedisMetadata]:
    with RedisMetadata(redis_url_of(cluster.url, cluster=True), replica_wait_ms_max=WAIT_MS) as opened:
        yield opened
    cluster.start()


def acquire(store: RedisMetadata) -> int:
    lease = store.acquire_lease("first", "http://first", now_us=NOW_US, duration_us=10 * SECOND_US)
    assert lease is not None
    return lease.epoch


def register(store: RedisMetadata, epoch: int) -> int:
    return store.register_producer("orders", now_us=NOW_US, epoch=epoch).id


def answers(store: RedisMetadata) -> bool:
    """Whether every slot of ours is served: to take a number asks them all."""
    with contextlib.suppress(MetadataUnavailable):
        store._sequences.take(Numbered.CONSUMER)
        return True
    return False


def marks_of(store: RedisMetadata, sequence: Numbered) -> list[int]:
    keys = store._sequences._keys
    return [int(store._nodes.run(key, ("HGET", key, sequence.value)) or 0) for key in keys]


def test_a_change_that_a_lagging_replica_did_not_confirm_may_be_forgotten(
    cluster: RedisCluster, store: RedisMetadata
) -> None:
    epoch = acquire(store)
    topic = store.create_topic("orders", [[0, 1, 2]], now_us=NOW_US, epoch=epoch)
    confirmed = [register(store, epoch) for _ in range(5)]
    follower = MetadataCopy()
    shard = Shard(cluster, store._keys[0])
    with paused(shard.replica):
        for _ in range(2):
            with pytest.raises(MetadataUnavailable, match="no replica of the Redis master confirmed"):
                register(store, epoch)
        with pytest.raises(MetadataUnavailable):
            store.create_topic("phantom", [[0]], now_us=NOW_US, epoch=epoch)
        follower.follow(store)
        assert set(follower.producers) == {*confirmed, 5, 6}
        shard.master.kill()
        shard.replica.kill()  # and what is on its way to it is lost
    shard.replica.start()
    wait_until(lambda: shard.replica.ask("CLUSTER", "FAILOVER", "FORCE") == "OK", "the replica to obey")
    wait_until(lambda: answers(store), "the replica to take over")

    assert marks_of(store, Numbered.PRODUCER) == [5, 7, 7], "the counter in this place has gone back"
    assert store.topics() == [topic], "the one that was not confirmed is forgotten"
    with pytest.raises(LeaseLost):
        store.renew_lease(epoch, now_us=NOW_US, duration_us=SECOND_US)
    newer = acquire(store)
    assert newer > epoch
    assert register(store, newer) == 7, "no number comes again"
    before = follower.version
    assert store.changes(before).restart, "what it knows may be forgotten"
    follower.follow(store)
    assert follower.version > before, "no version comes again"
    assert set(follower.topics) == {"orders"}
    assert set(follower.producers) == {*confirmed, 7}, "two were not confirmed: these are what it cost"


def test_what_was_answered_while_no_replica_was_connected_may_be_forgotten_and_is_restored(
    cluster: RedisCluster, store: RedisMetadata
) -> None:
    old = acquire(store)
    shard = Shard(cluster, store._keys[0])
    with cut_off(shard):
        taken = store.acquire_lease(
            "second", "http://second", now_us=NOW_US + 60 * SECOND_US, duration_us=SECOND_US
        )
        assert taken is not None
        topic = store.create_topic("orders", [[0, 1, 2]], now_us=NOW_US, epoch=taken.epoch)
        assignments = store.assignments("orders")
        numbers = [register(store, taken.epoch) for _ in range(3)]
        shard.master.kill()
    wait_until(lambda: answers(store), "the replica to take over")

    held = store.lease()
    assert held is not None
    assert held.epoch == old, "even that the lease was taken is forgotten"
    for epoch in (old, taken.epoch):
        with pytest.raises(LeaseLost):
            store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    newer = acquire(store)
    assert newer > taken.epoch
    copy = MetadataCopy()
    copy.follow(store)
    assert (copy.topics, copy.producers) == ({}, {}), "this is what it cost"
    assert copy.removed == {}, "but nothing says that a broker may delete the topic's logs"
    store.restore_topic(topic, assignments, epoch=newer)
    assert store.topics() == [topic]
    other = store.create_topic("others", [[0]], now_us=NOW_US, epoch=newer)
    assert other.incarnation not in topic.groups
    assert register(store, newer) > max(numbers)


def test_without_any_replica_that_confirms_no_number_is_handed_out(
    cluster: RedisCluster, store: RedisMetadata
) -> None:
    epoch = acquire(store)
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    replicas = [Shard(cluster, key).replica for key in store._sequences._keys]
    assert len({replica.port for replica in replicas}) == 3, "three slots on three masters"
    with paused(*replicas), pytest.raises(MetadataUnavailable, match="no replica has confirmed"):
        store._sequences.take(Numbered.PRODUCER)
    wait_until(lambda: answers(store), "the replicas to follow again")
    assert register(store, epoch) == 1, "0 is skipped"


def test_the_death_of_a_replica_stops_nothing_and_costs_nothing(
    cluster: RedisCluster, store: RedisMetadata
) -> None:
    epoch = acquire(store)
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    shard = Shard(cluster, store._keys[0])
    shard.replica.kill()
    wait_until(
        lambda: "connected_slaves:0" in shard.master.ask("INFO", "replication"), "the master to notice"
    )
    assert [register(store, epoch) for _ in range(3)] == [0, 1, 2]
    copy = MetadataCopy()
    copy.follow(store)
    shard.master.kill()  # nobody can take its place
    with pytest.raises(MetadataUnavailable):
        register(store, epoch)
    with pytest.raises(MetadataUnavailable):
        store.topics()
    cluster.start()
    wait_until(lambda: answers(store), "the master to be back")
    with pytest.raises(LeaseLost):
        register(store, epoch)
    newer = acquire(store)
    number = register(store, newer)
    assert number > 2
    copy.follow(store)
    assert set(copy.producers) == {0, 1, 2, number}


def test_a_cluster_that_was_killed_as_a_whole_comes_back_as_it_was(
    cluster: RedisCluster, store: RedisMetadata
) -> None:
    epoch = acquire(store)
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    assert [register(store, epoch) for _ in range(3)] == [0, 1, 2]
    cluster.kill()
    with pytest.raises(MetadataUnavailable):
        store.topics()
    cluster.start()
    wait_until(lambda: answers(store), "the cluster to be back")
    assert [topic.name for topic in store.topics()] == ["orders"]
    assert register(store, acquire(store)) == 3
