"""What the SQL store promises beyond the contract: shared databases, large frames, long logs, settings."""

import contextlib
import os
import random
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from racing import another_is_first
from servers import MariadbServer
from storage.sql_logs import ALL, MEMBERS, batch, batches, by_hand, opened, read_all, write
from talweg.errors import (
    BadRequest,
    GroupNotFound,
    InvalidSetting,
    StorageError,
)
from talweg.raft import Entry, Snapshot
from talweg.records import HEADER_BYTES, Kind
from talweg.storage.contract import Write
from talweg.storage.sql import SqlStores
from talweg.storage.sql_schema import PART_BYTES


@pytest.fixture
def stores(database_url: str) -> Iterator[SqlStores]:
    with opened(database_url) as stores:
        yield stores


# More than one


def test_only_the_last_to_open_a_log_can_write_it(database_url: str) -> None:
    with opened(database_url) as first_stores, opened(database_url) as second_stores:
        first = first_stores.open("group", 1)
        write(first, batches(1, 3))
        second = second_stores.open("group", 1)
        with pytest.raises(StorageError, match="somebody else"):
            write(first, batches(4, 5))
        write(second, batches(4, 6))
        with pytest.raises(StorageError, match="somebody else"):
            first.drop_head(2)
        assert read_all(second) == batches(1, 6)


def test_groups_in_one_database_do_not_disturb_each_other(database_url: str) -> None:
    def live(stores: SqlStores, group: str, seed: int) -> list[Entry]:
        """Append, cut back, drop: the log that should come out of it."""
        dice = random.Random(seed)
        store = stores.open(group, seed)
        expected: list[Entry] = []
        dropped = 0
        for term in range(1, 25):
            last = dropped + len(expected)
            entries = batches(last + 1, last + dice.randint(1, 20), term=term, body=group.encode() * 50)
            write(store, entries)
            expected += entries
            if dice.random() < 0.5:
                cut = dice.randint(dropped + 1, dropped + len(expected))
                store.write(Write(truncate_from=cut))
                del expected[cut - 1 - dropped :]
            if expected and dice.random() < 0.3:
                head = expected[dice.randrange(len(expected))]
                store.save_snapshot(Snapshot(head.index, head.term, MEMBERS, b""))
                store.drop_head(head.index)
                del expected[: head.index - dropped]
                dropped = head.index
        return expected

    with opened(database_url) as left, opened(database_url) as right, ThreadPoolExecutor(4) as pool:
        homes = {f"group-{number}": (left, right)[number % 2] for number in range(4)}
        lives = [pool.submit(live, stores, group, seed) for seed, (group, stores) in enumerate(homes.items())]
        expected = [one.result(60) for one in lives]
        for seed, (group, stores) in enumerate(homes.items()):
            assert read_all(stores.open(group, seed)) == expected[seed]
        left.delete("group-1")
        assert left.groups() == {"group-0": 0, "group-2": 2, "group-3": 3}
        assert read_all(left.open("group-0", 0)) == expected[0]


def test_readers_see_whole_writes_while_the_tail_is_rewritten(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 20))
    done = threading.Event()

    def rewrite() -> None:
        try:
            for term in range(2, 40):
                store.write(Write(truncate_from=11, entries=batches(11, 20 + term, term=term)))
        finally:
            done.set()

    def read() -> int:
        rounds = 0
        while not done.is_set() or rounds == 0:
            found = store.read(5, ALL)
            assert [entry.index for entry in found] == [*range(5, found[-1].index + 1)]
            terms = {entry.term for entry in found if entry.index >= 11}
            assert len(terms) == 1
            assert found[-1].index == (20 if terms == {1} else 20 + max(terms))
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(rewrite).result(60)
        assert all(reader.result(60) for reader in readers)
    assert store.summary().damage is None


def test_sqlite_is_read_while_a_write_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with opened(f"sqlite:///{path}") as stores, contextlib.closing(sqlite3.connect(path)) as writer:
        store = stores.open("group", 1)
        write(store, batches(1, 3))
        writer.execute("BEGIN EXCLUSIVE")
        assert read_all(store) == batches(1, 3)


def test_brokers_may_start_at_the_same_moment_on_an_empty_database(database_url: str) -> None:
    barrier = threading.Barrier(4)

    def start(number: int) -> None:
        barrier.wait(60)
        with opened(database_url) as stores:
            write(stores.open(f"group-{number}", 1), batches(1, 2))

    with ThreadPoolExecutor(4) as pool:
        for started in [pool.submit(start, number) for number in range(4)]:
            started.result(60)
    with opened(database_url) as stores:
        assert len(stores.groups()) == 4


def test_another_broker_may_be_first_at_every_table(mariadb_database: str) -> None:
    with another_is_first(mariadb_database) as done:
        stores = SqlStores(mariadb_database)
    assert len(done) > 2
    write(stores.open("group", 1), batches(1, 3))
    stores.close()


