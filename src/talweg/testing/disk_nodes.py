"""Files and directories of the simulated disk: what is written, and what of it is durable."""

import errno
import os
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512  # reaches the disk as a whole or not at all
_PAGE_BYTES = 4096  # is read as a whole


class Change(NamedTuple):
    """Done to a file and not synced yet: bytes written at a position, or (None) a new size."""

    position: int
    data: bytes | None


class Inode:
    """A file's bytes, whatever its name."""

    __slots__ = ("changes", "durable", "failures", "spoilt", "written")

    def __init__(self) -> None:
        self.written = bytearray()  # what whoever reads it sees
        self.durable = bytearray()
        self.changes: list[Change] = []  # from durable to written, in order
        self.failures = 0  # syncs of it that failed
        self.spoilt: set[int] = set()  # the numbers of pages that cannot be read

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.written)

    def change(self, change: Change) -> None:
        """Bytes are written, or the size changes."""
        _apply(self.written, change)
        self.changes.append(change)
        self._forget_spoilt()

    def sync(self) -> None:
        """All of it is durable."""
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def put(self, content: bytes | bytearray) -> None:
        """Other bytes, and durable."""
        self.changes.clear()
        self.spoilt.clear()
        self.written, self.durable = bytearray(content), bytearray(content)

    def crash(self, random: Random) -> None:
        """Some of what was not synced survives: the first changes, and of the next one the first bytes; or
        more than that, but not every sector of it."""
        if self.changes:
            survivors, durable_bytes = random.randint(0, len(self.changes)), len(self.durable)
            for change in self.changes[:survivors]:
                _apply(self.durable, change)
                durable_bytes = min(durable_bytes, len(self.durable))
            lost = self.changes[survivors:]
            position, data = lost[0] if lost else (0, None)
            if data:
                _apply(self.durable, Change(position, data[: random.randrange(len(data))]))
                if random.randint(0, 3) == 3:
                    self._scatter(random, durable_bytes, lost)
            self.changes.clear()
        self.written = bytearray(self.durable)
        self._forget_spoilt()

    def _scatter(self, random: Random, durable_bytes: int, lost: list[Change]) -> None:
        # As file systems do that allocate late: the length is known, and some sectors never came. They are
        # written in any order, so it need not be the last ones.
        whole = bytearray(self.durable)
        for change in lost:
            if change.data is None:
                break  # nor did a cut
            _apply(whole, change)
        if len(whole) > len(self.durable):
            del self.durable[max(durable_bytes, len(self.durable) // SECTOR_BYTES * SECTOR_BYTES) :]
            self.durable.extend(bytes(len(whole) - len(self.durable)))
        chance = random.choice((0.0, 0.5, 0.9))
        for start in range(lost[0].position // SECTOR_BYTES * SECTOR_BYTES, len(whole), SECTOR_BYTES):
            if random.random() < chance:
                sector = slice(start, start + SECTOR_BYTES)
                self.durable[sector] = whole[sector]

    # Pages that cannot be read

    def spoil(self, position: int) -> None:
        """The page that holds this byte cannot be read any more."""
        assert position < self.size
        self.spoilt.add(position // _PAGE_BYTES)

    def read(self, size: int, position: int) -> bytes:
        """As Linux does: what comes before a page that cannot be read, or an error if that is the first."""
        end = min(position + size, self.size)
        for page in self._spoilt_between(position, end):
            if page * _PAGE_BYTES <= position:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            end = min(end, page * _PAGE_BYTES)
        return bytes(self.written[position:end])

    def overwrite(self, position: int, end: int) -> None:
        """Bytes are about to be written. A page of which some stay has to be read before; one that is
        written whole is a good one again."""
        for page in self._spoilt_between(position, end):
            if position > page * _PAGE_BYTES or end < min((page + 1) * _PAGE_BYTES, self.size):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.spoilt.discard(page)

    def _spoilt_between(self, position: int, end: int) -> list[int]:
        pages = range(position // _PAGE_BYTES, -(-end // _PAGE_BYTES)) if position < end else range(0)
        return sorted(self.spoilt.intersection(pages)) if self.spoilt else []

    def _forget_spoilt(self) -> None:
        if self.spoilt:  # those beyond the end are no more
            self.spoilt.intersection_update(range(-(-self.size // _PAGE_BYTES)))


class Directory:
    """Names and what they stand for."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[dict[str, Node | None]] = []  # each is all or nothing; None: the name goes

    @property
    def size(self) -> int:
        """Of all the files in it."""
        return sum(node.size for node in self.entries.values())

    def change(self, change: "dict[str, Node | None]") -> None:
        """Make, move or remove names."""
        _apply_names(self.entries, change)
        self.changes.append(change)

    def sync(self) -> None:
        """The names are durable."""
        self.durable = dict(self.entries)
        self.changes.clear()

    def crash(self, random: Random) -> None:
        """Of the changes that were not synced some survive, in whatever order the disk had them."""
        for change in self.changes:
            if random.random() < 0.5:
                _apply_names(self.durable, change)
        self.changes.clear()
        self.entries = dict(self.durable)
        for node in self.entries.values():
            node.crash(random)


Node = Inode | Directory


def _apply(content: bytearray, change: Change) -> None:
    position, data = change
    if data is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _apply_names(entries: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
