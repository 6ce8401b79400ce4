"""What the log in memory promises beyond the contract: reads that cost the same however long it is."""

from collections.abc import Callable
from typing import Any

import pytest

from storage.logs import EVERYTHING, LogMaker, contents, snapshot_at, write
from talweg.errors import StorageError
from talweg.storage import MemoryStores, Write
from talweg.storage.memory import MemoryStore

ENTRIES = 4_000


class CountedRows(list[Any]):
    """A list that counts what is taken out of it."""

    taken = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.taken += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.taken += len(self)
        return super().__iter__()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStores().open("group", 1)


@pytest.mark.parametrize(
    "look",
    [
        lambda store: store.read(7, 1),
        lambda store: store.read(7, 1, ENTRIES),
        lambda store: store.read_frames(6, 1, ENTRIES),
        lambda store: store.read_frames(ENTRIES, EVERYTHING, ENTRIES),
        lambda store: store.offset_at(2_000_000, ENTRIES),
        lambda store: store.summary(),
        lambda store: store.snapshots(),
    ],
    ids=["read", "read up to", "read_frames", "read_frames at the end", "offset_at", "summary", "snapshots"],
)
def test_a_look_at_a_long_log_takes_no_longer_than_one_at_a_short_one(
    look: Callable[[MemoryStore], object], store: MemoryStore
) -> None:
    write(store, *LogMaker().batches(ENTRIES))
    rows = store._rows = CountedRows(store._rows)
    assert look(store) is not None
    assert rows.taken < 40, "a search by halves, and what was asked for"


def test_terms_and_configurations_are_those_of_the_entries_that_are_left(store: MemoryStore) -> None:
    make = LogMaker()
    entries = [make.noop(), make.configuration(1, 2), *make.batches(2)]
    make.term = 2
    entries += [make.configuration(1, 2, 3), *make.batches(2)]
    make.term = 3
    entries += [make.configuration(1), *make.batches(1)]
    write(store, *entries)
    assert store.summary().terms == [(1, 1), (5, 2), (8, 3)]
    assert [index for index, _ in store.summary().configurations] == [2, 5, 8]
    store.write(Write(truncate_from=8))
    assert store.summary().terms == [(1, 1), (5, 2)]
    assert [index for index, _ in store.summary().configurations] == [2, 5]
    store.save_snapshot(snapshot_at(entries[5]))
    store.drop_head(6)
    assert store.summary().terms == [(7, 2)]
    assert store.summary().configurations == []


def test_nothing_is_dropped_where_there_is_no_snapshot(store: MemoryStore) -> None:
    entries = LogMaker().batches(10)
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[4]))
    store.drop_head(7)
    assert contents(store) == entries


def test_a_closed_log_says_so_and_is_there_when_it_is_opened_again() -> None:
    stores = MemoryStores()
    closed = stores.open("group", 1)
    make = LogMaker()
    entries = make.batches(3)
    write(closed, *entries)
    closed.close()
    calls: list[Callable[[], object]] = [
        closed.summary,
        closed.snapshots,
        lambda: closed.read(1, 1),
        lambda: closed.read_frames(0, 1, 3),
        lambda: write(closed, *make.batches(1)),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="closed"):
            call()
    again = stores.open("group", 1)
    assert contents(again) == entries
    with pytest.raises(StorageError, match="closed"):
        closed.read(1, 1)


def test_a_deleted_log_is_no_longer_written_by_those_who_had_it_open() -> None:
    stores = MemoryStores()
    old = stores.open("group", 1)
    stores.delete("group")
    with pytest.raises(StorageError, match="closed"):
        write(old, *LogMaker().batches(1))
    assert contents(stores.open("group", 2)) == []
