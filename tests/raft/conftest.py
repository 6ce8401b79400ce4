"""What the tests of the core share."""

import pytest

from raft.cores import Core


@pytest.fixture(params=[False, True], ids=["singly", "in runs"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are proposed, sent and held each for itself, and then in runs: nobody may tell."""
    monkeypatch.setattr(Core, "in_runs", request.param)
