"""kill -9 of every sort of process under load: nothing acknowledged is lost, nothing is there twice."""

import pytest

from cluster.clients import Consumer, Load
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-kills")


def test_nothing_happens_and_everything_is_there(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        load.wait_for_progress(50)


def test_a_leader_is_killed(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        leader = cluster.wait_for_leader(topic, 0)
        cluster.kill(leader)
        load.wait_for_progress()
        assert cluster.wait_for_leader(topic, 0, other_than=leader) != leader
        cluster.restart(leader)
        load.wait_for_progress()


def test_a_follower_is_killed(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic, partitions=1) as load:
        leader = cluster.wait_for_leader(topic, 0)
        follower = next(name for name in cluster.brokers if name != leader)
        cluster.kill(follower)
        load.wait_for_progress()
        assert cluster.leader(topic, 0) == leader, "nobody had a reason to elect another"
        cluster.restart(follower)
        load.wait_for_progress()


def test_the_primary_is_killed(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        late = Consumer([cluster.endpoint(name) for name in cluster.readers], topic)
        late.register()
        load.wait_for_progress(50)
        cluster.kill(cluster.primary)
        late.start()
        late.wait_for(100)  # reading goes on, through the others; what is to be written waits
        cluster.restart(cluster.primary)
        load.wait_for_progress()
        load.consumers.append(late)


def test_a_read_only_manager_is_killed(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        cluster.kill(cluster.readers[0])
        load.wait_for_progress()
        cluster.restart(cluster.readers[0])
        load.wait_for_progress()


def test_all_three_brokers_are_killed_at_once(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        cluster.kill(*cluster.brokers)
        cluster.restart(*cluster.brokers)
        load.wait_for_progress()


def test_a_leader_and_the_primary_are_killed_together(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        leader = cluster.wait_for_leader(topic, 0)
        cluster.kill(leader, cluster.primary)
        cluster.restart(cluster.primary)
        load.wait_for_progress()  # the leader is still away
        cluster.restart(leader)
        load.wait_for_progress()


def test_one_broker_after_the_other_is_killed(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        for name in cluster.brokers:
            cluster.kill(name)
            load.wait_for_progress()
            cluster.restart(name)
            cluster.wait_until_ready()
        load.wait_for_progress()


def test_brokers_are_restarted_one_by_one(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        for name in cluster.brokers:
            assert cluster.terminate(name) == 0
            load.wait_for_progress()
            cluster.restart(name)
            cluster.wait_until_ready()
        load.wait_for_progress()


def test_managers_are_restarted_one_by_one(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        for name in cluster.managers:
            assert cluster.terminate(name) == 0
            if name != cluster.primary:
                load.wait_for_progress()
            cluster.restart(name)
        load.wait_for_progress()
