"""One group's log in an SQL database: every call is a transaction. See `talweg.storage.sql` for the whole."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, update

from talweg.errors import DamagedLog, GroupNotFound, StorageError
from talweg.raft import Entry, HardState, Snapshot, singly
from talweg.storage.contract import LogStore, LogSummary, SnapshotMark, Write
from talweg.storage.frames import entry_of
from talweg.storage.sql_database import Database
from talweg.storage.sql_deleting import (
    Deleter,
    delete_entries,
    delete_snapshots,
    delete_some_dropped,
    delete_some_entries,
    has_dropped_rows,
)
from talweg.storage.sql_queries import INDEX_MAX, start_of, term_runs
from talweg.storage.sql_reader import SqlReader
from talweg.storage.sql_rows import AnyRow, Place, row_of_snapshot, rows_of, rows_of_parts
from talweg.storage.sql_schema import Owner, entries, groups, parts, snapshots


class _Known(msgspec.Struct, frozen=True):
    """What a store may believe of its log without asking."""

    writes: int  # as the group's row has it
    start: Place
    end: Place


class _Change:
    """A transaction under way, and where the log begins and ends by it."""

    def __init__(self, connection: Connection, start: Place, end: Place) -> None:
        self.connection = connection
        self.start = start
        self.end = end


class SqlStore(LogStore):
    """Opened by `SqlStores`. Reads go to the database, from any thread; changes one at a time."""

    def __init__(self, database: Database, deleter: Deleter, group: str, group_id: int, opening: int) -> None:
        self._database = database
        self._deleter = deleter
        self._group_id = group_id
        self._opening = opening
        self._is_taken = False  # somebody else has opened the log since
        self._reader = SqlReader(database, group, group_id)
        self._known: _Known | None = None  # None: ask before the next change
        self._write_failed = False  # the last one: it may be carried out after all
        if self._reader.look(self._has_dropped_rows):
            deleter.delete_later(group_id, self._delete_some_dropped)

    # What is there

    def summary(self) -> LogSummary:
        """What is there now; with damage, of the sound part before it."""
        with contextlib.suppress(DamagedLog):
            return self._reader.look(self._summary)
        # A configuration is damaged. Now that this is known, it is not read again.
        return self._reader.look(self._summary)

    def _summary(self, connection: Connection) -> LogSummary:
        group = self._reader.row(connection)
        start = start_of(group)
        end = self._reader.sound_end(connection, start)
        return LogSummary(
            hard_state=_hard_state(group),
            start_index=start.index,
            start_term=start.term,
            start_offset=start.next_offset,
            last_index=end.index,
            next_offset=end.next_offset,
            terms=term_runs(connection, self._group_id, start, end),
            configurations=self._reader.configurations(connection, start),
            log_bytes=end.next_position - start.next_position,
            damage=self._reader.damage,
        )

    def snapshots(self) -> list[SnapshotMark]:
        """Those kept, oldest first; none that stands for what is damaged, or is known not to be sound."""
        return self._reader.look(self._marks)

    def _marks(self, connection: Connection) -> list[SnapshotMark]:
        start = self._reader.start(connection)
        end = self._reader.sound_end(connection, start)
        return [
            SnapshotMark(index, next_offset, end.next_position - next_position, newest_timestamp)
            for index, next_offset, next_position, newest_timestamp in self._reader.sound_snapshots(
                connection, start, end
            )
        ]

    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest that is sound; see the contract."""
        if index is None:
            return self._reader.look(self._reader.newest_snapshot)
        return self._reader.look(lambda connection: self._snapshot(connection, index))

    def _snapshot(self, connection: Connection, index: int) -> Snapshot | None:
        start = self._reader.start(connection)
        if not start.index <= index <= self._reader.sound_end(connection, start).index:
            return None
        return self._reader.snapshot(connection, start, index)

    # Reading

    def read(self, first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        """Entries from `first_index` on; see the contract. `bytes_max` counts frames."""
        last = INDEX_MAX if last_index is None else last_index
        frames = self._reader.look(
            lambda connection: self._reader.frames(connection, first_index, last, bytes_max)
        )
        return [entry_of(header, frame) for header, frame in frames]

    def read_frames(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of messages from the one that holds `offset` on; see the contract."""
        frames = self._reader.look(
            lambda connection: self._reader.record_frames(connection, offset, last_index, bytes_max)
        )
        return [frame for _, frame in frames]

    def offset_at(self, timestamp: int, last_index: int) -> int:
        """The first offset whose batch holds a message at or after `timestamp`; see the contract."""
        return self._reader.look(lambda connection: self._reader.offset_at(connection, timestamp, last_index))

    # Changing the log

    def write(self, write: Write) -> None:
        """One transaction. When this returns it is durable already.

        The one exception to "nothing of it is visible" after an error is a connection that is lost in
        the moment of the commit: nobody knows then. The same write may be tried again all the same.
        """
        with self._reader.lock:
            if write.snapshot is None and (write.entries or write.truncate_from is not None):
                # Nothing is built on a log with a hole in it.
                self._reader.refuse_damaged(INDEX_MAX, INDEX_MAX)
            is_retry, self._write_failed = self._write_failed, True
            with self._changing(_hard_state_columns(write.hard_state)) as change:
                self._carry_out(write, change, is_retry=is_retry)
            self._write_failed = False
            if write.snapshot is not None:
                self._reader.damage = None
                self._reader.unsound_snapshots.clear()
        if write.snapshot is not None:
            self._deleter.delete(self._group_id, self._delete_some_dropped)

    def _carry_out(self, write: Write, change: _Change, *, is_retry: bool) -> None:
        if added_bytes := _added_bytes(write):
            self._database.refuse_if_full(change.connection, added_bytes)
        if write.snapshot is not None:
            self._install(change, write.snapshot, write.next_offset)
        if write.truncate_from is not None:
            self._truncate(change, write.truncate_from)
        if write.entries:
            if is_retry and write.entries[0].index <= change.end.index:
                self._truncate(change, write.entries[0].index)
            self._append(change, singly(write.entries))

    def sync(self) -> None:
        """Nothing to do: `write` has committed."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; one at the same index gives way to it."""
        with self._reader.lock:
            self._reader.refuse_damaged(snapshot.index, snapshot.index)
            with self._changing() as change:
                self._database.refuse_if_full(change.connection, len(snapshot.state))
                place = self._reader.place(change.connection, change.start, snapshot.index)
                self._keep_snapshot(change.connection, snapshot, place)
            self._reader.unsound_snapshots.discard(snapshot.index)

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`. Nobody sees it any more when this returns; most of its
        rows, or all, are deleted by then."""
        with self._reader.lock:
            has_moved, damage = self._move_start(index), self._reader.damage
            if has_moved and damage is not None and damage.index <= index:
                self._reader.damage = None  # what was damaged is no longer part of the log
        self._deleter.delete(self._group_id, self._delete_some_dropped)

    def _move_start(self, index: int) -> bool:
        with self._changing() as change:
            if index <= change.start.index:
                return False  # gone already
            if self._reader.snapshot(change.connection, change.start, index) is None:
                return False  # it would be all that is left of the head
            change.start = self._reader.place(change.connection, change.start, index)
            self._begin_after(change.connection, change.start)
            return True

    def _has_dropped_rows(self, connection: Connection) -> bool:
        return has_dropped_rows(connection, self._group_id, self._reader.start(connection).index)

    def _delete_some_dropped(self) -> bool:
        with self._reader.lock:
            if self._reader.is_closed or self._is_taken:
                return False  # whoever opens the log finds it
            with contextlib.suppress(GroupNotFound), self._changing() as change:
                return delete_some_dropped(change.connection, self._group_id, change.start.index)
            return False

    def cut_damage(self) -> None:
        """Give up everything from the damage on: all there is, when it is the snapshot at the log's start."""
        with self._reader.lock:
            damage = self._reader.damage
            if damage is None:
                return
            # From the end on, so that whatever stops us leaves a log without a gap, and the damage in it.
            while self._cut_some(damage.index):
                pass
            self._reader.damage = None

    def _cut_some(self, index: int) -> bool:
        with self._changing() as change:
            is_all = index <= change.start.index
            first = 0 if is_all else index
            if delete_some_entries(change.connection, self._group_id, first, newest_first=True):
                change.end = self._reader.end(change.connection, change.start)
                return True
            delete_snapshots(change.connection, self._group_id, first)
            if is_all:
                change.start = Place(0, 0, 0, 0, 0, 0, 0)
                self._begin_after(change.connection, change.start)
            change.end = self._reader.end(change.connection, change.start)
            return False

    @property
    def is_closed(self) -> bool:
        """Whether it can still be used."""
        return self._reader.is_closed

    def close(self) -> None:
        """Nothing is pending, and the connections belong to all stores together."""
        self._reader.is_closed = True

    @contextlib.contextmanager
    def _changing(self, columns: dict[str, Any] | None = None) -> Iterator[_Change]:
        """One transaction, in which the group's row gets these values; only while the log is ours."""
        with self._reader.lock:
            if self._reader.is_closed:
                raise StorageError(f"the log of {self._reader.group!r} is closed")
            # Not to be trusted until the commit has succeeded.
            known, self._known = self._known, None
            with self._database.writing() as connection:
                if known is None:
                    row = self._reader.row(connection)
                    start = start_of(row)
                    known = _Known(row.writes, start, self._reader.end(connection, start))
                self._pass_the_fence(connection, known.writes, columns or {})
                change = _Change(connection, known.start, known.end)
                yield change
            self._known = _Known(known.writes + 1, change.start, change.end)

    def _pass_the_fence(self, connection: Connection, writes: int, columns: dict[str, Any]) -> None:
        passed = connection.execute(
            update(groups)
            .where(
                groups.c.group_id == self._group_id,
                groups.c.opening == self._opening,
                groups.c.writes == writes,
            )
            .values(writes=writes + 1, **columns)
        )
        if passed.rowcount == 1:
            return
        if self._reader.row(connection).opening != self._opening:
            self._is_taken = True
            raise StorageError(
                f"somebody else has opened the log of {self._reader.group!r} in the same database"
            )
        raise StorageError("a write whose outcome was unknown has been carried out; try again")

    def _append(self, change: _Change, new: Sequence[Entry]) -> None:
        rows = rows_of(self._group_id, new, change.end)
        change.connection.execute(insert(entries), rows.entries)
        change.connection.execute(insert(parts), rows.parts)
        change.end = rows.end

    def _truncate(self, change: _Change, first_index: int) -> None:
        """Remove the entries from `first_index` on."""
        if first_index > change.end.index:
            return
        delete_entries(change.connection, self._group_id, first_index)
        change.end = self._reader.end(change.connection, change.start)
        assert change.end.index == first_index - 1, "what is dropped or missing cannot be truncated"

    def _install(self, change: _Change, snapshot: Snapshot, next_offset: int) -> None:
        """The whole log gives way to a snapshot. What lies below that is out of sight, and deleted later."""
        delete_entries(change.connection, self._group_id, snapshot.index + 1)
        delete_snapshots(change.connection, self._group_id, snapshot.index)
        change.start = change.end = Place(
            snapshot.index,
            snapshot.term,
            snapshot.index,  # the first entry of this term that this log knows of
            0,  # and it knows of no configuration entry
            next_offset,
            change.end.next_position,
            0,  # nor of any message
        )
        self._begin_after(change.connection, change.end)
        self._keep_snapshot(change.connection, snapshot, change.end)

    def _begin_after(self, connection: Connection, place: Place) -> None:
        connection.execute(
            update(groups)
            .where(groups.c.group_id == self._group_id)
            .values(
                start_index=place.index,
                start_term=place.term,
                start_term_index=place.term_index,
                start_configuration_index=place.configuration_index,
                start_offset=place.next_offset,
                start_position=place.next_position,
                start_timestamp=place.newest_timestamp,
            )
        )

    def _keep_snapshot(self, connection: Connection, snapshot: Snapshot, place: Place) -> None:
        index = snapshot.index
        delete_snapshots(connection, self._group_id, index, index)
        connection.execute(insert(snapshots), row_of_snapshot(self._group_id, snapshot, place))
        connection.execute(
            insert(parts), rows_of_parts(self._group_id, Owner.SNAPSHOT, index, snapshot.state)
        )


def _hard_state(group: AnyRow) -> HardState | None:
    return None if group.term is None else HardState(group.term, group.vote, bool(group.recovering))


def _hard_state_columns(hard_state: HardState | None) -> dict[str, Any]:
    if hard_state is None:
        return {}
    return {"term": hard_state.term, "vote": hard_state.vote, "recovering": hard_state.recovering}


def _added_bytes(write: Write) -> int:
    state_bytes = len(write.snapshot.state) if write.snapshot is not None else 0
    return state_bytes + sum([len(entry.payload) for entry in write.entries])
