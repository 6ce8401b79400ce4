"""A real cluster for tests of the command: one for all of them, put right again between tests."""

import itertools
from collections.abc import Iterator

import pytest

from cli.shell import Shell
from talweg.testing.cluster import LocalCluster
from talweg.testing.quick import QUICK


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(readers=1, settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    session_cluster.heal()
    return session_cluster


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
