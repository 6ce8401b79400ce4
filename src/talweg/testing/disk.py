"""A file system in memory that behaves like a real one on a bad day. Deterministic.

It keeps apart what is written and what is durable: bytes are durable after `File.sync`, names after
`sync_directory`. `crash` takes away, at random, what is not: of each file some prefix of what was done
to it survives, cut at any byte, or at a sector with zeros up to the length that it had; of names made,
renamed or removed, some survive. As on Linux, a sync that fails loses what it should have made durable,
the next one does not bring it back, and everybody else who has the file open is told of it once, by a sync
of his own.

    files = SimulatedFiles()
    stores = SegmentStores(files)
    ...
    files.space_bytes = 0               # the disk is full
    files.write_bytes_max = 7           # every write is a short one
    files.fail_next("sync")             # an I/O error
    files.flip("group/meta", 20)        # bit rot
    files.spoil("group/state", 20)      # a page that cannot be read
    files.cut_power_after(12)           # PowerCut at the 13th change from now on
    files.crash(Random(seed))           # and then everything is opened again
"""

import errno
import os
from collections.abc import Sequence
from random import Random

from talweg.testing.disk_nodes import Change, Directory, Inode, Node


class PowerCut(BaseException):
    """The machine is off. Not an Exception: no handler for errors runs on a machine that is off."""


class SimulatedFile:
    """An open file. Useless after a crash, as any descriptor."""

    __slots__ = ("_boot", "_files", "_inode", "_told")

    def __init__(self, files: "SimulatedFiles", inode: Inode) -> None:
        self._files = files
        self._inode = inode
        self._boot: int | None = files.boot
        self._told = inode.failures  # how many of those it need not be told of any more

    def write_at(self, data: bytes | memoryview, position: int) -> int:
        """Write some or all of it; returns how much was taken."""
        self._check()
        files, inode = self._files, self._inode
        files.acting("write")
        if files.write_bytes_max is not None and len(data) > files.write_bytes_max:
            data = data[: files.write_bytes_max]
        growth = max(position + len(data) - inode.size, 0)
        if files.space_bytes is not None and growth > max(files.space_bytes, 0):
            data = data[: len(data) - growth + max(files.space_bytes, 0)]
            if len(data) == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            growth = max(position + len(data) - inode.size, 0)
        inode.overwrite(position, position + len(data))
        files.take_space(growth)
        inode.change(Change(position, bytes(data)))
        return len(data)

    def write_parts_at(self, parts: Sequence[bytes | memoryview], position: int) -> int:
        """The same of several, one behind the other."""
        return self.write_at(b"".join(parts), position)

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        self._check()
        self._files.reading()
        data = self._inode.read(size, position)
        self._files.read_bytes += len(data)
        return data

    def size(self) -> int:
        """In bytes."""
        self._check()
        return self._inode.size

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        self._check()
        self._files.acting("truncate")
        self._files.take_space(size - self._inode.size)
        self._inode.change(Change(size, None))

    def sync(self) -> None:
        """What was written is durable."""
        self._check()
        inode = self._inode
        try:
            self._files.acting("sync")
        except OSError:
            inode.failures += 1
            self._told = inode.failures
            if self._files.failed_sync_drops:
                inode.changes.clear()  # the pages are called clean, though they never reached the disk
            raise
        inode.sync()
        if inode.failures > self._told:
            self._told = inode.failures
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def uncache(self, position: int, size: int) -> None:
        """It is all in memory anyway."""

    def close(self) -> None:
        """Let go; twice is harmless."""
        if self._boot is not None:
            self._boot = None
            self._files.open_count -= 1

    def _check(self) -> None:
        if self._boot != self._files.boot:
            raise OSError(errno.EBADF, "the file is closed, or the machine has crashed since")


