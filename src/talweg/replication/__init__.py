"""Gives Raft groups a disk, a clock and a network.

`ReplicaHost` carries all groups of a broker; `Group` is one of them, with awaitable calls. Below them
`Replica` is synchronous and knows neither threads nor sockets: the simulation drives the very same
class on virtual time.
"""

from talweg.replication.group import Group
from talweg.replication.host import HostSettings, ReplicaHost
from talweg.replication.job import Job
from talweg.replication.proposals import Appended
from talweg.replication.replica import Replica
from talweg.replication.state import PartitionState, Position

__all__ = [
    "Appended",
    "Group",
    "HostSettings",
    "Job",
    "PartitionState",
    "Position",
    "Replica",
    "ReplicaHost",
]
