"""How long nobody can write when a leader goes. A few events here; the benchmarks make many."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from bench.gaps import QUICK, Stage
from bench.results import Scene

pytestmark = pytest.mark.xdist_group("cluster-gaps")

# With the default settings. An election begins after no less than a second of silence: what is shorter
# shows that leadership was handed over, however busy the machine is.
ELECTION_SECONDS_MIN = 1.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("gaps")
    with Stage(Scene(directory, lambda doing: None), QUICK, brokers=3) as standing:
        yield standing


def test_writing_goes_on_soon_after_a_leader_was_killed(stage: Stage) -> None:
    assert max(stage.gap("kill", stage.kill) for _ in range(3)) < 4.0


def test_writing_hardly_stops_when_leadership_is_moved_on_purpose(stage: Stage) -> None:
    assert median(stage.gap("stop", stage.stop) for _ in range(3)) < ELECTION_SECONDS_MIN
    assert median(stage.gap("deactivation", stage.deactivate) for _ in range(3)) < ELECTION_SECONDS_MIN
