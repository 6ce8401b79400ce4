"""How long nobody can write when a leader goes. A few events here; the benchmarks make many."""

from collections.abc import Iterator

import pytest

from cluster.gaps import measure_deactivations, measure_kills, measure_stops
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-gaps")

# With the default settings. An election begins after no less than a second of silence: what is shorter
# shows that leadership was handed over, however busy the machine is.
ELECTION_SECONDS_MIN = 1.0


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(readers=0) as cluster:
        yield cluster


def test_writing_goes_on_soon_after_a_leader_was_killed(cluster: LocalCluster) -> None:
    assert measure_kills(cluster, 3).worst < 4.0


def test_writing_hardly_stops_when_leadership_is_moved_on_purpose(cluster: LocalCluster) -> None:
    assert measure_stops(cluster, 3).median < ELECTION_SECONDS_MIN
    assert measure_deactivations(cluster, 3).median < ELECTION_SECONDS_MIN
