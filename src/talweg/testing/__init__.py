"""For tests, ours and yours: a disk that fails on request, a replica on it, whole clusters on virtual time.

`SimulatedFiles` stands in for the file system below segment files; `SimulatedNode` is a broker with one
replica on such a disk; `talweg.testing.simulation` runs a cluster of them from one seed.
"""

from talweg.testing.disk import SimulatedFiles
from talweg.testing.node import SimulatedNode

__all__ = ["SimulatedFiles", "SimulatedNode"]
