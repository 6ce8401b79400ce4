"""A log in memory. It passes the same contract suite as the others, and keeps nothing.

For tests, and for topics whose messages may be lost with their broker.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from threading import RLock

import msgspec

from talweg.errors import GroupNotFound, OffsetOutOfRange, StorageError
from talweg.raft import CONFIGURATION, Configuration, Entry, HardState, Snapshot, singly
from talweg.records import Kind, read_header
from talweg.storage.contract import LogStore, LogStores, LogSummary, SnapshotMark, Write
from talweg.storage.frames import frame_of


class _Place(msgspec.Struct, frozen=True):
    """What the log is like right after an entry."""

    index: int = 0
    term: int = 0
    next_offset: int = 0
    at: int = 0  # bytes of the log so far
    timestamp_max: int = 0  # newest message so far


class _Row(msgspec.Struct, frozen=True):
    entry: Entry
    frame: bytes
    place: _Place


class MemoryStore(LogStore):
    """Opened by `MemoryStores`."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.is_closed = False
        self._lock = RLock()
        self._hard_state: HardState | None = None
        self._start = _Place()
        self._rows: list[_Row] = []  # entries _start.index + 1 and following
        # What `summary` tells of the rows, which may be many.
        self._terms: list[tuple[int, int]] = []
        self._configurations: list[tuple[int, Configuration]] = []
        self._snapshots: dict[int, tuple[Snapshot, _Place]] = {}  # by index, in growing order

    @property
    def _end(self) -> _Place:
        return self._rows[-1].place if self._rows else self._start

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with self._lock:
            if self.is_closed:
                raise StorageError("the log is closed")
            yield

    def summary(self) -> LogSummary:
        """What is there now."""
        with self._opened():
            return LogSummary(
                hard_state=self._hard_state,
                start_index=self._start.index,
                start_term=self._start.term,
                start_offset=self._start.next_offset,
                last_index=self._end.index,
                next_offset=self._end.next_offset,
                terms=list(self._terms),
                configurations=list(self._configurations),
                log_bytes=self._end.at - self._start.at,
            )

    def log_bytes(self) -> int:
        """How long the log is."""
        with self._lock:
            return self._end.at - self._start.at

    def write(self, write: Write) -> None:
        """Carry it out in order."""
        with self._opened():
            if write.snapshot is not None:
                snapshot = write.snapshot
                self._start = _Place(snapshot.index, snapshot.term, write.next_offset)
                self._snapshots = {snapshot.index: (snapshot, self._start)}
                for kept in (self._rows, self._terms, self._configurations):
                    kept.clear()
            if write.truncate_from is not None:
                self._truncate(write.truncate_from)
            for entry in singly(write.entries):
                self._append(entry)
            if write.hard_state is not None:
                self._hard_state = write.hard_state

    def _truncate(self, first_index: int) -> None:
        assert first_index > self._start.index, "what was dropped cannot be replaced"
        del self._rows[first_index - self._start.index - 1 :]
        for kept in (self._terms, self._configurations):
            while kept and kept[-1][0] >= first_index:
                kept.pop()

    def _append(self, entry: Entry) -> None:
        end = self._end
        frame = frame_of(entry, end.next_offset)
        header = read_header(frame)
        assert entry.index == end.index + 1, "the log has no gaps"
        assert header.index == entry.index and header.term == entry.term, "the frame is not stamped"
        assert header.first_offset == end.next_offset, "offsets have no gaps"
        newest = end.timestamp_max
        if header.kind is Kind.RECORDS:
            newest = max(newest, header.last_timestamp)
        place = _Place(entry.index, entry.term, header.next_offset, end.at + len(frame), newest)
        self._rows.append(_Row(entry, frame, place))
        if not self._terms or self._terms[-1][1] != entry.term:
            self._terms.append((entry.index, entry.term))
        if entry.kind == CONFIGURATION:
            self._configurations.append((entry.index, Configuration.from_bytes(entry.payload)))

    def sync(self) -> None:
        """Nothing is durable here."""

    def read(self, first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` of frames but at least one if there is one."""
        with self._opened():
            if first_index <= self._start.index:
                raise OffsetOutOfRange(
                    f"entry {first_index} is below the log's start, {self._start.index + 1}"
                )
            last = self._end.index if last_index is None else last_index
            rows = self._fitting(first_index - self._start.index - 1, last, bytes_max)
            return [row.entry for row in rows]

    def read_frames(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of kind RECORDS from the one that holds `offset` on, none beyond `last_index`."""
        with self._opened():
            if offset < self._start.next_offset:
                raise OffsetOutOfRange(f"offset {offset} is below the log's start, {self._start.next_offset}")
            first = bisect_right(self._rows, offset, key=_next_offset)
            rows = self._fitting(first, last_index, bytes_max)
            return [row.frame for row in rows if row.entry.kind == Kind.RECORDS]

    def _fitting(self, first: int, last_index: int, bytes_max: int) -> list[_Row]:
        """As many rows from number `first` on as fit, but one at least if there is one."""
        count = max(last_index - self._start.index, 0)
        begin_at = self._rows[first - 1].place.at if 0 < first <= len(self._rows) else self._start.at
        fitting = bisect_right(self._rows, begin_at + bytes_max, first, key=_end_at)
        return self._rows[first : min(max(fitting, first + 1), count)]

    def offset_at(self, timestamp: int, last_index: int) -> int:
        """The first offset of the first batch that holds a message at or after `timestamp`."""
        with self._opened():
            last = max(min(last_index, self._end.index) - self._start.index, 0)
            # The newest so far grows just where the message that is looked for may be.
            first = bisect_left(self._rows, timestamp, 0, last, key=_timestamp_max)
            for number in range(first, last):
                header = read_header(self._rows[number].frame)
                if header.kind is Kind.RECORDS and header.last_timestamp >= timestamp:
                    return header.first_offset
            return self._rows[last - 1].place.next_offset if last else self._start.next_offset

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of the state as of `snapshot.index`, which must be in the log."""
        with self._opened():
            assert self._start.index <= snapshot.index <= self._end.index, "a snapshot of what is not there"
            place = self._start
            if snapshot.index > self._start.index:
                place = self._rows[snapshot.index - self._start.index - 1].place
            assert snapshot.term == place.term, "the snapshot is of another log"
            self._snapshots[snapshot.index] = (snapshot, place)
            self._snapshots = dict(sorted(self._snapshots.items()))

    def snapshots(self) -> list[SnapshotMark]:
        """Those kept, oldest first."""
        with self._opened():
            end_at = self._end.at
            return [
                SnapshotMark(place.index, place.next_offset, end_at - place.at, place.timestamp_max)
                for _, place in self._snapshots.values()
            ]

    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest one."""
        with self._opened():
            wanted = max(self._snapshots, default=None) if index is None else index
            return self._snapshots[wanted][0] if wanted in self._snapshots else None

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, where a snapshot is kept. Older snapshots go too."""
        with self._opened():
            if index <= self._start.index or index not in self._snapshots:
                return  # gone already, or nothing would be left of it
            del self._rows[: index - self._start.index]
            self._start = self._snapshots[index][1]
            self._snapshots = {at: kept for at, kept in self._snapshots.items() if at >= index}
            later = [run for run in self._terms if run[0] > index + 1]
            self._terms = [(index + 1, self._rows[0].entry.term), *later] if self._rows else []
            self._configurations = [pair for pair in self._configurations if pair[0] > index]

    def cut_damage(self) -> None:
        """Memory is not damaged, as far as anyone can tell."""

    def close(self) -> None:
        """The log stays as long as its stores do, and can be opened again."""
        with self._lock:
            self.is_closed = True

    def opened_again(self) -> "MemoryStore":
        """The same log, once this store is closed: who still holds that one can do no more with it."""
        assert self.is_closed
        again = copy(self)
        again.is_closed = False
        return again


class MemoryStores(LogStores):
    """Logs live until they are deleted, or until this object goes."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._stores: dict[str, MemoryStore] = {}

    def open(self, group: str, incarnation: int) -> MemoryStore:
        """Open a group's log, creating it if need be."""
        with self._lock:
            store = self._stores.get(group) or MemoryStore(incarnation)
            if store.incarnation != incarnation:
                raise GroupNotFound(
                    f"{group} is here in incarnation {store.incarnation}, expected {incarnation}"
                )
            self._stores[group] = store.opened_again() if store.is_closed else store
            return self._stores[group]

    def groups(self) -> dict[str, int]:
        """The groups that have a log here, with their incarnations."""
        with self._lock:
            return {group: store.incarnation for group, store in self._stores.items()}

    def delete(self, group: str) -> None:
        """Forget a group's log."""
        with self._lock:
            store = self._stores.pop(group, None)
            if store is not None:
                store.close()

    def close(self) -> None:
        """Close every store that is open; the logs stay."""
        with self._lock:
            for store in self._stores.values():
                store.close()


def _next_offset(row: _Row) -> int:
    return row.place.next_offset


def _end_at(row: _Row) -> int:
    return row.place.at


def _timestamp_max(row: _Row) -> int:
    return row.place.timestamp_max
