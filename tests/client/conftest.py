"""A real cluster for tests of the clients: one for a module, put right again between its tests."""

import itertools
from collections.abc import Iterator

import pytest

from talweg.testing.cluster import LocalCluster

# Elections of some 0.5 s, so that tests need not wait; but not so short that a busy machine elects for ever.
# Servers wait for each other's answers no longer than it takes to find out that one stands still.
BOTH = {"--heartbeat": "200ms", "--partitions-max": "200", "--request-timeout": "3s"}
QUICK = {"broker": BOTH | {"--tick": "50ms"}, "manager": BOTH | {"--lease": "1s", "--health": "200ms"}}


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    """Three brokers, a primary, two read-only managers; whatever a test did to them is still so."""
    with LocalCluster(settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    for process in module_cluster.processes.values():
        if process.paused:
            process.resume()
    module_cluster.start_processes()
    module_cluster.wait_until_ready()
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
