"""A log in memory. It passes the same contract suite as the others, and keeps nothing.

For tests, and for topics whose messages may be lost with their broker.
"""

from bisect import bisect_left, bisect_right
from threading import RLock

import msgspec

from talweg.errors import GroupNotFound, OffsetOutOfRange
from talweg.raft import CONFIGURATION, Configuration, Entry, HardState, Snapshot
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
        self._lock = RLock()
        self._hard_state: HardState | None = None
        self._start = _Place()
        self._rows: list[_Row] = []  # entries _start.index + 1 and following
        self._snapshots: dict[int, tuple[Snapshot, _Place]] = {}  # by index, in growing order

    @property
    def _end(self) -> _Place:
        return self._rows[-1].place if self._rows else self._start

    def summary(self) -> LogSummary:
        """What is there now."""
        with self._lock:
            terms: list[tuple[int, int]] = []
            for row in self._rows:
                if not terms or terms[-1][1] != row.entry.term:
                    terms.append((row.entry.index, row.entry.term))
            return LogSummary(
                hard_state=self._hard_state,
                start_index=self._start.index,
                start_term=self._start.term,
                start_offset=self._start.next_offset,
                last_index=self._end.index,
                next_offset=self._end.next_offset,
                terms=terms,
                configurations=[
                    (row.entry.index, Configuration.from_bytes(row.entry.payload))
                    for row in self._rows
                    if row.entry.kind == CONFIGURATION
                ],
                log_bytes=self._end.at - self._start.at,
            )

    def log_bytes(self) -> int:
        """How long the log is."""
        with self._lock:
            return self._end.at - self._start.at

    def write(self, write: Write) -> None:
        """Carry it out in order."""
        with self._lock:
            if write.snapshot is not None:
                snapshot = write.snapshot
                self._start = _Place(snapshot.index, snapshot.term, write.next_offset)
                self._snapshots = {snapshot.index: (snapshot, self._start)}
                self._rows.clear()
            if write.truncate_from is not None:
                assert write.truncate_from > self._start.index, "what was dropped cannot be replaced"
                del self._rows[write.truncate_from - self._start.index - 1 :]
            for entry in write.entries:
                self._append(entry)
            if write.hard_state is not None:
                self._hard_state = write.hard_state

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

    def sync(self) -> None:
        """Nothing is durable here."""

    def read(self, first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` of frames but at least one if there is one."""
        with self._lock:
            if first_index <= self._start.index:
                raise OffsetOutOfRange(
                    f"entry {first_index} is below the log's start, {self._start.index + 1}"
                )
            last = self._end.index if last_index is None else last_index
            rows = self._rows[first_index - self._start.index - 1 : max(last - self._start.index, 0)]
            return [row.entry for row in _fitting(rows, bytes_max)]

    def read_frames(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of kind RECORDS from the one that holds `offset` on, none beyond `last_index`."""
        with self._lock:
            if offset < self._start.next_offset:
                raise OffsetOutOfRange(f"offset {offset} is below the log's start, {self._start.next_offset}")
            first = bisect_right(self._rows, offset, key=lambda row: row.place.next_offset)
            rows = self._rows[first : max(last_index - self._start.index, 0)]
            records = [row for row in rows if row.entry.kind == Kind.RECORDS]
            return [row.frame for row in _fitting(records, bytes_max)]

    def offset_at(self, timestamp: int, last_index: int) -> int:
        """The first offset of the first batch that holds a message at or after `timestamp`."""
        with self._lock:
            last = max(min(last_index, self._end.index) - self._start.index, 0)
            # The newest so far grows just where the message that is looked for may be.
            first = bisect_left(self._rows, timestamp, 0, last, key=lambda row: row.place.timestamp_max)
            for row in self._rows[first:last]:
                header = read_header(row.frame)
                if header.kind is Kind.RECORDS and header.last_timestamp >= timestamp:
                    return header.first_offset
            return self._rows[last - 1].place.next_offset if last else self._start.next_offset

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of the state as of `snapshot.index`, which must be in the log."""
        with self._lock:
            assert self._start.index <= snapshot.index <= self._end.index, "a snapshot of what is not there"
            place = self._start
            if snapshot.index > self._start.index:
                place = self._rows[snapshot.index - self._start.index - 1].place
            assert snapshot.term == place.term, "the snapshot is of another log"
            self._snapshots[snapshot.index] = (snapshot, place)
            self._snapshots = dict(sorted(self._snapshots.items()))

    def snapshots(self) -> list[SnapshotMark]:
        """Those kept, oldest first."""
        with self._lock:
            end_at = self._end.at
            return [
                SnapshotMark(place.index, place.next_offset, end_at - place.at, place.timestamp_max)
                for _, place in self._snapshots.values()
            ]

    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest one."""
        with self._lock:
            wanted = max(self._snapshots, default=None) if index is None else index
            return self._snapshots[wanted][0] if wanted in self._snapshots else None

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, where a snapshot is kept. Older snapshots go too."""
        with self._lock:
            if index <= self._start.index:
                return  # gone already
            del self._rows[: index - self._start.index]
            self._start = self._snapshots[index][1]
            self._snapshots = {at: kept for at, kept in self._snapshots.items() if at >= index}

    def cut_damage(self) -> None:
        """Memory is not damaged, as far as anyone can tell."""

    def close(self) -> None:
        """The log stays as long as its stores do."""


class MemoryStores(LogStores):
    """Logs live until they are deleted, or until this object goes."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._stores: dict[str, MemoryStore] = {}

    def open(self, group: str, incarnation: int) -> MemoryStore:
        """Open a group's log, creating it if need be."""
        with self._lock:
            store = self._stores.setdefault(group, MemoryStore(incarnation))
            if store.incarnation != incarnation:
                raise GroupNotFound(
                    f"{group} is here in incarnation {store.incarnation}, expected {incarnation}"
                )
            return store

    def groups(self) -> dict[str, int]:
        """The groups that have a log here, with their incarnations."""
        with self._lock:
            return {group: store.incarnation for group, store in self._stores.items()}

    def delete(self, group: str) -> None:
        """Forget a group's log."""
        with self._lock:
            self._stores.pop(group, None)

    def close(self) -> None:
        """There is nothing to let go of."""


def _fitting(rows: list[_Row], bytes_max: int) -> list[_Row]:
    # As many as fit, but one at least.
    total = 0
    for number, row in enumerate(rows):
        total += len(row.frame)
        if total > bytes_max and number:
            return rows[:number]
    return rows
