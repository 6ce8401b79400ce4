"""For tests, ours and yours: a disk that fails on request, a replica on it, whole clusters on virtual time
and on real processes.

`SimulatedFiles` stands in for the file system below segment files; `SimulatedNode` is a broker with one
replica on such a disk; `talweg.testing.simulation` runs a cluster of them from one seed. `LocalCluster` is
a cluster of real processes on this machine, to be killed, paused and restarted.
"""

from talweg.testing.cluster import LocalCluster
from talweg.testing.disk import SimulatedFiles
from talweg.testing.node import SimulatedNode
from talweg.testing.processes import ClusterError

__all__ = ["ClusterError", "LocalCluster", "SimulatedFiles", "SimulatedNode"]
