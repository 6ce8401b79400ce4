"""A real cluster for tests of the clients: one for all of them, put right again between tests."""

import itertools
from functools import partial

import pytest

from shared_clusters import shared_cluster
from talweg.errors import NotFound, Unavailable
from talweg.testing import quick
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

SETTINGS = {
    "broker": quick.QUICK["broker"]
    | {"--snapshot-every": "64 KiB", "--retention-every": "100ms"},  # cut finely, look often
    "manager": quick.QUICK["manager"] | {"--partitions-max": "200"},
}


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
                wait_until(partial(_is_deleted, manager, topic["topic"]), "a topic to be deleted", 20)


def _is_deleted(manager: Asker, topic: str) -> bool:
    try:
        manager.delete(f"/topics/{topic}")
    except Unavailable:  # on a busy machine the primary may lose its lease, and have it again in a moment
        return False
    except NotFound:
        pass  # it was deleted, and the answer was lost
    return True


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
