"""One cluster for each directory: a lock that the cluster's processes share.

They inherit it, so that it is held for as long as any of them lives: also when whoever started them was
killed, and they are still about to end.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from talweg.errors import InvalidSetting

NAME: Final = "lock"
_WAIT_SECONDS_MAX: Final = 15.0  # for the processes of a parent that was killed to end
_LOOK_SECONDS: Final = 0.05


class DirectoryLock:
    """Held from the time it is made until it is closed, here and in all who inherit `descriptor`."""

    def __init__(self, directory: Path) -> None:
        path = directory / NAME
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidSetting(f"--data: {directory} cannot be used: {error.strerror}") from None
        try:
            self._lock(directory)
        except BaseException:
            os.close(self.descriptor)
            raise
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, b"%d\n" % os.getpid(), 0)

    def _lock(self, directory: Path) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            holder = self._holder()
            if holder is None or _lives(holder) or time.monotonic() > deadline:
                by = f" (process {holder})" if holder is not None else ""
                raise InvalidSetting(
                    f"--data: {directory} is in use by another cluster{by}; stop that, or name another one"
                )
            time.sleep(_LOOK_SECONDS)

    def _holder(self) -> int | None:
        content = os.pread(self.descriptor, 20, 0).strip()
        return int(content) if content.isdigit() else None

    def close(self) -> None:
        """Let go."""
        os.close(self.descriptor)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, and its parent has not taken note of that. Only Linux says so."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in "ZX"
