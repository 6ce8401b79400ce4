"""A database behind a URL: transactions that read, transactions that write, and its errors in our words.

All that is peculiar to SQLite, PostgreSQL or MariaDB / MySQL is here.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, insert, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from talweg.databases import Waits, bound_mysql, count_idle_seconds, postgresql_options, prepare_sqlite
from talweg.errors import InvalidSetting, MetadataUnavailable
from talweg.metadata import sql_schema as schema
from talweg.metadata.store import FORMAT

# Where each table is a transaction of its own, another process may be first at every one, and at the row.
_CREATE_ATTEMPTS_MAX: Final = len(schema.metadata.tables) + 2
_EXPECTED: Final = "expected sqlite:///PATH, postgresql+psycopg://… or mysql+pymysql://…"
# The drivers that are tested, by the names that people give to databases.
_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
# What SQLite says of a file that will never do, by the beginnings of its error's name.
_UNUSABLE: Final = ("SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")
_EXTRAS: Final = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


WAITS: Final = Waits(
    connect_seconds_max=5,
    answer_seconds_max=15,
    lock_seconds_max=10,  # longer than a transaction that was left alone may hold its rows
    # Every change takes the same row: a manager that vanished without a word in the midst of one would stop
    # all the others.
    idle_seconds_max=5,
)


class Database:
    """A pool of connections to one database; connections that broke are replaced by themselves."""

    def __init__(self, text: str, waits: Waits = WAITS) -> None:
        url = _checked_url(text)
        self._backend = url.get_backend_name()
        self._engine = _engine(url, waits)
        # SQLite has one writer at a time. Threads of one process queue here, where the wait ends at
        # once when it can; processes queue at the file, where it is a matter of looking again.
        self._writer = threading.Lock() if self._backend == "sqlite" else contextlib.nullcontext()
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database."""
        with _errors_translated(), self._engine.connect() as connection:
            if self._backend != "sqlite":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is durable when the block ends well, and undone when it raises.

        When the connection is lost in the very moment of the commit, MetadataUnavailable is raised
        although the database may have carried the transaction out.
        """
        with _errors_translated(), self._writer, self._engine.connect() as connection:
            connection.execution_options(talweg_begin="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def _create_tables(self) -> None:
        try:
            with self.reading():
                pass  # a database that does not answer is told at once, not after all attempts
        except MetadataUnavailable as error:
            if isinstance(error.__cause__, DBAPIError) and _is_unusable(error.__cause__):
                raise InvalidSetting(f"expected a file of SQLite's: {error}") from error
            raise
        for attempt in range(1, _CREATE_ATTEMPTS_MAX + 1):
            try:
                with self.writing() as connection:
                    schema.metadata.create_all(connection)
                    if connection.execute(select(schema.state.c.id)).first() is None:
                        connection.execute(insert(schema.state), schema.NEW_STATE | {"format": FORMAT})
                return
            except MetadataUnavailable:
                # Another process may have created them between our look and our attempt.
                if attempt == _CREATE_ATTEMPTS_MAX:
                    raise


def _is_unusable(error: DBAPIError) -> bool:
    """Whether it is an SQLite file that trying again will not make a database."""
    return str(getattr(error.orig, "sqlite_errorname", "")).startswith(_UNUSABLE)


def _checked_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InvalidSetting(f"a metadata URL that is none; {_EXPECTED}") from error
    backend = url.get_backend_name()
    if backend not in _DRIVERS or url.drivername not in (backend, _DRIVERS[backend]):
        raise InvalidSetting(f"a metadata URL for {url.drivername!r}; {_EXPECTED}")
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise InvalidSetting(
                "metadata in memory would be lost with the process: name a file, sqlite:///PATH"
            )
        if not Path(url.database).parent.is_dir():
            raise InvalidSetting(f"there is no directory for the metadata's file {url.database}")
    return url.set(drivername=_DRIVERS[backend])


def _engine(url: URL, waits: Waits) -> Engine:
    backend = url.get_backend_name()
    try:
        engine = create_engine(
            url,
            connect_args=_connect_arguments(url, waits),
            pool_timeout=waits.answer_seconds_max,
            # A server may have restarted since the last call, or closed what was not used for long.
            pool_pre_ping=backend != "sqlite",
            pool_use_lifo=True,
            hide_parameters=True,
        )
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"the driver for {url.drivername} is not installed: pip install talweg[{_EXTRAS[backend]}]"
        ) from error
    except (ArgumentError, NoSuchModuleError) as error:
        raise InvalidSetting(f"a metadata URL that SQLAlchemy does not understand; {_EXPECTED}") from error
    if backend == "sqlite":
        prepare_sqlite(engine, waits)
    elif backend == "postgresql":
        count_idle_seconds(engine)
    else:
        bound_mysql(engine, waits)
    return engine


def _connect_arguments(url: URL, waits: Waits) -> dict[str, Any]:
    backend, answer_seconds = url.get_backend_name(), waits.answer_seconds_max
    if backend == "sqlite":
        return {"timeout": answer_seconds}  # for another process's transaction
    if backend == "postgresql":
        return {
            "connect_timeout": waits.connect_seconds_max,
            # Neither this nor the statement's timeout helps when the host goes away without a word while it
            # is to answer: the server cannot count any more, and nothing is on its way that would have to be
            # acknowledged.
            "tcp_user_timeout": answer_seconds * 1000,
            "options": postgresql_options(url, waits, statement_timeout=f"{answer_seconds}s"),
            "keepalives_idle": answer_seconds // 3,
            "keepalives_interval": answer_seconds // 3,
            "keepalives_count": 2,
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
        raise MetadataUnavailable(f"the metadata database failed: {error.orig}") from error
    except PoolTimeout as error:
        raise MetadataUnavailable("all connections to the metadata database are busy") from error
