"""Reading one log from its tables, and knowing where it is damaged.

A read is one transaction and sees one moment. When what it sees is not sound, it waits for whatever is
being changed and looks once more before that is called damage.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy import Connection

from talweg.errors import CorruptBatch, DamagedLog, GroupNotFound, OffsetOutOfRange, StorageError
from talweg.raft import Configuration, Snapshot
from talweg.records import Header, Kind
from talweg.storage.contract import Damage
from talweg.storage.frames import entry_of
from talweg.storage.sql_database import Database
from talweg.storage.sql_queries import (
    INDEX_MAX,
    configuration_indexes,
    first_beyond_offset,
    first_gap,
    group_row,
    last_place,
    last_within,
    offset_for_timestamp,
    parts_between,
    place_at,
    snapshot_at,
    snapshots_between,
    start_of,
)
from talweg.storage.sql_rows import AnyRow, Place, checked_frame
from talweg.storage.sql_schema import Owner

Frames = list[tuple[Header, bytes]]
Result = TypeVar("Result")

_HINTS_MAX: Final = 256  # when there are more, all are forgotten


class _Unsound(Exception):
    """An entry of the log is not what was written, or not there."""

    def __init__(self, index: int, detail: str) -> None:
        super().__init__(f"entry {index}: {detail}")
        self.damage = Damage(index, detail)


class SqlReader:
    """The tables' rows of one group, as a log."""

    def __init__(self, database: Database, group: str, group_id: int) -> None:
        """Look whether the log is whole, and its start known; frames, and later snapshots, are checked when
        somebody reads them."""
        self.group = group
        self.group_id = group_id
        self.lock = threading.RLock()  # held by whoever changes the log
        self.damage: Damage | None = None  # changed under the lock
        self.is_closed = False
        # Snapshots that are not what was saved. The log from its start on says the same; only the one at
        # the start stands for what is nowhere else, and that it is not sound is damage.
        self.unsound_snapshots: set[int] = set()  # by their indexes
        self._database = database
        # Where the offset after the last frame of some read is likely to be found: entries by offsets.
        self._hints: dict[int, int] = {}
        with contextlib.suppress(DamagedLog):  # noted; the part before it can be used
            self.look(self._check_start)
            self.look(self._check_for_gaps)

    def look(self, read: Callable[[Connection], Result]) -> Result:
        """Carry out a read. What is not sound becomes known as damage and raises DamagedLog."""
        if self.is_closed:
            raise StorageError(f"the log of {self.group!r} is closed")
        with contextlib.suppress(_Unsound), self._database.reading() as connection:
            return read(connection)
        with self.lock:
            try:
                with self._database.reading() as connection:
                    return read(connection)
            except _Unsound as error:
                if self.damage is None or error.damage.index < self.damage.index:
                    self.damage = error.damage
                raise DamagedLog(str(error)) from error

    # Where the log begins and ends

    def row(self, connection: Connection) -> AnyRow:
        """The group's row."""
        row = group_row(connection, self.group_id)
        if row is None:
            raise GroupNotFound(f"the log of {self.group!r} has been deleted")
        return row

    def start(self, connection: Connection) -> Place:
        """Where the log begins."""
        return start_of(self.row(connection))

    def place(self, connection: Connection, start: Place, index: int) -> Place:
        """After the entry at `index`, or at the log's start."""
        if index == start.index:
            return start
        place = place_at(connection, self.group_id, index)
        assert place is not None and index > start.index, "the index of an entry in the log"
        return place

    def end(self, connection: Connection, start: Place) -> Place:
        """After the last entry, damaged or not."""
        return last_place(connection, self.group_id, start)

    def sound_end(self, connection: Connection, start: Place, last: int = INDEX_MAX) -> Place:
        """After the last entry up to `last` that comes before any damage."""
        return last_place(connection, self.group_id, start, self._last_sound(last))

    def _last_sound(self, last: int) -> int:
        return last if self.damage is None else min(last, self.damage.index - 1)

    def refuse_damaged(self, first: int, last: int) -> None:
        """Raise DamagedLog if `first` is wanted, not being after `last`, but is not in the sound part."""
        damage = self.damage
        if damage is not None and damage.index <= first <= last:
            raise DamagedLog(f"entry {damage.index}: {damage.detail}")

    def _check_start(self, connection: Connection) -> None:
        start = self.start(connection)
        if start.index > 0:
            self.snapshot(connection, start, start.index)

    def _check_for_gaps(self, connection: Connection) -> None:
        missing = first_gap(connection, self.group_id, self.start(connection))
        if missing is not None:
            raise _Unsound(missing, "the row is missing")

    # Snapshots

    def snapshot(self, connection: Connection, start: Place, index: int) -> Snapshot | None:
        """The one at `index`; None when it is not there, or not what was saved."""
        try:
            snapshot = snapshot_at(connection, self.group_id, index)
        except DamagedLog as error:
            if index == start.index:
                raise _Unsound(index, str(error)) from error
            self.unsound_snapshots.add(index)
            return None
        if snapshot is None and 0 < index == start.index:
            raise _Unsound(index, "the snapshot is missing")
        return snapshot

    def newest_snapshot(self, connection: Connection) -> Snapshot | None:
        """The newest one that is sound and stands for nothing that is damaged."""
        start = self.start(connection)
        for row in reversed(self.sound_snapshots(connection, start, self.sound_end(connection, start))):
            if (snapshot := self.snapshot(connection, start, row.entry_index)) is not None:
                return snapshot
        return None

    def sound_snapshots(self, connection: Connection, start: Place, end: Place) -> list[AnyRow]:
        """The rows of those from the log's start to `end` of which nothing bad is known, oldest first."""
        damage = self.damage
        if damage is not None and damage.index <= start.index:
            return []
        rows = snapshots_between(connection, self.group_id, start.index, end.index)
        return [row for row in rows if row.entry_index not in self.unsound_snapshots]

    # Frames

    def frames(self, connection: Connection, first: int, last: int, bytes_max: int) -> Frames:
        """Those from entry `first` on; up to one that is not sound, unless that is the first."""
        self.refuse_damaged(first, last)
        if first > last:
            return []
        until = last_within(connection, self.group_id, first, self._last_sound(last), bytes_max)
        if until is None:
            self._explain_absence(connection, first, last)
            return []
        found = parts_between(connection, self.group_id, Owner.ENTRY, first, until)
        frames: Frames = []
        for index in range(first, until + 1):
            try:
                frames.append(checked_frame(index, found.get(index)))
            except CorruptBatch as error:
                if frames:
                    break  # whoever reads on will meet it
                raise _Unsound(index, str(error)) from error
        return frames

    def _explain_absence(self, connection: Connection, index: int, last: int) -> None:
        start = self.start(connection)
        if index <= start.index:
            raise OffsetOutOfRange(f"entry {index} is gone, the log begins after {start.index}")
        if last_place(connection, self.group_id, start, last).index > index:
            raise _Unsound(index, "the row is missing")

    def record_frames(self, connection: Connection, offset: int, last: int, bytes_max: int) -> Frames:
        """Those of kind RECORDS from the one that holds `offset` on; at least one if there is one."""
        found: Frames = []
        hint = self._hints.get(offset)
        if hint is not None:
            # What it leads to may have been replaced or dropped since; that is no error yet.
            with contextlib.suppress(OffsetOutOfRange, DamagedLog, _Unsound):
                found = self._records(connection, hint, last, bytes_max)
        if not found or not found[0][0].first_offset <= offset < found[0][0].next_offset:
            first = self._index_of(connection, offset, last)
            found = self._records(connection, first, last, bytes_max)
            if not found:  # so far: who asks again need not go through what was there already
                self._remember(offset, first)
        if found:
            self._remember(found[-1][0].next_offset, found[-1][0].index + 1)
        return found

    def _remember(self, offset: int, index: int) -> None:
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[offset] = index

    def _records(self, connection: Connection, first: int, last: int, bytes_max: int) -> Frames:
        frames = self.frames(connection, first, last, bytes_max)
        return [pair for pair in frames if pair[0].kind is Kind.RECORDS]

    def _index_of(self, connection: Connection, offset: int, last: int) -> int:
        """The entry that holds `offset`; the one after the last if there is none."""
        start = self.start(connection)
        if offset < start.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is gone, the log begins at {start.next_offset}")
        end = self.sound_end(connection, start, last)
        if offset >= end.next_offset:
            return end.index + 1
        return first_beyond_offset(connection, self.group_id, offset, start, end)

    # Other ways to look

    def offset_at(self, connection: Connection, timestamp: int, last: int) -> int:
        """The first offset whose batch reaches `timestamp`, or the one after `last`."""
        start = self.start(connection)
        end = self.sound_end(connection, start, last)
        found = offset_for_timestamp(connection, self.group_id, timestamp, start, end)
        if found is None:
            self.refuse_damaged(end.index + 1, last)
            return end.next_offset
        return found

    def configurations(self, connection: Connection, start: Place) -> list[tuple[int, Configuration]]:
        """The configuration entries of the sound part of the log, by index."""
        found: list[tuple[int, Configuration]] = []
        end = self.sound_end(connection, start)
        for index in configuration_indexes(connection, self.group_id, start, end):
            bodies = parts_between(connection, self.group_id, Owner.ENTRY, index, index)
            try:
                body = entry_of(*checked_frame(index, bodies.get(index))).payload
                found.append((index, Configuration.from_bytes(body)))
            except (CorruptBatch, ValueError) as error:
                raise _Unsound(index, str(error)) from error
        return found