def test_names_that_differ_only_in_case_are_different_groups(stores: SqlStores) -> None:
    write(stores.open("Group", 1), batches(1, 1))
    assert stores.open("group", 2).summary().last_index == 0
    assert stores.groups() == {"Group": 1, "group": 2}


def test_who_knew_a_group_before_it_was_deleted_cannot_write_to_its_successor(
    database_url: str,
) -> None:
    with opened(database_url) as stores, opened(database_url) as others:
        old = stores.open("group", 1)
        write(old, batches(1, 2))
        others.delete("group")
        others.open("group", 2)
        with pytest.raises(GroupNotFound):
            write(old, batches(3, 3))
        with pytest.raises(GroupNotFound):
            stores.open("group", 1)


# Sizes


@pytest.mark.parametrize("body", [bytes(64 << 20), None], ids=["zeros", "noise"])
def test_a_frame_of_64_mebibytes_goes_in_and_out(body: bytes | None, stores: SqlStores) -> None:
    # Zeros are the worst case for MariaDB, where each is escaped to two bytes on the way.
    store = stores.open("group", 1)
    large = batch(2, body=body or random.Random(1).randbytes(64 << 20))
    write(store, [batch(1), large, batch(3)])
    assert [len(entry.payload) for entry in store.read(1, ALL)] == [96, len(large.payload), 96]
    assert store.read(2, 1) == [large]
    assert store.read_frames(1, 1, 3) == [large.payload]
    assert store.summary().log_bytes == len(large.payload) + 2 * 96


def test_frames_at_the_size_of_a_row_go_in_and_out(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    sizes = [PART_BYTES - HEADER_BYTES + more for more in (-8, 0, 8)]
    entries = [batch(index, body=os.urandom(size)) for index, size in enumerate(sizes, start=1)]
    write(store, entries)
    assert read_all(store) == entries
    store.write(Write(truncate_from=2, entries=[batch(2)]))
    assert read_all(store) == [entries[0], batch(2)]


def test_a_snapshot_larger_than_a_row_goes_in_and_out(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 3))
    large = Snapshot(2, 1, MEMBERS, random.Random(1).randbytes(2 * PART_BYTES + 1))
    store.save_snapshot(large)
    assert store.snapshot() == large
    store.save_snapshot(Snapshot(2, 1, MEMBERS, b""))
    assert store.snapshot() == Snapshot(2, 1, MEMBERS, b"")


def test_a_server_that_takes_too_little_at_a_time_is_refused() -> None:
    class SmallServer(MariadbServer):
        def command(self) -> list[str]:
            return [*super().command(), "--max-allowed-packet=4M"]

    with SmallServer() as server, pytest.raises(InvalidSetting, match="max_allowed_packet"):
        SqlStores(server.url)


def test_nothing_of_a_log_is_left_when_a_snapshot_takes_its_place(database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9))
        store.save_snapshot(Snapshot(7, 1, MEMBERS, b"old"))
        store.write(Write(snapshot=Snapshot(5, 2, MEMBERS, b"new"), next_offset=5))
        with by_hand(database_url) as connection:
            assert connection.execute(text("SELECT count(*) FROM talweg_entries")).scalar_one() == 0
            assert connection.execute(text("SELECT count(*) FROM talweg_parts")).scalar_one() == 1
        write(store, batches(6, 8, term=2))
        assert store.snapshot() == Snapshot(5, 2, MEMBERS, b"new")
        store.save_snapshot(Snapshot(8, 2, MEMBERS, b"newer"))
        store.drop_head(8)
        stores.delete("group")
        with by_hand(database_url) as connection:
            for table in ("groups", "entries", "snapshots", "parts"):
                assert connection.execute(text(f"SELECT count(*) FROM talweg_{table}")).scalar_one() == 0


# Searching


