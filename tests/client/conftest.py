"""A real cluster for tests of the clients: one for all of them, put right again between tests."""

import itertools
from collections.abc import Iterator

import pytest

from talweg.testing import quick
from talweg.testing.cluster import LocalCluster

SETTINGS = {role: flags | {"--partitions-max": "200"} for role, flags in quick.QUICK.items()}
SETTINGS["broker"] |= {"--snapshot-every": "64 KiB", "--retention-every": "100ms"}  # cut finely, look often

_SHARED = pytest.StashKey[LocalCluster]()


@pytest.fixture(scope="module")
def module_cluster(request: pytest.FixtureRequest) -> LocalCluster:
    """Three brokers, a primary, two read-only managers, without topics; what a test did to them is still so.

    To start it takes longer than most modules do, so that the next one of this directory goes on with it.
    """
    stash = request.config.stash
    if _SHARED not in stash:
        made = LocalCluster(settings=SETTINGS)
        made.start()
        stash[_SHARED] = made
    else:
        stash[_SHARED].heal()
        _delete_topics(stash[_SHARED])  # each costs something as long as it is there
    return stash[_SHARED]


def _delete_topics(cluster: LocalCluster) -> None:
    with cluster.ask() as manager:
        for topic in manager.get("/v1/metadata")["topics"]:
            if not topic["topic"].startswith("__"):
                manager.delete(f"/topics/{topic['topic']}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The next test is of another directory: nobody needs the cluster any more."""
    try:
        return (yield)
    finally:
        if (nextitem is None or nextitem.path.parent != item.path.parent) and _SHARED in item.config.stash:
            item.config.stash[_SHARED].close()
            del item.config.stash[_SHARED]


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
