"""What is asked of a database so that commits last, and whoever vanishes in the midst of a transaction blocks
nobody."""

import sqlite3
import time
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, event


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long we wait for a database, and it for us."""

    connect_seconds_max: int
    answer_seconds_max: int
    lock_seconds_max: int  # for rows that another transaction holds
    idle_seconds_max: int  # how long a server keeps a transaction of ours in which nothing happens


def postgresql_options(url: URL, waits: Waits, **more: str) -> str:
    """The settings of a session that follow from the waits, more of them, and what the URL says itself."""
    settings = {
        "lock_timeout": f"{waits.lock_seconds_max}s",
        "idle_in_transaction_session_timeout": f"{waits.idle_seconds_max}s",
        # The server's own look at whether we are still there, in or out of a transaction.
        "tcp_keepalives_idle": waits.idle_seconds_max,
        "tcp_keepalives_interval": max(waits.idle_seconds_max // 3, 1),
        "tcp_keepalives_count": 3,
        **more,
    }
    own = url.query.get("options", ())
    return " ".join(
        [*(f"-c {name}={value}" for name, value in settings.items())]
        + ([own] if isinstance(own, str) else list(own))
    )


def count_idle_seconds(engine: Engine) -> None:
    """Have PostgreSQL count how long a transaction is left alone, whatever was done in it last.

    The driver runs many rows through a pipeline, and ends that with a message after which the server does not
    count. It begins to again after a statement by itself.
    """

    @event.listens_for(engine, "after_cursor_execute")
    def executed(*arguments: Any) -> None:
        connection, *_, is_many = arguments
        if is_many:
            with connection.connection.cursor() as cursor:
                cursor.execute("SELECT 1")


def bound_mysql(engine: Engine, waits: Waits) -> None:
    """Bound what a transaction waits for, and how long one that is left alone holds its rows.

    MariaDB has a limit for that. MySQL has one for connections that are left alone, in a transaction or not:
    those that rest in the pool are closed as well, and replaced when they are wanted.
    """
    lock_seconds, idle_seconds = waits.lock_seconds_max, waits.idle_seconds_max
    limits = (
        f"SET innodb_lock_wait_timeout = {lock_seconds}, lock_wait_timeout = {lock_seconds},"
        f" wait_timeout = {idle_seconds}"
        # To MySQL this is a comment.
        f" /*M!100300 , wait_timeout = DEFAULT, idle_transaction_timeout = {idle_seconds} */"
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(limits)


def prepare_sqlite(engine: Engine, waits: Waits, *pragmas: str, begin: str = "BEGIN") -> None:
    """Take transactions into our own hands, and have commits reach the disk.

    `BEGIN IMMEDIATE` is for writers, and may be chosen for one transaction with the option `talweg_begin`: it
    takes the lock at once, while a reader that becomes a writer later may be refused.

    A write-ahead log, because then readers and the writer do not wait for each other, and a commit costs one
    sync instead of two or more. synchronous=FULL, because in this mode NORMAL syncs only at checkpoints: a
    power failure would take back commits that were acknowledged.
    """

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for reads
        _use_write_ahead_log(connection, waits.answer_seconds_max)
        for pragma in ("synchronous=FULL", *pragmas):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("talweg_begin", begin))


def _use_write_ahead_log(connection: sqlite3.Connection, seconds_max: float) -> None:
    # Of several who open a new database at once, one changes its mode. SQLite refuses the others without the
    # wait that it grants everywhere else: two that wait for each other's lock would wait for ever.
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
