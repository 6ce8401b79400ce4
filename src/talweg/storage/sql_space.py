"""Room on the disk of an SQLite database: the last of it is kept for deleting.

To delete anything SQLite needs room first: in its write-ahead log, and in the database itself for all that
was added through that log before. On a disk that is full to its last byte nothing can be deleted any more,
which is when the head of a log has to be dropped. So while there is still some room, messages are refused.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Twice what waits in the write-ahead log before SQLite takes it over into the database (1,000 pages), what
# deleting adds to it, and as much again.
RESERVE_BYTES: Final = 16 << 20
_ROWS_FACTOR: Final = 2  # rows and pages are larger than the bytes that they are made for


def leaves_too_little(free_bytes: int, added_bytes: int, reusable_bytes: int = 0) -> bool:
    """Whether adding so much would use the reserve up. What was deleted can be used again."""
    row_bytes = _ROWS_FACTOR * added_bytes
    if reusable_bytes < row_bytes:
        return free_bytes < RESERVE_BYTES + 2 * row_bytes  # in the write-ahead log, and in the database
    # The database does not grow, and its write-ahead log begins anew again and again: half of the reserve
    # will do, or nothing could be written after the head was dropped on a full disk.
    return free_bytes < RESERVE_BYTES // 2 + row_bytes


def free_bytes_around(path: str) -> Callable[[], int]:
    """What is free on the disk of a file, at the time of asking."""
    directory = Path(path).absolute().parent

    def free_bytes() -> int:
        try:
            disk = os.statvfs(directory)
        except OSError:
            return sys.maxsize  # SQLite will say what is wrong, if anything is
        return disk.f_bavail * disk.f_frsize

    return free_bytes
