"""A database behind a URL: connections for reading and for writing, and its errors in our words.

All that is peculiar to SQLite, PostgreSQL or MariaDB / MySQL is here; `talweg.storage.sql` sees none of it.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from talweg.databases import Waits, bound_mysql, count_idle_seconds, postgresql_options, prepare_sqlite
from talweg.errors import InvalidSetting, StorageError, StorageFull
from talweg.storage.sql_schema import PACKET_BYTES_MIN, metadata
from talweg.storage.sql_space import free_bytes_around, leaves_too_little

CONNECTIONS_MAX: Final = 8  # of each of the two pools
_KEPT_CONNECTIONS: Final = 4
# Where each table is a transaction of its own, another process may be first at every one.
_CREATE_ATTEMPTS_MAX: Final = len(metadata.tables) + 1

_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_POSTGRESQL_DISK_FULL: Final = "53100"
_MYSQL_DISK_FULL: Final = 1021
_MYSQL_TABLE_FULL: Final = 1114
_MYSQL_ENGINE_ERROR: Final = 1030  # with the operating system's number in its text
_ENOSPC_IN_TEXT: Final = "error 28 "


WAITS: Final = Waits(
    connect_seconds_max=10,
    answer_seconds_max=60,
    # One thread writes for many groups: who holds the row of one group must not hold up the others for long.
    lock_seconds_max=2,
    # We never pause in a transaction, so whoever began it has vanished without a word, and nobody else would
    # ever let go of its rows.
    idle_seconds_max=15,
)


class Database:
    """Two pools of connections to one database; connections that broke are replaced by themselves.

    Those for reading see one moment throughout a transaction (REPEATABLE READ): what `read` finds is
    consistent whatever is written meanwhile. Those for writing use READ COMMITTED, under which MariaDB
    locks only rows and not the gaps between them: groups do not stand in each other's way.
    """

    def __init__(self, url: str, waits: Waits = WAITS, free_bytes: Callable[[], int] | None = None) -> None:
        """With SQLite, `free_bytes` says how much of its disk is free; the disk itself does by default."""
        self._url = _url_with_driver(url)
        self._waits = waits
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._free_bytes = free_bytes or free_bytes_around(self._url.database or "")
        self._reads = self._engine("REPEATABLE READ", connections_max=CONNECTIONS_MAX)
        # SQLite has one writer at a time anyway: let them queue for the connection, not for the lock.
        self._writes = self._engine(
            "READ COMMITTED", connections_max=1 if self._is_sqlite else CONNECTIONS_MAX
        )
        if self._is_sqlite:
            # Some builds overwrite all that is deleted: deleting then needs as much room as adding did.
            prepare_sqlite(self._reads, waits, "secure_delete=FAST")
            prepare_sqlite(self._writes, waits, "secure_delete=FAST", begin="BEGIN IMMEDIATE")
        elif self._url.get_backend_name() == "postgresql":
            count_idle_seconds(self._writes)
        else:
            for engine in (self._reads, self._writes):
                bound_mysql(engine, waits)
        try:
            self._check_packets()
            self._create_tables()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database."""
        with _errors_translated(), self._reads.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is durable when the block ends well, and undone when it raises.

        When the connection is lost in the very moment of the commit, StorageError is raised although
        the database may have carried the transaction out.
        """
        with _errors_translated(), self._writes.begin() as connection:
            yield connection

    def refuse_if_full(self, connection: Connection, added_bytes: int) -> None:
        """Raises StorageFull when so much more would leave too little of the disk to delete anything.

        Of SQLite's disk; a server's disk is its own affair.
        """
        if not self._is_sqlite:
            return
        free_bytes = self._free_bytes()
        if not leaves_too_little(free_bytes, added_bytes):
            return
        pages = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        reusable_bytes = pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        if leaves_too_little(free_bytes, added_bytes, reusable_bytes):
            raise StorageFull(f"{free_bytes} bytes of the disk are free: they are kept for deleting")

    def close(self) -> None:
        """Let go of all connections."""
        self._reads.dispose()
        self._writes.dispose()

    def _engine(self, isolation_level: str, *, connections_max: int) -> Engine:
        kept = min(connections_max, _KEPT_CONNECTIONS)
        arguments: dict[str, Any] = {} if self._is_sqlite else {"isolation_level": isolation_level}
        try:
            return create_engine(
                self._url,
                connect_args=_connect_arguments(self._url, self._waits),
                pool_size=kept,
                max_overflow=connections_max - kept,
                pool_timeout=self._waits.answer_seconds_max,
                # A server may have restarted since the last call, or closed what was not used for long.
                pool_pre_ping=not self._is_sqlite,
                pool_use_lifo=True,
                hide_parameters=True,  # they are messages: nobody's business in a log file
                **arguments,
            )
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                f"the driver for {self._url.drivername} is not installed: {error}"
            ) from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise InvalidSetting(f"a database URL that SQLAlchemy does not understand: {error}") from error

    def _check_packets(self) -> None:
        if self._url.get_backend_name() not in ("mysql", "mariadb"):
            return
        with self.reading() as connection:
            packet_bytes = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        if packet_bytes < PACKET_BYTES_MIN:
            raise InvalidSetting(
                f"the database's max_allowed_packet is {packet_bytes} bytes, expected at least "
                f"{PACKET_BYTES_MIN}: raise it in the server's configuration"
            )

    def _create_tables(self) -> None:
        with self.reading():
            pass  # a database that does not answer is told at once, not after all attempts
        for attempt in range(1, _CREATE_ATTEMPTS_MAX + 1):
            try:
                with self.writing() as connection:
                    metadata.create_all(connection)
                return
            except StorageError:
                # Another process may have created them between our look and our attempt.
                if attempt == _CREATE_ATTEMPTS_MAX:
                    raise


def _url_with_driver(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidSetting(
            "a database URL of the form dialect://user:password@host:port/database"
        ) from error
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise InvalidSetting(f"a database URL for {backend!r}, expected one of {', '.join(_DRIVERS)}")
    if backend == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise InvalidSetting(
            "an SQLite database in memory keeps nothing: use the memory store, or name a file"
        )
    # `postgresql://` and `mysql://` alone would mean drivers that we do not use.
    return url if "+" in url.drivername else url.set(drivername=_DRIVERS[backend])


def _connect_arguments(url: URL, waits: Waits) -> dict[str, Any]:
    answer_seconds = waits.answer_seconds_max
    backend = url.get_backend_name()
    if backend == "sqlite":
        return {"timeout": answer_seconds}
    if backend == "postgresql":
        # A dead host is noticed by the kernel: by keepalives while we wait for an answer, by the user
        # timeout while we send.
        return {
            "connect_timeout": waits.connect_seconds_max,
            "keepalives_idle": answer_seconds // 2,
            "keepalives_interval": answer_seconds // 6,
            "keepalives_count": 3,
            "tcp_user_timeout": answer_seconds * 1000,
            "options": postgresql_options(url, waits),
        }
    return {
        "connect_timeout": waits.connect_seconds_max,
        "read_timeout": answer_seconds,
        "write_timeout": answer_seconds,
    }


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if _is_full(error.orig):
            raise StorageFull(f"the database has no space left: {error.orig}") from error
        raise StorageError(f"the database failed: {error.orig}") from error
    except SQLAlchemyError as error:  # such as a wait for a connection that took too long
        raise StorageError(f"the database failed: {error}") from error


def _is_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        code: int | None = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF == sqlite3.SQLITE_FULL
    if getattr(error, "sqlstate", None) == _POSTGRESQL_DISK_FULL:
        return True
    number, text = (*getattr(error, "args", ()), None, None)[:2]
    if number == _MYSQL_ENGINE_ERROR:
        return _ENOSPC_IN_TEXT in str(text)
    return number in (_MYSQL_DISK_FULL, _MYSQL_TABLE_FULL)
