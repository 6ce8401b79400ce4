"""A real cluster for tests of the clients: one for a module, put right again between its tests."""

import itertools
from collections.abc import Iterator

import pytest

from talweg.testing import quick
from talweg.testing.cluster import LocalCluster

SETTINGS = {role: flags | {"--partitions-max": "200"} for role, flags in quick.QUICK.items()}


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    """Three brokers, a primary, two read-only managers; whatever a test did to them is still so."""
    with LocalCluster(settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    module_cluster.heal()
    return module_cluster


@pytest.fixture
def servers(cluster: LocalCluster) -> list[str]:
    """What a client is given: every manager."""
    return [cluster.endpoint(name) for name in cluster.managers]


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no test had before."""
    return f"topic-{next(_numbers)}"
