"""A simulated disk that is full, or fails, for as long as it is told to."""

import errno
import os
from enum import Enum
from random import Random

from talweg.testing.disk import SimulatedFiles


class Trouble(Enum):
    """What may be wrong with a disk for a while."""

    FULL = "full"
    WRITES_FAIL = "writes fail"
    SYNCS_FAIL = "syncs fail"


_FAILING = {
    Trouble.WRITES_FAIL: frozenset({"write", "truncate", "open"}),
    Trouble.SYNCS_FAIL: frozenset({"sync", "sync_directory"}),
}


class TroubledFiles(SimulatedFiles):
    """`SimulatedFiles` fails once when told to; this one until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._trouble: Trouble | None = None
        self.has_forgotten = False  # a sync has failed since the last crash: not all that is read is durable

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong now."""
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble | None) -> None:
        self._trouble = trouble
        self.space_bytes = 0 if trouble is Trouble.FULL else None

    def crash(self, random: Random) -> None:
        """What is left is durable."""
        super().crash(random)
        self.has_forgotten = False

    def acting(self, doing: str) -> None:
        """Something is about to change."""
        super().acting(doing)
        if self._trouble is not None and doing in _FAILING.get(self._trouble, ()):
            self.has_forgotten |= doing == "sync"
            raise OSError(errno.EIO, os.strerror(errno.EIO))
