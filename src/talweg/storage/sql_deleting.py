"""Deleting rows, and above all those that are no longer part of any log: a bounded piece in each transaction.

A log loses its head, or is deleted, in one small transaction, after which nobody sees the rows any more.
The rows themselves may be millions. A transaction that deletes them all takes longer than a database, or
whoever waits for it, has patience, and once it is rolled back, it begins from nothing. So they go piece by
piece: some at once, the rest when there is time. What a crash leaves is found when the log is opened.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Table, delete, func, insert, select

from talweg.errors import StorageError, StorageFull
from talweg.storage.sql_database import Database
from talweg.storage.sql_queries import INDEX_MAX
from talweg.storage.sql_schema import Owner, deleted, entries, parts, snapshots

# What goes in one transaction, which is what a write of the same log may have to wait for.
_ENTRIES_MAX: Final = 500
_BYTES_MAX: Final = 4 << 20  # of frames; one entry at least
_SNAPSHOTS_MAX: Final = 8
_PIECES_AT_ONCE: Final = 16  # what usually lies between two snapshots; the log's next write waits for it

DeleteSome = Callable[[], bool]  # deletes a piece; whether there may be more


class Deleter:
    """Which logs of a broker have rows that are to be deleted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due: dict[int, DeleteSome] = {}  # by the group's number
        with database.reading() as connection:
            for group_id in connection.execute(select(deleted.c.group_id)).scalars():
                self.delete_later(group_id, self._rows_of(group_id))

    @property
    def is_due(self) -> bool:
        """Whether there is something to delete."""
        return bool(self._due)

    def delete_later(self, group_id: int, delete_some: DeleteSome) -> None:
        """Leave it to `delete_all_due`."""
        self._due[group_id] = delete_some

    def delete(self, group_id: int, delete_some: DeleteSome) -> None:
        """Delete, but not for long. What cannot go now is left to `delete_all_due`, which says why."""
        with contextlib.suppress(StorageError, StorageFull):
            for _ in range(_PIECES_AT_ONCE):
                if not delete_some():
                    return
        self.delete_later(group_id, delete_some)

    def delete_rows_of(self, group_id: int) -> None:
        """Delete the rows of a log whose deletion has been noted."""
        self.delete(group_id, self._rows_of(group_id))

    def delete_all_due(self) -> None:
        """Delete what is due. Raises StorageFull or StorageError; then it is still due."""
        for group_id in list(self._due):
            delete_some = self._due.pop(group_id, None)
            try:
                while delete_some is not None and delete_some():
                    pass
            except BaseException:
                if delete_some is not None:
                    self._due.setdefault(group_id, delete_some)
                raise

    def _rows_of(self, group_id: int) -> DeleteSome:
        def delete_some() -> bool:
            with self._database.writing() as connection:
                if delete_some_dropped(connection, group_id, INDEX_MAX):
                    return True
                connection.execute(delete(deleted).where(deleted.c.group_id == group_id))
                return False

        return delete_some


def note_deleted(connection: Connection, group_id: int) -> None:
    """Say that the rows of a group are nobody's; to be done in the transaction that deletes the group."""
    connection.execute(insert(deleted), {"group_id": group_id})


def has_dropped_rows(connection: Connection, group_id: int, start_index: int) -> bool:
    """Whether rows are left of what was dropped from a log."""
    for table, last in ((entries, start_index), (snapshots, start_index - 1)):
        lowest = select(func.min(table.c.entry_index)).where(table.c.group_id == group_id)
        index = connection.execute(lowest).scalar_one()
        if index is not None and index <= last:
            return True
    return False


def delete_some_dropped(connection: Connection, group_id: int, start_index: int) -> bool:
    """Delete a piece of the entries up to `start_index`, or of the snapshots below it; whether there may be
    more."""
    if delete_some_entries(connection, group_id, 0, start_index):
        return True
    below = (snapshots.c.group_id == group_id, snapshots.c.entry_index < start_index)
    oldest = select(snapshots.c.entry_index).where(*below).order_by(snapshots.c.entry_index)
    indexes = list(connection.execute(oldest.limit(_SNAPSHOTS_MAX)).scalars())
    has_more = len(indexes) == _SNAPSHOTS_MAX
    delete_snapshots(connection, group_id, 0, indexes[-1] if has_more else start_index - 1)
    return has_more


def delete_some_entries(
    connection: Connection, group_id: int, first: int, last: int = INDEX_MAX, *, newest_first: bool = False
) -> bool:
    """Delete a piece of the entries from `first` to `last`, with their frames; whether there may be more."""
    index = entries.c.entry_index
    rows = connection.execute(
        select(index, entries.c.frame_bytes)
        .where(entries.c.group_id == group_id, index >= first, index <= last)
        .order_by(index.desc() if newest_first else index)
        .limit(_ENTRIES_MAX)
    ).all()
    count, piece_bytes = 0, 0
    for row in rows:
        piece_bytes += row.frame_bytes
        if count and piece_bytes > _BYTES_MAX:
            break
        count += 1
    has_more = count < len(rows) or count == _ENTRIES_MAX
    if has_more:  # otherwise all of the range goes, also frames whose entries are lost
        first, last = (rows[count - 1][0], last) if newest_first else (first, rows[count - 1][0])
    delete_entries(connection, group_id, first, last)
    return has_more


def delete_entries(connection: Connection, group_id: int, first: int, last: int = INDEX_MAX) -> None:
    """Delete the entries from `first` to `last`, with their frames."""
    _delete_between(connection, entries, group_id, first, last)
    _delete_parts(connection, Owner.ENTRY, group_id, first, last)


def delete_snapshots(connection: Connection, group_id: int, first: int, last: int = INDEX_MAX) -> None:
    """Delete the snapshots from `first` to `last`."""
    _delete_between(connection, snapshots, group_id, first, last)
    _delete_parts(connection, Owner.SNAPSHOT, group_id, first, last)


def _delete_between(connection: Connection, table: Table, group_id: int, first: int, last: int) -> None:
    within = (table.c.entry_index >= first, table.c.entry_index <= last)
    connection.execute(delete(table).where(table.c.group_id == group_id, *within))


def _delete_parts(connection: Connection, owner: Owner, group_id: int, first: int, last: int) -> None:
    within = (parts.c.entry_index >= first, parts.c.entry_index <= last)
    connection.execute(
        delete(parts).where(parts.c.group_id == group_id, parts.c.owner == int(owner), *within)
    )
