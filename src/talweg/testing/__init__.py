"""For tests, ours and yours: a disk that fails on request, a replica on it, whole clusters on virtual time
and on real processes.

`SimulatedFiles` stands in for the file system below segment files; `SimulatedNode` is a broker with one
replica on such a disk; `talweg.testing.simulation` runs a cluster of them from one seed. `LocalCluster` is
a cluster of real processes on this machine, to be killed, paused and restarted; `talweg.testing.fixture`
gives it to tests under pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talweg.testing.cluster import LocalCluster
    from talweg.testing.disk import SimulatedFiles
    from talweg.testing.node import SimulatedNode
    from talweg.testing.processes import ClusterError
    from talweg.testing.quick import QUICK

__all__ = ["QUICK", "ClusterError", "LocalCluster", "SimulatedFiles", "SimulatedNode"]

# Loaded when they are first asked for: pytest loads this package at every start to find the fixtures, and
# whoever wants a cluster of processes has no use for the simulated parts.
_PLACES = {
    "ClusterError": "talweg.testing.processes",
    "LocalCluster": "talweg.testing.cluster",
    "SimulatedFiles": "talweg.testing.disk",
    "SimulatedNode": "talweg.testing.node",
    "QUICK": "talweg.testing.quick",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_PLACES[name]), name)
