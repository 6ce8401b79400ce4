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
from talweg.raft import Configuration
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
        """Look whether the log is whole; its frames are checked when somebody reads them."""
        self.group = group
        self.group_id = group_id
        self.lock = threading.RLock()  # held by whoever changes the log
        self.damage: Damage | None = None  # changed under the lock
        self.is_closed = False
        self._database = database
        # Where the offset after the last frame of some read is likely to be found: entries by offsets.
        self._hints: dict[int, int] = {}
        with contextlib.suppress(DamagedLog):  # noted; the part before it can be used
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

    def place(self, connection: Connection, index: int) -> Place:
        """After the entry at `index`, or at the log's start."""
        place = place_at(connection, self.group_id, index) or start_of(self.row(connection))
        assert place.index == index, "the index of an entry in the log"
        return place

    def end(self, connection: Connection, last: int = INDEX_MAX) -> Place:
        """After the last entry up to `last`, damaged or not."""
        return last_place(connection, self.group_id, last) or start_of(self.row(connection))

    def sound_end(self, connection: Connection, last: int = INDEX_MAX) -> Place:
        """After the last entry up to `last` that comes before any damage."""
        return self.end(connection, self._last_sound(last))

    def _last_sound(self, last: int) -> int:
        return last if self.damage is None else min(last, self.damage.index - 1)

    def refuse_damaged(self, first: int, last: int) -> None:
        """Raise DamagedLog if `first` is wanted, not being after `last`, but is not in the sound part."""
        damage = self.damage
        if damage is not None and damage.index <= first <= last:
            raise DamagedLog(f"entry {damage.index}: {damage.detail}")

    def _check_for_gaps(self, connection: Connection) -> None:
        missing = first_gap(connection, self.group_id, start_of(self.row(connection)))
        if missing is not None:
            raise _Unsound(missing, "the row is missing")

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
        start = start_of(self.row(connection))
        if index <= start.index:
            raise OffsetOutOfRange(f"entry {index} is gone, the log begins after {start.index}")
        if self.end(connection, last).index > index:
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
        if found:
            if len(self._hints) >= _HINTS_MAX:
                self._hints.clear()
            self._hints[found[-1][0].next_offset] = found[-1][0].index + 1
        return found

    def _records(self, connection: Connection, first: int, last: int, bytes_max: int) -> Frames:
        while frames := self.frames(connection, first, last, bytes_max):
            records = [pair for pair in frames if pair[0].kind is Kind.RECORDS]
            if records:
                return records
            first = frames[-1][0].index + 1
        return []

    def _index_of(self, connection: Connection, offset: int, last: int) -> int:
        """The entry that holds `offset`; the one after the last if there is none."""
        start = start_of(self.row(connection))
        if offset < start.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is gone, the log begins at {start.next_offset}")
        end = self.sound_end(connection, last)
        if offset >= end.next_offset:
            return end.index + 1
        return first_beyond_offset(connection, self.group_id, offset, start, end)

    # Other ways to look

    def offset_at(self, connection: Connection, timestamp: int, last: int) -> int:
        """The first offset whose batch reaches `timestamp`, or the one after `last`."""
        start = start_of(self.row(connection))
        end = self.sound_end(connection, last)
        found = offset_for_timestamp(connection, self.group_id, timestamp, start, end)
        if found is None:
            self.refuse_damaged(end.index + 1, last)
            return end.next_offset
        return found

    def configurations(self, connection: Connection, start: Place) -> list[tuple[int, Configuration]]:
        """The configuration entries of the sound part of the log, by index."""
        found: list[tuple[int, Configuration]] = []
        for index in configuration_indexes(connection, self.group_id, start, self.sound_end(connection)):
            bodies = parts_between(connection, self.group_id, Owner.ENTRY, index, index)
            try:
                body = entry_of(*checked_frame(index, bodies.get(index))).payload
                found.append((index, Configuration.from_bytes(body)))
            except (CorruptBatch, ValueError) as error:
                raise _Unsound(index, str(error)) from error
        return found