class SimulatedFiles:
    """See the module's text. Names of files are paths with `/`."""

    durable = True

    def __init__(self, *, space_bytes: int | None = None, write_bytes_max: int | None = None) -> None:
        self.space_bytes = space_bytes  # left for files to grow; None: no limit
        self.write_bytes_max = write_bytes_max  # taken by one write; None: all of it
        self.changes = 0  # writes, truncations, syncs, renames and so on so far
        self.reads = 0  # calls of read_at so far
        self.read_bytes = 0  # given by them
        self.open_count = 0  # descriptors
        self.failed_sync_drops = True  # what it was to make durable; else the next one may
        self.boot = 0  # grows with each crash
        self._root = Directory()
        self._power_left: int | None = None  # changes until the power is cut
        self._failures: dict[str, list[tuple[int, int]]] = {}  # by what is done: (how many go well, errno)

    # Bad days

    def crash(self, random: Random) -> None:
        """Lose what is not durable, some of it or all. Every open file is closed."""
        size = self._root.size
        self._root.crash(random)
        self.take_space(self._root.size - size)
        self._power_left = None
        self._failures.clear()
        self.restart()

    def restart(self) -> None:
        """The process died and the machine did not: files are closed, nothing is lost."""
        self.boot += 1
        self.open_count = 0

    def cut_power_after(self, changes: int) -> None:
        """After so many more changes everything raises PowerCut, until `crash`."""
        self._power_left = changes

    def keep_power(self) -> None:
        """A power cut that was announced does not happen. After one: it was the process alone that died, if
        `restart` is called."""
        self._power_left = None

    def fail_next(self, doing: str, *, error: int = errno.EIO, after: int = 0) -> None:
        """The next write, read, sync, truncate, rename, remove, open or sync_directory (or the one after
        `after` more) raises OSError. Called again: one more of them does."""
        assert doing in _DOINGS, f"{doing}: expected one of {', '.join(_DOINGS)}"
        self._failures.setdefault(doing, []).append((after, error))

    def fail_no_more(self) -> None:
        """The disk is well again."""
        self._failures.clear()

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        """Bit rot: change a byte, on the disk and in memory. The file becomes durable as it is."""
        content = bytearray(self.content(path))
        content[position] ^= mask
        self.put(path, content)

    def spoil(self, path: str, position: int) -> None:
        """The page that holds this byte cannot be read any more, until it is written anew as a whole."""
        self._inode(path).spoil(position)

    def is_spoilt(self, path: str) -> bool:
        """Whether there is such a page in a file."""
        return bool(self._inode(path).spoilt)

    def content(self, path: str) -> bytes:
        """What a file holds, durable or not."""
        return bytes(self._inode(path).written)

    def put(self, path: str, content: bytes | bytearray) -> None:
        """Give a file other bytes, durably."""
        self._inode(path).put(content)

    def acting(self, doing: str) -> None:
        """Something is about to change: the place where bad days happen."""
        if self._power_left is not None:
            if self._power_left <= 0:
                raise PowerCut
            self._power_left -= 1
        self.changes += 1
        self._fail_if_told(doing)

    def reading(self) -> None:
        """Something is about to be read."""
        if self._power_left is not None and self._power_left <= 0:
            raise PowerCut
        self.reads += 1
        self._fail_if_told("read")

    def _fail_if_told(self, doing: str) -> None:
        failures = self._failures.get(doing)
        if failures:
            after, error = failures[0]
            if after > 0:
                failures[0] = (after - 1, error)
                return
            failures.pop(0)
            raise OSError(error, os.strerror(error))

    def take_space(self, size: int) -> None:
        """Files have grown (or, below zero, become smaller) by so much."""
        if self.space_bytes is not None:
            self.space_bytes -= size

    # Files

    def open(self, path: str, *, create: bool = True) -> SimulatedFile:
        """Open for reading and writing; when missing it is created, or FileNotFoundError raised."""
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None and not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if node is None:
            self.acting("open")
            node = Inode()
            directory.change({name: node})
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.open_count += 1
        return SimulatedFile(self, node)

    def exists(self, path: str) -> bool:
        """A file or a directory."""
        return self._find(path) is not None

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty when it is missing."""
        node = self._find(directory)
        return sorted(node.entries) if isinstance(node, Directory) else []

    def make_directory(self, directory: str) -> None:
        """With its parents; there already is fine."""
        node = self._root
        for name in directory.split("/"):
            found = node.entries.get(name)
            if found is None:
                self.acting("open")
                found = Directory()
                node.change({name: found})
            if isinstance(found, Inode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            node = found

    def remove(self, path: str) -> None:
        """Remove a file; missing is fine."""
        if isinstance(self._find(path), Inode):
            self.acting("remove")
            directory, name = self._parent(path)
            self._unlinked(directory.entries[name])
            directory.change({name: None})

    def remove_directory(self, directory: str) -> None:
        """With all it holds; missing is fine."""
        node = self._find(directory)
        if isinstance(node, Directory):
            for name, inner in list(node.entries.items()):
                if isinstance(inner, Directory):
                    self.remove_directory(f"{directory}/{name}")
                else:
                    self.remove(f"{directory}/{name}")
            self.acting("remove")
            parent, name = self._parent(directory)
            parent.change({name: None})

    def rename(self, old: str, new: str) -> None:
        """Atomically take the place of `new`, in the same directory."""
        directory, old_name = self._parent(old)
        new_directory, new_name = self._parent(new)
        assert directory is new_directory, "renames stay within a directory"
        if old_name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        self.acting("rename")
        if new_name in directory.entries:
            self._unlinked(directory.entries[new_name])
        directory.change({old_name: None, new_name: directory.entries[old_name]})

    def sync_directory(self, directory: str) -> None:
        """Names made, renamed or removed in it are durable."""
        self.acting("sync_directory")
        node = self._find(directory)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        node.sync()

    def unlock(self) -> None:
        """Nobody else can see it anyway."""

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in path.split("/") if path else ():
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        node = self._find(directory)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node, name

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        assert isinstance(node, Inode), f"there is no file {path}"
        return node

    def _unlinked(self, node: Node) -> None:
        if isinstance(node, Inode):
            self.take_space(-len(node.written))


_DOINGS = ("write", "read", "sync", "truncate", "rename", "remove", "open", "sync_directory")
