"""Logs in an SQL database: SQLite, PostgreSQL, MariaDB or MySQL. The tables are in `sql_schema`.

`write` is one transaction and commits it, so `sync` has nothing left to do: durable early is allowed,
and since a Write is a whole batch already, putting the commit off would save little. How durable a
commit is, is the database's own affair (PostgreSQL's synchronous_commit, InnoDB's
innodb_flush_log_at_trx_commit; the defaults of both are safe. SQLite is set up safe by us).

What is in the database is the truth; a store remembers only what the next entry continues, and asks
again whenever a transaction may or may not have been carried out. Every transaction first moves the
counters in the group's row on from where this store believes them to be. So a write fails, and changes
nothing, when somebody else has opened the same log since, and a commit that was given up for lost and
comes through after all is noticed.
"""

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from sqlalchemy import Connection, delete, insert, select, update

from talweg.databases import Waits
from talweg.errors import BadRequest, GroupNotFound, NewerFormat
from talweg.storage.contract import LogStores
from talweg.storage.sql_database import WAITS, Database
from talweg.storage.sql_deleting import Deleter, note_deleted
from talweg.storage.sql_rows import AnyRow
from talweg.storage.sql_schema import FORMAT, GROUP_NAME_BYTES_MAX, groups
from talweg.storage.sql_store import SqlStore

__all__ = ["SqlStore", "SqlStores"]

_NEW_GROUP: Final = {
    "format": FORMAT,
    "opening": 0,
    "writes": 0,
    "recovering": False,
    "start_index": 0,
    "start_term": 0,
    "start_term_index": 0,
    "start_configuration_index": 0,
    "start_offset": 0,
    "start_position": 0,
    "start_timestamp": 0,
}


class SqlStores(LogStores):
    """The logs of one broker, in a database of its own: two in one would take each other's logs away."""

    def __init__(
        self, url: str, *, waits: Waits = WAITS, free_bytes: Callable[[], int] | None = None
    ) -> None:
        """Connect, and create the tables if they are missing. Raises InvalidSetting or StorageError.

        With SQLite, `free_bytes` says how much of its disk is free; the disk itself does by default.
        """
        self._database = Database(url, waits, free_bytes)
        self._deleter = Deleter(self._database)
        # Never held while the database is asked: it may be slow to answer for one group, and others go on.
        self._lock = threading.Lock()
        self._stores: dict[str, SqlStore] = {}
        self._turns: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()

    def open(self, group: str, incarnation: int) -> SqlStore:
        """Open a group's log, creating it if need be; the same store if it is open already.

        A process that opened the same log before can write no more.
        """
        with self._turn(group):
            store = self._stores.get(group)
            with self._database.writing() as connection:
                row = _row(connection, group) or _create(connection, group, incarnation)
                _check(row, group, incarnation)
                if store is not None and not store.is_closed:
                    return store
                opening = row.opening + 1
                connection.execute(
                    update(groups).where(groups.c.group_id == row.group_id).values(opening=opening)
                )
            store = SqlStore(self._database, self._deleter, group, row.group_id, opening)
            with self._lock:
                self._stores[group] = store
            return store

    def _turn(self, group: str) -> threading.RLock:
        """What is held by whoever opens or deletes this group; it exists while somebody holds it."""
        with self._lock:
            return self._turns.setdefault(group, threading.RLock())

    @property
    def checkpoint_due(self) -> bool:
        """Whether there are rows of what was dropped or deleted."""
        return self._deleter.is_due

    def checkpoint(self) -> None:
        """Delete them."""
        self._deleter.delete_all_due()

    def groups(self) -> dict[str, int]:
        """The groups that have a log here, with their incarnations."""
        with self._database.reading() as connection:
            rows = connection.execute(select(groups.c.name, groups.c.incarnation)).all()
        return {row.name: row.incarnation for row in rows}

    def delete(self, group: str) -> None:
        """Remove a group's log. Removing what is not there is harmless."""
        with self._turn(group):
            with self._lock:
                store = self._stores.pop(group, None)
            if store is not None:
                store.close()
            with self._database.writing() as connection:
                row = _row(connection, group)
                if row is None:
                    return
                connection.execute(delete(groups).where(groups.c.group_id == row.group_id))
                note_deleted(connection, row.group_id)
        self._deleter.delete_rows_of(row.group_id)

    def close(self) -> None:
        """Close every store that is open, and the connections."""
        with self._lock:
            stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()
        self._database.close()


def _row(connection: Connection, group: str) -> AnyRow | None:
    # Locked until the transaction ends: of two that open the same log, one comes after the other.
    return connection.execute(select(groups).where(groups.c.name == group).with_for_update()).one_or_none()


def _create(connection: Connection, group: str, incarnation: int) -> AnyRow:
    if len(group.encode()) > GROUP_NAME_BYTES_MAX:
        raise BadRequest(f"a group name of {len(group)} characters, expected at most {GROUP_NAME_BYTES_MAX}")
    connection.execute(insert(groups), {"name": group, "incarnation": incarnation, **_NEW_GROUP})
    row = _row(connection, group)
    assert row is not None
    return row


def _check(row: AnyRow, group: str, incarnation: int) -> None:
    if row.format > FORMAT:
        raise NewerFormat(f"{group} has format {row.format}, this version knows those up to {FORMAT}")
    if row.incarnation != incarnation:
        raise GroupNotFound(f"{group} is here in incarnation {row.incarnation}, expected {incarnation}")
