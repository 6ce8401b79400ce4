"""SIGSTOP: a process that stands still for longer than the others wait, and then wakes in the past."""

from collections.abc import Iterator

import pytest

from cluster.clients import Everywhere, Load
from cluster.conftest import QUICK
from talweg.errors import TalwegError, TopicExists
from talweg.testing.asking import try_to_get
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("cluster-pauses")


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(settings=QUICK, standbys=1, readers=1) as cluster:
        yield cluster


def holder(cluster: LocalCluster) -> str | None:
    """The manager that says that it is the primary."""
    for name in (cluster.primary, *cluster.standbys):
        process = cluster.processes[name]
        if process.running and not process.paused:
            face = try_to_get(process.endpoint, "/")
            if face is not None and face["role"] == "primary":
                return name
    return None


def wait_for_holder(cluster: LocalCluster, *, other_than: str = "") -> str:
    wait_until(lambda: holder(cluster) not in (None, other_than), "a primary", 20)
    found = holder(cluster)
    assert found is not None
    return found


def test_a_leader_that_slept_through_an_election_does_no_harm(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic, partitions=1) as load:
        leader = cluster.wait_for_leader(topic, 0)
        cluster.pause(leader)
        successor = cluster.wait_for_leader(topic, 0, other_than=leader)
        load.wait_for_progress()
        cluster.resume(leader)
        load.wait_for_progress()
        cluster.wait_for_status(leader, "active")
        assert successor != leader


def test_a_broker_that_stands_still_is_inactive_and_comes_back_by_itself(
    cluster: LocalCluster, topic: str
) -> None:
    name = cluster.brokers[0]
    cluster.pause(name)
    primary = wait_for_holder(cluster)
    wait_until(lambda: cluster.statuses(primary)[name] == "inactive", f"{name} to be inactive", 20)
    with cluster.ask(primary) as manager:
        with pytest.raises(TalwegError) as refused:
            manager.post("/topics", name=topic, replication=3)
        assert refused.value.code == "too_few_brokers"
        manager.post("/topics", name=topic, replication=2)
        parts = manager.get(f"/topics/{topic}/partitions")["partitions"]
    number = cluster.number(name, primary)
    assert all(number not in part["replicas"] for part in parts)
    cluster.resume(name)
    wait_until(lambda: cluster.statuses(primary)[name] == "active", f"{name} to be active", 20)


def test_a_stand_by_takes_the_lease_and_the_old_primary_wakes_in_vain(
    cluster: LocalCluster, topic: str
) -> None:
    old = wait_for_holder(cluster)
    with Load(cluster, topic) as load:
        cluster.pause(old)
        new = wait_for_holder(cluster, other_than=old)
        load.wait_for_progress()
        client = Everywhere([cluster.endpoint(new)])  # tries again: brokers have to find it first
        client.post("/topics", name=f"{topic}-while-it-slept")
        first = client.post("/producer/register", topic=topic)["producer_id"]
        client.close()
        cluster.resume(old)
        with cluster.ask(old) as manager:
            # It may pass this on to the new primary, or say that it cannot; it does not do it by itself.
            try:
                second = manager.post("/producer/register", topic=topic)["producer_id"]
                assert second > first
            except TalwegError as error:
                assert error.retriable
            with pytest.raises(TalwegError) as refused:
                manager.post("/topics", name=f"{topic}-while-it-slept")
            assert isinstance(refused.value, TopicExists) or refused.value.retriable
        load.wait_for_progress()
        wait_until(
            lambda: (try_to_get(cluster.endpoint(old), "/") or {}).get("role") != "primary",
            "the old primary to see that it is none",
            20,
        )
        assert holder(cluster) == new
        for name in (old, new, *cluster.readers):
            with cluster.ask(name) as manager:
                assert f"{topic}-while-it-slept" in manager.get("/topics")["topics"]


def test_a_stand_by_takes_over_when_the_primary_is_killed(cluster: LocalCluster, topic: str) -> None:
    old = wait_for_holder(cluster)
    with Load(cluster, topic) as load:
        cluster.kill(old)
        new = wait_for_holder(cluster, other_than=old)
        client = Everywhere([cluster.endpoint(new)])
        client.post("/topics", name=f"{topic}-after")
        client.close()
        load.wait_for_progress()
        cluster.restart(old)
        load.wait_for_progress()
        assert holder(cluster) == new, "one that comes back stands by"
