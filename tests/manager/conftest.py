import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manager.clusters import Cluster

Play = Callable[..., None]  # of a scenario, which is given the cluster, and of settings


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a scenario on a cluster of its own, of which nothing is started yet."""

    def run(scenario: Callable[[Cluster], Awaitable[Any]], **settings: Any) -> None:
        async def whole() -> None:
            cluster = Cluster(tmp_path, **settings)
            try:
                await scenario(cluster)
            finally:
                await cluster.stop()

        asyncio.run(whole())

    return run


@pytest.fixture(autouse=True)
def every_error_is_declared(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A call that fails with what it does not declare is logged, and found here."""
    yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert [text for text in said if "does not declare" in text] == []


class Standing:
    """A cluster that stands while the tests of a file use it. Its event loop rests between them."""

    def __init__(self, runner: asyncio.Runner, cluster: Cluster) -> None:
        self.run = runner.run
        self.cluster = cluster
        self.caller = cluster.caller
        self.primary = cluster.managers[0].endpoint
        self.read_only = cluster.managers[1].endpoint

    def get(self, path: str, /, **query: Any) -> Any:
        return self.run(self.caller.get(self.primary, path, **query))

    def post(self, path: str, /, **body: Any) -> Any:
        return self.run(self.caller.post(self.primary, path, **body))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """Three brokers, a primary and a read-only manager."""
    cluster: Cluster | None = None

    async def start() -> Cluster:
        started = Cluster(tmp_path_factory.mktemp("cluster"))
        await started.start()
        await started.manager(read_only=True)
        return started

    with asyncio.Runner() as runner:
        cluster = runner.run(start())
        try:
            yield Standing(runner, cluster)
        finally:
            runner.run(cluster.stop())