def test_offsets_and_timestamps_are_found_in_a_long_log(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    noops = {1, 2, 500, 501, 999}
    entries, offset = [], 0
    dice = random.Random(7)
    for index in range(1, 1200):
        if index in noops:
            entries.append(Entry(index, 1 + index // 100, Kind.NOOP, b""))
            continue
        at = 1000 * index + dice.randint(-20_000, 20_000)  # clocks that disagree by 20 entries
        entries.append(batch(index, term=1 + index // 100, offset=offset, at=at))
        offset += 1
    write(store, entries)
    frames = [entry.payload for entry in entries if entry.kind == Kind.RECORDS]
    for wanted in [0, 1, 497, 498, 700, offset - 1]:
        assert store.read_frames(wanted, 1, 1199) == [frames[wanted]]
        assert store.read_frames(wanted, 5 * 96, 1199) == frames[wanted : wanted + 5]
    assert store.read_frames(offset, 1, 1199) == []
    for timestamp in [0, 1, 300_000, 1_000_000, 1_100_000]:
        reached = [number for number, frame in enumerate(frames) if _timestamp(frame) >= timestamp]
        assert store.offset_at(timestamp, 1199) == reached[0]
    assert store.offset_at(10**9, 1199) == offset
    assert store.offset_at(10**9, 1000) == store.offset_at(0, 1000) + 1000 - len(noops)
    assert [first for first, _ in store.summary().terms] == [1, *range(100, 1200, 100)]


def test_nothing_is_dropped_where_there_is_no_snapshot(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 9))
    store.save_snapshot(Snapshot(3, 1, MEMBERS, b""))
    store.drop_head(5)
    assert read_all(store) == batches(1, 9)
    store.drop_head(3)
    store.drop_head(2)
    assert read_all(store) == batches(4, 9)


def test_offsets_are_found_where_they_are_now_and_not_where_they_were(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    write(store, batches(1, 6))
    assert len(store.read_frames(0, ALL, 5)) == 5  # the next will be looked for at entry 6
    noops = [Entry(index, 2, Kind.NOOP, b"") for index in (3, 4)]
    moved = [batch(index, term=2, offset=index - 3) for index in range(5, 12)]
    store.write(Write(truncate_from=3, entries=[*noops, *moved]))
    assert store.read_frames(5, ALL, 11) == [entry.payload for entry in moved[3:]]
    store.write(Write(snapshot=Snapshot(30, 3, MEMBERS, b""), next_offset=9))
    assert store.read_frames(9, ALL, 30) == []


def test_reading_goes_on_when_the_next_entries_were_dropped_and_held_no_messages(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    noops = [Entry(index, 1, Kind.NOOP, b"") for index in (3, 4)]
    write(store, [*batches(1, 2), *noops])
    assert len(store.read_frames(0, ALL, 4)) == 2
    store.save_snapshot(Snapshot(4, 1, MEMBERS, b""))
    store.drop_head(4)
    assert store.read_frames(2, ALL, 4) == []
    write(store, [batch(5, offset=2)])
    assert store.read_frames(2, ALL, 5) == [batch(5, offset=2).payload]


def test_an_empty_poll_does_not_read_again_what_held_no_messages(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    noops = [Entry(index, 1, Kind.NOOP, b"") for index in range(3, 50)]
    write(store, [*batches(1, 2), *noops])
    assert len(store.read_frames(0, ALL, 2)) == 2
    assert store.read_frames(2, ALL, 49) == []
    frames_read: list[str] = []

    @event.listens_for(stores._database._reads, "before_cursor_execute")
    def executing(*arguments: Any) -> None:
        frames_read.extend(word for word in arguments[2].split() if word == "talweg_parts")

    assert store.read_frames(2, ALL, 49) == []
    assert frames_read == []
    write(store, [batch(50, offset=2)])
    assert store.read_frames(2, ALL, 50) == [batch(50, offset=2).payload]
    assert frames_read


def _timestamp(frame: bytes) -> int:
    return int.from_bytes(frame[80:88], "little", signed=True)


def test_a_timestamp_is_found_when_a_newer_message_has_been_dropped(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    write(store, [batch(1, at=10), batch(2, at=9_000), batch(3, at=20), batch(4, at=30), batch(5, at=25)])
    store.save_snapshot(Snapshot(2, 1, MEMBERS, b""))
    store.drop_head(2)
    assert [store.offset_at(at, 5) for at in (0, 20, 21, 30, 31, 9_001)] == [2, 2, 3, 3, 5, 5]


# Settings


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("oracle://host/database", "oracle"),
        ("no url at all", "dialect://"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("postgresql+nosuchdriver://host/database", "does not understand"),
    ],
)
def test_a_url_that_cannot_work_is_refused(setting: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        SqlStores(setting)


def test_a_url_needs_no_driver(postgresql_database: str, mariadb_database: str) -> None:
    for url in (postgresql_database, mariadb_database, mariadb_database.replace("mysql", "mariadb")):
        dialect, _, rest = url.partition("://")
        with opened(f"{dialect.partition('+')[0]}://{rest}") as stores:
            write(stores.open("group", 1), batches(1, 1))
            stores.delete("group")


def test_a_database_that_does_not_answer_is_a_storage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    for dialect in ("postgresql", "mysql"):
        with pytest.raises(StorageError) as caught:
            SqlStores(f"{dialect}://user:secret@127.0.0.1:{port}/database")
        assert "secret" not in str(caught.value)


def test_sqlite_is_set_up_to_keep_what_it_acknowledges(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'log.sqlite'}") as stores, stores._database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA secure_delete").scalar_one() == 2  # FAST


def test_a_name_that_does_not_fit_is_refused(stores: SqlStores) -> None:
    with pytest.raises(BadRequest):
        stores.open("n" * 256, 1)


def test_a_closed_store_says_so(stores: SqlStores) -> None:
    store = stores.open("group", 1)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.read(1, 1)
    with pytest.raises(StorageError, match="closed"):
        write(store, batches(1, 1))
    write(stores.open("group", 1), batches(1, 1))
