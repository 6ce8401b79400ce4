"""One group's log in an SQL database: every call is a transaction. See `talweg.storage.sql` for the whole."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select, update

from talweg.errors import DamagedLog, StorageError
from talweg.raft import Entry, HardState, Snapshot
from talweg.storage.contract import LogStore, LogSummary, SnapshotMark, Write
from talweg.storage.frames import entry_of
from talweg.storage.sql_database import Database
from talweg.storage.sql_queries import INDEX_MAX, parts_between, start_of, term_runs
from talweg.storage.sql_reader import SqlReader
from talweg.storage.sql_rows import AnyRow, Place, row_of_snapshot, rows_of, rows_of_parts, snapshot_of
from talweg.storage.sql_schema import Owner, entries, groups, parts, snapshots


class _Known(msgspec.Struct, frozen=True):
    """What a store may believe of its log without asking."""

    writes: int  # as the group's row has it
    end: Place


class _Change:
    """A transaction under way, and where the log ends by it."""

    def __init__(self, connection: Connection, end: Place, *, is_retry: bool) -> None:
        self.connection = connection
        self.end = end
        self.is_retry = is_retry  # the last one failed: it may be this very one, and carried out after all


class SqlStore(LogStore):
    """Opened by `SqlStores`. Reads go to the database, from any thread; changes one at a time."""

    def __init__(self, database: Database, group: str, group_id: int, opening: int) -> None:
        self._database = database
        self._group_id = group_id
        self._opening = opening
        self._reader = SqlReader(database, group, group_id)
        self._known: _Known | None = None  # None: ask before the next change
        self._has_failed = False  # the last change; its outcome may be unknown

    # What is there

    def summary(self) -> LogSummary:
        """What is there now; with damage, of the sound part before it."""
        with contextlib.suppress(DamagedLog):
            return self._reader.look(self._summary)
        # A configuration is damaged. Now that this is known, it is not read again.
        return self._reader.look(self._summary)

    def _summary(self, connection: Connection) -> LogSummary:
        group = self._reader.row(connection)
        start, end = start_of(group), self._reader.sound_end(connection)
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
        """Those kept, oldest first; none that stands for what is damaged."""
        return self._reader.look(self._marks)

    def _marks(self, connection: Connection) -> list[SnapshotMark]:
        end = self._reader.sound_end(connection)
        columns = snapshots.c
        rows = connection.execute(
            select(columns.entry_index, columns.next_offset, columns.next_position, columns.newest_timestamp)
            .where(self._mine(snapshots), columns.entry_index <= end.index)
            .order_by(columns.entry_index)
        )
        return [
            SnapshotMark(index, next_offset, end.next_position - next_position, newest_timestamp)
            for index, next_offset, next_position, newest_timestamp in rows
        ]

    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest one. Raises DamagedLog when it is not what was saved."""
        return self._reader.look(lambda connection: self._snapshot(connection, index))

    def _snapshot(self, connection: Connection, index: int | None) -> Snapshot | None:
        query = select(snapshots).where(self._mine(snapshots))
        if index is not None:
            query = query.where(snapshots.c.entry_index == index)
        end = self._reader.sound_end(connection)
        query = query.where(snapshots.c.entry_index <= end.index)
        row = connection.execute(query.order_by(snapshots.c.entry_index.desc()).limit(1)).one_or_none()
        if row is None:
            return None
        at = row.entry_index
        return snapshot_of(row, parts_between(connection, self._group_id, Owner.SNAPSHOT, at, at).get(at))

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
            with self._changing(_hard_state_columns(write.hard_state)) as change:
                if write.snapshot is not None:
                    self._install(change, write.snapshot, write.next_offset)
                if write.truncate_from is not None:
                    self._truncate(change, write.truncate_from)
                if write.entries:
                    if change.is_retry and write.entries[0].index <= change.end.index:
                        self._truncate(change, write.entries[0].index)
                    self._append(change, write.entries)
            if write.snapshot is not None:
                self._reader.damage = None

    def sync(self) -> None:
        """Nothing to do: `write` has committed."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; one at the same index gives way to it."""
        with self._changing() as change:
            place = self._reader.place(change.connection, snapshot.index)
            self._keep_snapshot(change.connection, snapshot, place)

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`."""
        with self._reader.lock:
            with self._changing() as change:
                self._begin_after(change.connection, self._reader.place(change.connection, index))
                self._delete(change.connection, entries, entries.c.entry_index <= index)
                self._delete_parts(change.connection, Owner.ENTRY, parts.c.entry_index <= index)
                self._delete(change.connection, snapshots, snapshots.c.entry_index < index)
                self._delete_parts(change.connection, Owner.SNAPSHOT, parts.c.entry_index < index)
            damage = self._reader.damage
            if damage is not None and damage.index <= index:
                self._reader.damage = None  # what was damaged is no longer part of the log

    def cut_damage(self) -> None:
        """Give up everything from the damage on."""
        with self._reader.lock:
            damage = self._reader.damage
            if damage is None:
                return
            with self._changing() as change:
                self._truncate(change, damage.index)
                self._delete(change.connection, snapshots, snapshots.c.entry_index >= damage.index)
                self._delete_parts(change.connection, Owner.SNAPSHOT, parts.c.entry_index >= damage.index)
            self._reader.damage = None

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
            is_retry, self._has_failed = self._has_failed, True
            with self._database.writing() as connection:
                if known is None:
                    writes = self._reader.row(connection).writes
                    known = _Known(writes, self._reader.end(connection))
                self._pass_the_fence(connection, known.writes, columns or {})
                change = _Change(connection, known.end, is_retry=is_retry)
                yield change
            self._known, self._has_failed = _Known(known.writes + 1, change.end), False

    def _pass_the_fence(self, connection: Connection, writes: int, columns: dict[str, Any]) -> None:
        passed = connection.execute(
            update(groups)
            .where(self._mine(groups), groups.c.opening == self._opening, groups.c.writes == writes)
            .values(writes=writes + 1, **columns)
        )
        if passed.rowcount == 1:
            return
        if self._reader.row(connection).opening != self._opening:
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
        self._delete(change.connection, entries, entries.c.entry_index >= first_index)
        self._delete_parts(change.connection, Owner.ENTRY, parts.c.entry_index >= first_index)
        change.end = self._reader.end(change.connection)
        assert change.end.index == first_index - 1, "what is dropped or missing cannot be truncated"

    def _install(self, change: _Change, snapshot: Snapshot, next_offset: int) -> None:
        """The whole log gives way to a snapshot."""
        for table in (entries, snapshots, parts):
            self._delete(change.connection, table)
        change.end = Place(
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
            .where(self._mine(groups))
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
        self._delete(connection, snapshots, snapshots.c.entry_index == index)
        self._delete_parts(connection, Owner.SNAPSHOT, parts.c.entry_index == index)
        connection.execute(insert(snapshots), row_of_snapshot(self._group_id, snapshot, place))
        connection.execute(
            insert(parts), rows_of_parts(self._group_id, Owner.SNAPSHOT, index, snapshot.state)
        )

    def _mine(self, table: Table) -> ColumnElement[bool]:
        return table.c.group_id == self._group_id

    def _delete(self, connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> None:
        connection.execute(delete(table).where(self._mine(table), *conditions))

    def _delete_parts(self, connection: Connection, owner: Owner, condition: ColumnElement[bool]) -> None:
        self._delete(connection, parts, parts.c.owner == int(owner), condition)


def _hard_state(group: AnyRow) -> HardState | None:
    return None if group.term is None else HardState(group.term, group.vote, bool(group.recovering))


def _hard_state_columns(hard_state: HardState | None) -> dict[str, Any]:
    if hard_state is None:
        return {}
    return {"term": hard_state.term, "vote": hard_state.vote, "recovering": hard_state.recovering}
