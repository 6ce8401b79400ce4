"""The SQL store when it deletes: what is out of sight at once goes row by row, a piece at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from storage.logs import together
from storage.sql_logs import ALL, MEMBERS, batch, batches, by_hand, opened, read_all, write
from talweg.errors import OffsetOutOfRange, StorageError
from talweg.raft import HardState, Snapshot
from talweg.storage.contract import Write
from talweg.storage.sql import SqlStore, SqlStores

TABLES = ("groups", "entries", "snapshots", "parts", "deleted")
ROWS_MAX = 500  # deleted by one statement


@pytest.fixture
def stores(database_url: str) -> Iterator[SqlStores]:
    with opened(database_url) as stores:
        yield stores


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted at once: all is left for later."""
    monkeypatch.setattr("talweg.storage.sql_deleting._PIECES_AT_ONCE", 0)


def rows(url: str) -> dict[str, int]:
    with by_hand(url) as connection:
        return {
            table: connection.execute(text(f"SELECT count(*) FROM talweg_{table}")).scalar_one()
            for table in TABLES
        }


def deletions(stores: SqlStores) -> list[int]:
    """How many rows each statement deletes from now on."""
    found: list[int] = []

    @event.listens_for(stores._database._writes, "after_cursor_execute")
    def executed(*arguments: Any) -> None:
        _, cursor, statement, *_ = arguments
        if statement.startswith("DELETE"):
            found.append(cursor.rowcount)

    return found


def snapshot_at(index: int) -> Snapshot:
    return Snapshot(index, 1, MEMBERS, b"state")


def test_a_head_of_many_entries_goes_in_pieces(stores: SqlStores, database_url: str) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 1_205))
    store.save_snapshot(snapshot_at(1_200))
    deleted = deletions(stores)
    store.drop_head(1_200)
    assert max(deleted) == ROWS_MAX
    assert rows(database_url) == {"groups": 1, "entries": 5, "snapshots": 1, "parts": 6, "deleted": 0}
    assert not stores.checkpoint_due
    assert read_all(store) == batches(1_201, 1_205)


def test_a_head_of_large_entries_goes_in_pieces(stores: SqlStores, database_url: str) -> None:
    store = stores.open("group", 1)
    for index in range(1, 11):
        write(store, [batch(index, body=bytes(1 << 20))])
    store.save_snapshot(snapshot_at(9))
    deleted = deletions(stores)
    store.drop_head(9)
    assert max(deleted) == 3, "they have headers: four do not fit into four mebibytes"
    assert rows(database_url)["entries"] == 1


def test_what_was_dropped_is_out_of_sight_before_it_is_deleted(
    no_time: None, stores: SqlStores, database_url: str
) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 20))
    for index in (4, 9, 12):
        store.save_snapshot(snapshot_at(index))
    store.drop_head(9)
    assert rows(database_url)["entries"] == 20
    check_that_nine_are_gone(store)
    store.close()
    store = stores.open("group", 1)
    check_that_nine_are_gone(store)
    assert stores.checkpoint_due
    stores.checkpoint()
    assert not stores.checkpoint_due
    assert rows(database_url) == {"groups": 1, "entries": 11, "snapshots": 2, "parts": 13, "deleted": 0}
    assert read_all(store) == batches(10, 20)


def check_that_nine_are_gone(store: SqlStore) -> None:
    summary = store.summary()
    assert (summary.start_index, summary.start_offset, summary.last_index) == (9, 9, 20)
    assert summary.terms == [(10, 1)]
    assert [mark.index for mark in store.snapshots()] == [9, 12]
    assert store.snapshot(4) is None
    assert store.offset_at(0, 20) == 9
    assert store.read(10, ALL) == batches(10, 20)
    with pytest.raises(OffsetOutOfRange):
        store.read(9, ALL)
    with pytest.raises(OffsetOutOfRange):
        store.read_frames(8, ALL, 20)
    write(store, batches(21, 22))
    store.write(Write(truncate_from=21))


