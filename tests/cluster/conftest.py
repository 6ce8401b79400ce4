"""Clusters for tests on real processes: one for a module, put right again between its tests."""

import itertools
from collections.abc import Iterator

import pytest

from talweg.testing import quick
from talweg.testing.cluster import LocalCluster

QUICK = quick.QUICK | {"manager": quick.QUICK["manager"] | {"--partitions-max": "120"}}


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    module_cluster.heal()
    return module_cluster


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no test had before."""
    return f"topic-{next(_numbers)}"
