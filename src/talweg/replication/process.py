"""What a process that carries replicas asks of its interpreter and of the C library, once, when it starts.

None of it changes what is done. Each figure was measured; ARCHITECTURE.md says how.
"""

import ctypes
import gc
import sys
from typing import Final

# What waits for a majority looks to Python's collector like much that is new, and it looks through all of it
# over and over; hardly any of it is ever part of a cycle. (Objects made, and younger generations, before the
# next look at each generation.)
_GARBAGE_THRESHOLDS: Final = (200_000, 50, 100)

# Batches come and go by the megabyte. Left to itself, glibc gives their memory back to the kernel with every
# batch, and takes a fault for each page of the next one.
_KEPT_BYTES_MAX: Final = 64 << 20  # of free memory at the end of the heap
_MAPPED_BYTES_MIN: Final = 4 << 20  # what is larger is rare, and goes back to the kernel at once
_M_TRIM_THRESHOLD: Final = -1  # both as in malloc.h
_M_MMAP_THRESHOLD: Final = -3


def prepare(switch_seconds: float) -> None:
    """Prepare this process. Again is as good as once."""
    sys.setswitchinterval(min(sys.getswitchinterval(), switch_seconds))
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    _keep_free_memory()


def _keep_free_memory() -> None:
    """Have the C library keep what is freed for what comes next."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc has it; others hold on to memory, or let go of it, as they see fit
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