def test_what_a_crash_left_of_a_head_is_found_when_the_log_is_opened(
    no_time: None, database_url: str
) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 20))
        store.save_snapshot(snapshot_at(9))
        store.drop_head(9)
    with opened(database_url) as stores:
        assert not stores.checkpoint_due
        store = stores.open("group", 1)
        assert stores.checkpoint_due
        stores.checkpoint()
        assert rows(database_url)["entries"] == 11
        assert read_all(store) == batches(10, 20)
        store.close()
        stores.open("group", 1)
        assert not stores.checkpoint_due


def test_a_deleted_group_is_gone_before_its_rows_are(no_time: None, database_url: str) -> None:
    with opened(database_url) as stores:
        write(stores.open("group", 1), batches(1, 20))
        write(stores.open("other", 1), batches(1, 5))
        stores.delete("group")
        stores.delete("group")
        assert stores.groups() == {"other": 1}
        write(stores.open("group", 2), batches(1, 3, term=2))
    with opened(database_url) as stores:
        assert stores.checkpoint_due, "whoever opens the database next goes on with it"
        stores.checkpoint()
        assert not stores.checkpoint_due
        assert rows(database_url) == {"groups": 2, "entries": 8, "snapshots": 0, "parts": 8, "deleted": 0}
        assert read_all(stores.open("group", 2)) == batches(1, 3, term=2)
        assert read_all(stores.open("other", 1)) == batches(1, 5)


def test_a_group_of_many_entries_is_deleted_in_pieces(stores: SqlStores, database_url: str) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 1_200))
    for index in range(100, 1_200, 100):
        store.save_snapshot(snapshot_at(index))
    deleted = deletions(stores)
    stores.delete("group")
    assert max(deleted) == ROWS_MAX
    assert not any(rows(database_url).values())


def test_a_log_gives_way_to_a_snapshot_before_its_rows_are_deleted(
    no_time: None, stores: SqlStores, database_url: str
) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 20))
    store.save_snapshot(snapshot_at(4))
    installed = Snapshot(15, 2, MEMBERS, b"other")
    store.write(Write(snapshot=installed, next_offset=15, entries=together(batches(16, 17, term=2))))
    for _ in range(2):
        assert read_all(store) == batches(16, 17, term=2)
        assert store.snapshot() == installed
        assert store.summary().terms == [(16, 2)]
        assert [mark.index for mark in store.snapshots()] == [15]
        stores.checkpoint()
    assert rows(database_url) == {"groups": 1, "entries": 2, "snapshots": 1, "parts": 3, "deleted": 0}


def test_damage_and_all_behind_it_go_in_pieces_from_the_end_on(stores: SqlStores, database_url: str) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 1_205), hard_state=HardState(1, None, recovering=True))
    store.save_snapshot(snapshot_at(1_100))
    with by_hand(database_url) as connection:
        connection.execute(text("DELETE FROM talweg_parts WHERE entry_index = 3"))
    store.close()
    store = stores.open("group", 1)
    assert store.read(1, ALL) == batches(1, 2)
    with pytest.raises(StorageError):
        store.read(3, ALL)
    deleted = deletions(stores)
    store.cut_damage()
    assert max(deleted) == ROWS_MAX
    assert rows(database_url) == {"groups": 1, "entries": 2, "snapshots": 0, "parts": 2, "deleted": 0}
    write(store, batches(3, 4, term=2))
    assert read_all(store) == [*batches(1, 2), *batches(3, 4, term=2)]


def test_rows_that_cannot_be_deleted_now_are_deleted_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.sqlite'}"
    with opened(url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 20))
        store.save_snapshot(snapshot_at(9))
        with by_hand(url) as connection:
            refusal = "BEGIN SELECT RAISE(ABORT, 'not now'); END"
            connection.exec_driver_sql(f"CREATE TRIGGER no BEFORE DELETE ON talweg_entries {refusal}")
        store.drop_head(9)
        assert store.summary().start_index == 9
        with pytest.raises(StorageError, match="not now"):
            stores.checkpoint()
        assert stores.checkpoint_due
        with by_hand(url) as connection:
            connection.exec_driver_sql("DROP TRIGGER no")
        stores.checkpoint()
        assert rows(url)["entries"] == 11
