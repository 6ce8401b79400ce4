"""Fixtures for pytest: a real cluster of three brokers, whole again for every test, whatever was done to it.

    def test_it_survives(talweg_cluster):
        with Producer(talweg_cluster.servers) as producer:
            producer.send("logs", "hello").result()
        talweg_cluster.kill_leader("logs")
        ...

The cluster is started once for a session (with pytest-xdist: once for a worker), since that takes a second
or two, and is put right between tests: processes that were killed or paused run again, and topics of the
test before are gone. One that cannot be put right is replaced. To have them, a conftest.py says

    pytest_plugins = ["talweg.testing.fixture"]
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from talweg.testing.quick import QUICK

if TYPE_CHECKING:  # pytest loads this file at every start, so it waits for nothing that no test may want
    from talweg.testing.cluster import LocalCluster

HEAL_SECONDS_MAX: Final = 15.0  # after which a new cluster is the quicker way


class ClusterKeeper:
    """One cluster at a time, started when it is first wanted, and put right each time it is."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._cluster: LocalCluster | None = None

    def whole(self) -> "LocalCluster":
        """A cluster with everything running and without topics."""
        from talweg.errors import TalwegError  # noqa: PLC0415 - see above
        from talweg.testing.processes import ClusterError  # noqa: PLC0415 - see above

        if self._cluster is not None:
            try:
                self._cluster.heal(HEAL_SECONDS_MAX)
                _delete_topics(self._cluster)
                return self._cluster
            except (ClusterError, TalwegError):
                self.close()
        return self._start()

    def _start(self) -> "LocalCluster":
        from talweg.testing.cluster import LocalCluster  # noqa: PLC0415 - see above

        self._cluster = LocalCluster(**self._arguments)
        self._cluster.start()
        return self._cluster

    def close(self) -> None:
        """Stop it, and forget its data."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _delete_topics(cluster: "LocalCluster") -> None:
    from talweg.errors import NotFound  # noqa: PLC0415 - see above

    with cluster.ask() as manager:
        try:
            names = manager.get("/topics")["topics"]
        except NotFound:
            return
        for name in names:
            manager.delete(f"/topics/{name}")


@pytest.fixture(scope="session")
def talweg_cluster_arguments() -> dict[str, Any]:
    """What `LocalCluster` is made with. Override it in a conftest.py for more brokers or other settings."""
    return {"brokers": 3, "readers": 0, "settings": QUICK}


@pytest.fixture(scope="session")
def talweg_cluster_keeper(talweg_cluster_arguments: dict[str, Any]) -> Iterator[ClusterKeeper]:
    """Starts the session's cluster when a test first wants it, and stops it at the end."""
    keeper = ClusterKeeper(talweg_cluster_arguments)
    yield keeper
    keeper.close()


@pytest.fixture
def talweg_cluster(talweg_cluster_keeper: ClusterKeeper, monkeypatch: pytest.MonkeyPatch) -> "LocalCluster":
    """A real cluster, ready, without topics. Clients that are told no servers find it, too (TALWEG_URL)."""
    cluster = talweg_cluster_keeper.whole()
    monkeypatch.setenv("TALWEG_URL", cluster.servers)
    return cluster


_numbers = itertools.count(1)


@pytest.fixture
def talweg_topic(talweg_cluster: "LocalCluster") -> str:
    """The name of a topic that was just created, with as many partitions as the managers' settings say."""
    name = f"test-topic-{next(_numbers)}"
    with talweg_cluster.ask() as manager:
        manager.post("/topics", name=name)
    return name
