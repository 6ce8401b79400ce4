"""Somebody else who creates a database's tables, always a moment earlier."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event


@contextmanager
def another_is_first(url: str) -> Iterator[list[str]]:
    """Whoever creates a table here, or inserts a row, finds that another has just done the same. Yields
    what the other has done."""
    other, done = create_engine(url, poolclass=NullPool), []

    def do_it_first(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
    ) -> None:
        if connection.engine is not other and statement.split(maxsplit=1)[0] in ("CREATE", "INSERT"):
            with other.begin() as others:
                others.exec_driver_sql(statement, parameters or None)
            done.append(statement)

    event.listen(Engine, "before_cursor_execute", do_it_first)
    try:
        yield done
    finally:
        event.remove(Engine, "before_cursor_execute", do_it_first)
