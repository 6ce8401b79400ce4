"""One cluster for all tests of myqueue, put right before each; with a stand-by, so that it can lose one."""

import itertools
from collections.abc import Iterator

import pytest

from myqueue import ApiHandler
from shared_clusters import shared_cluster
from talweg.testing.cluster import LocalCluster

BOTH = {"--heartbeat": "200ms", "--request-timeout": "3s"}
QUICK = {
    "broker": BOTH | {"--tick": "50ms"},
    "manager": BOTH
    | {"--lease": "1s", "--health": "200ms", "--client-timeout": "2s", "--partitions-max": "200"},
}


@pytest.fixture(scope="module")
def directory_cluster(request: pytest.FixtureRequest) -> LocalCluster:
    return shared_cluster(request, lambda: LocalCluster(readers=1, standbys=1, settings=QUICK))


@pytest.fixture
def cluster(directory_cluster: LocalCluster) -> LocalCluster:
    """Everything runs and is ready, whatever the test before did to it."""
    for process in directory_cluster.processes.values():
        if process.paused:
            process.resume()
    directory_cluster.start_processes()
    directory_cluster.wait_until_ready()
    return directory_cluster


@pytest.fixture
def broker(cluster: LocalCluster) -> str:
    """The addresses of all managers, as users give them."""
    return ",".join(cluster.endpoint(name).removeprefix("http://") for name in cluster.managers)


@pytest.fixture
def api(broker: str) -> Iterator[ApiHandler]:
    with ApiHandler(broker) as handler:
        yield handler


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no test had before."""
    return f"topic-{next(_numbers)}"
