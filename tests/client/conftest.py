"""A real cluster for tests of the clients: one for all of them, put right again between tests."""

import itertools

import pytest

from shared_clusters import shared_cluster
from talweg.testing import quick
from talweg.testing.cluster import LocalCluster

SETTINGS = {role: flags | {"--partitions-max": "200"} for role, flags in quick.QUICK.items()}
SETTINGS["broker"] |= {"--snapshot-every": "64 KiB", "--retention-every": "100ms"}  # cut finely, look often


@pytest.fixture(scope="module")
def directory_cluster(request: pytest.FixtureRequest) -> LocalCluster:
    """Three brokers, a primary and two read-only managers, without topics."""
    cluster = shared_cluster(request, lambda: LocalCluster(settings=SETTINGS))
    cluster.heal()
    _delete_topics(cluster)  # of the module before: each costs something as long as it is there
    return cluster


def _delete_topics(cluster: LocalCluster) -> None:
    with cluster.ask() as manager:
        for topic in manager.get("/v1/metadata")["topics"]:
            if not topic["topic"].startswith("__"):
                manager.delete(f"/topics/{topic['topic']}")


@pytest.fixture
def cluster(directory_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    directory_cluster.heal()
    return directory_cluster


@pytest.fixture
def servers(cluster: LocalCluster) -> list[str]:
    """What a client is given: every manager."""
    return [cluster.endpoint(name) for name in cluster.managers]


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no test had before."""
    return f"topic-{next(_numbers)}"
