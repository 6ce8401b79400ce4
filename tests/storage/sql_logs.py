"""Making entries and looking at whole logs, for the tests of the SQL store."""

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy
from sqlalchemy import Connection

from storage.logs import together
from talweg.raft import Configuration, Entry
from talweg.records import Kind, encode_frame
from talweg.storage.contract import Write
from talweg.storage.sql import SqlStore, SqlStores

ALL = 1 << 40  # bytes: no limit
MEMBERS = Configuration.of([1, 2, 3])


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[SqlStores]:
    stores = SqlStores(url, **options)
    try:
        yield stores
    finally:
        stores.close()


@contextlib.contextmanager
def by_hand(url: str) -> Iterator[Connection]:
    """A connection of our own, to do to the tables what Talweg would never do."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        yield connection


def batch(
    index: int, *, term: int = 1, offset: int | None = None, body: bytes = b"body", at: int = 0
) -> Entry:
    """An entry with one message; `at` is its timestamp."""
    frame = encode_frame(
        Kind.RECORDS,
        body,
        index=index,
        term=term,
        first_offset=index - 1 if offset is None else offset,
        count=1,
        first_timestamp=at,
        last_timestamp=at,
    )
    return Entry(index, term, Kind.RECORDS, frame)


def batches(first: int, last: int, **options: Any) -> list[Entry]:
    return [batch(index, **options) for index in range(first, last + 1)]


def write(store: SqlStore, entries: list[Entry], **options: Any) -> None:
    store.write(Write(entries=together(entries), **options))
    store.sync()


def read_all(store: SqlStore) -> list[Entry]:
    found: list[Entry] = []
    next_index = store.summary().start_index + 1
    while more := store.read(next_index, 1 << 20):
        found += more
        next_index = more[-1].index + 1
    return found
