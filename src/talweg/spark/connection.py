"""The connection of this process to a cluster, opened when it is first wanted and kept.

Spark hands readers and writers over to processes of its own, which serve one task after another: connections
cannot travel with them, and opening them for each task would cost a micro-batch more than reading it.
"""

import gc
import os
from typing import Final

from talweg.client.partition_log import PartitionLogs

_open: Final[dict[tuple[int, tuple[str, ...], float], PartitionLogs]] = {}


def logs_of(servers: tuple[str, ...], seconds_max: float) -> PartitionLogs:
    """The logs of a cluster. They stay open until the process ends: nobody tells us when a query does."""
    # A process that was forked has the dictionary of its parent, and none of its threads.
    key = (os.getpid(), servers, seconds_max)
    logs = _open.get(key)
    if logs is None:
        logs = _open[key] = PartitionLogs(servers, seconds_max=seconds_max)
        # Spark looks for garbage after every task, each time through all that was ever imported: some 30 ms.
        gc.freeze()
    return logs
