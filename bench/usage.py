"""What a process uses, read from /proc: processor time, memory, threads, descriptors."""

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time so far, of all its threads, in user and kernel."""
    # The name in parentheses may hold spaces: count from behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Its resident memory. What it reads and writes stays in the page cache, which is not part of it."""
    return _status(pid, "VmRSS") * 1024


def threads(pid: int) -> int:
    """How many threads it has."""
    return _status(pid, "Threads")


def descriptors(pid: int) -> int:
    """How many files and sockets it has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise LookupError(f"/proc/{pid}/status has no {name}")
