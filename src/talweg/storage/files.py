"""The few operations that segment files need from an operating system.

An argument rather than a global, so that tests and the simulation can give a disk that is full, that
writes short, or that loses its unsynced tail in a crash.
"""

import contextlib
import fcntl
import mmap
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from talweg.errors import StorageError


class File(Protocol):
    """An open file. Positions are explicit; there is no cursor."""

    def write_at(self, data: bytes | memoryview, position: int) -> int:
        """Write some or all of it; returns how much was taken (it may be less). Raises OSError."""

    def write_parts_at(self, parts: Sequence[bytes | memoryview], position: int) -> int:
        """The same of several, one behind the other."""

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def size(self) -> int:
        """In bytes."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""

    def sync(self) -> None:
        """fdatasync: the bytes, and the size needed to find them."""

    def uncache(self, position: int, size: int) -> None:
        """These bytes, once they are synced, need not be kept in memory. A hint."""

    def close(self) -> None:
        """Let go; twice is harmless."""


class Files(Protocol):
    """A file system. Names of files are paths relative to its root, with `/`."""

    @property
    def durable(self) -> bool:
        """Whether a sync waits for the disk."""

    def open(self, path: str, *, create: bool = True) -> File:
        """Open for reading and writing; when missing it is created, or FileNotFoundError raised."""

    def exists(self, path: str) -> bool:
        """A file or a directory."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty when it is missing."""

    def make_directory(self, directory: str) -> None:
        """With its parents; there already is fine."""

    def remove(self, path: str) -> None:
        """Remove a file; missing is fine."""

    def remove_directory(self, directory: str) -> None:
        """With all it holds; missing is fine."""

    def rename(self, old: str, new: str) -> None:
        """Atomically take the place of `new`."""

    def sync_directory(self, directory: str) -> None:
        """Names made, renamed or removed in it are durable."""

    def unlock(self) -> None:
        """Others may use it again, if it was kept from them."""


class RealFile:
    """A descriptor with positional reads and writes."""

    def __init__(self, path: Path, *, create: bool, durable: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o644)
        self._durable = durable

    def write_at(self, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def write_parts_at(self, parts: Sequence[bytes | memoryview], position: int) -> int:
        return os.pwritev(self._descriptor, parts, position)

    def read_at(self, size: int, position: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        if self._durable:
            os.fdatasync(self._descriptor)

    def uncache(self, position: int, size: int) -> None:
        # Whole pages: the last one is written to again, and would have to be read for that.
        first, end = (place // mmap.PAGESIZE * mmap.PAGESIZE for place in (position, position + size))
        if end > first:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, first, end - first, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealFiles:
    """The machine's file system below one directory.

    One that is not `durable` does not wait for the disk: what was written outlives the process, but not
    the machine. Whoever chooses that was told so. Files of the names `synced` are waited for all the same.
    """

    def __init__(self, root: Path | str, *, durable: bool = True, synced: Collection[str] = ()) -> None:
        self.root = Path(root)
        self.durable = durable
        self._synced = synced
        self._lock_descriptor = -1
        self._make_root()

    def _make_root(self) -> None:
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        # A log is as durable as the names on the way to it.
        for path in missing if self.durable else ():
            _sync_directory(path.parent)

    def open(self, path: str, *, create: bool = True) -> RealFile:
        durable = self.durable or path.rpartition("/")[2] in self._synced
        return RealFile(self.root / path, create=create, durable=durable)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.root / directory).iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, directory: str) -> None:
        (self.root / directory).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def remove_directory(self, directory: str) -> None:
        shutil.rmtree(self.root / directory, ignore_errors=True)

    def rename(self, old: str, new: str) -> None:
        (self.root / old).replace(self.root / new)

    def sync_directory(self, directory: str) -> None:
        if self.durable:
            _sync_directory(self.root / directory)

    def lock(self) -> None:
        """Keep everyone else out until `unlock`, or until this process ends. Raises StorageError."""
        assert self._lock_descriptor < 0, "locked already"
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            # Two brokers on one directory would write over each other's logs.
            raise StorageError(f"{self.root} is in use by another process") from error
        self._lock_descriptor = descriptor

    def unlock(self) -> None:
        """Let others in again."""
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
