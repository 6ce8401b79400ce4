"""A durable log for each group: segment files by default, memory, or an SQL database.

What every store promises is in `contract`. `open_stores` chooses one by its URL.
"""

from talweg.storage.contract import (
    Damage,
    LogStore,
    LogStores,
    LogSummary,
    SnapshotMark,
    Write,
    head_to_drop,
)
from talweg.storage.memory import MemoryStores
from talweg.storage.opening import open_stores
from talweg.storage.segments import SegmentStores

__all__ = [
    "Damage",
    "LogStore",
    "LogStores",
    "LogSummary",
    "MemoryStores",
    "SegmentStores",
    "SnapshotMark",
    "Write",
    "head_to_drop",
    "open_stores",
]
