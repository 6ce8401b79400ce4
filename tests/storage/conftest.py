"""Every store that the contract suite runs over."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from talweg.storage import LogStore, LogStores, MemoryStores, SegmentStores
from talweg.storage.files import RealFiles
from talweg.testing.disk import SimulatedFiles

GROUP = "topic-0"
SEGMENT_BYTES = 2_000  # small, so that every test meets several segments
INTERVAL_BYTES = 300
JOURNAL_BYTES = 3_000
_SALTS = count(1_000_000)  # no two alike, as in earnest, but the same on every run

KINDS = ["memory", "segments", "simulated", "sqlite", "postgresql", "mariadb"]


class Backend:
    """Where logs are kept. `reopen` gives what a restarted broker would find."""

    def __init__(self, open_stores: Callable[[], LogStores], *, persists: bool = True) -> None:
        self.persists = persists
        self._open_stores = open_stores
        self.stores = open_stores()

    def open(self, group: str = GROUP, incarnation: int = 1) -> LogStore:
        return self.stores.open(group, incarnation)

    def reopen(self, group: str = GROUP, incarnation: int = 1) -> LogStore:
        """Close everything and open it again."""
        if self.persists:
            self.stores.close()
            self.stores = self._open_stores()
        return self.open(group, incarnation)


def segment_stores(files: RealFiles | SimulatedFiles, *, journal_least: int = 2) -> SegmentStores:
    return SegmentStores(
        files,
        segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=INTERVAL_BYTES,
        journal_bytes=JOURNAL_BYTES,
        journal_least=journal_least,
        new_salt=_SALTS.__next__,
    )


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    kind: str = request.param
    if kind == "memory":
        made = Backend(MemoryStores, persists=False)
    elif kind == "segments":
        made = Backend(lambda: segment_stores(RealFiles(tmp_path / "logs")))
    elif kind == "simulated":
        files = SimulatedFiles()
        made = Backend(lambda: segment_stores(files))
    else:
        from talweg.storage.sql import SqlStores

        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/logs.sqlite"
        else:
            url = request.getfixturevalue(f"{kind}_database")
        made = Backend(lambda: SqlStores(url))
    yield made
    made.stores.close()


@pytest.fixture
def store(backend: Backend) -> LogStore:
    return backend.open()
