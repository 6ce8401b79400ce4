"""A real cluster for tests of the command: one for all of them, put right again between tests."""

import itertools

import pytest

from cli.shell import Shell
from shared_clusters import shared_cluster
from talweg.testing.cluster import LocalCluster
from talweg.testing.quick import QUICK


@pytest.fixture(scope="module")
def directory_cluster(request: pytest.FixtureRequest) -> LocalCluster:
    return shared_cluster(request, lambda: LocalCluster(readers=1, settings=QUICK))


@pytest.fixture
def cluster(directory_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    directory_cluster.heal()
    return directory_cluster


@pytest.fixture
def talweg(cluster: LocalCluster) -> Shell:
    """The command, which finds the cluster by TALWEG_URL."""
    return Shell(cluster.url)


_numbers = itertools.count()


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A new topic with three partitions."""
    name = f"topic-{next(_numbers)}"
    with cluster.ask() as manager:
        manager.post("/topics", name=name, partitions=3)
    return name
