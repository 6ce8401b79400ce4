"""The SQL store when rows are not what they were: reported, never passed over, never cut unasked."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from storage.sql_logs import ALL, MEMBERS, batch, batches, by_hand, opened, read_all, write
from talweg.errors import (
    DamagedLog,
    NewerFormat,
)
from talweg.raft import Configuration, Entry, HardState, Snapshot
from talweg.records import Kind
from talweg.replication.replica import Replica
from talweg.replication.state import PartitionState
from talweg.storage.contract import LogSummary, Write


def rot_of_a_frame(connection: Connection) -> None:
    frame = bytearray(
        connection.execute(
            text("SELECT bytes FROM talweg_parts WHERE entry_index = 5 AND owner = 0")
        ).scalar_one()
    )
    frame[-9] ^= 1
    connection.execute(
        text("UPDATE talweg_parts SET bytes = :bytes WHERE entry_index = 5 AND owner = 0"),
        {"bytes": bytes(frame)},
    )


def loss_of_a_frame(connection: Connection) -> None:
    connection.execute(text("DELETE FROM talweg_parts WHERE entry_index = 5 AND owner = 0"))


def loss_of_a_row(connection: Connection) -> None:
    connection.execute(text("DELETE FROM talweg_entries WHERE entry_index = 5"))


def exchange_of_frames(connection: Connection) -> None:
    for old, new in ((5, 99), (6, 5), (99, 6)):
        connection.execute(
            text("UPDATE talweg_parts SET entry_index = :new WHERE entry_index = :old AND owner = 0"),
            {"old": old, "new": new},
        )


@pytest.mark.parametrize(
    ("rot", "is_open"),
    [
        (rot_of_a_frame, True),
        (rot_of_a_frame, False),
        (loss_of_a_frame, True),
        (loss_of_a_frame, False),
        (exchange_of_frames, True),
        (exchange_of_frames, False),
        (loss_of_a_row, False),  # while it is open, its frame is still found without it
    ],
)
def test_damage_is_reported_and_never_passed_over(
    rot: Callable[[Connection], None], is_open: bool, database_url: str
) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        body = b"some text that is long enough"
        write(store, batches(1, 9, body=body))
        for index in (3, 7):
            store.save_snapshot(Snapshot(index, 1, MEMBERS, b"state"))
        if not is_open:
            store.close()
        with by_hand(database_url) as connection:
            rot(connection)
        store = stores.open("group", 1)
        assert store.read(1, ALL) == batches(1, 4, body=body)
        with pytest.raises(DamagedLog, match="entry 5"):
            store.read(5, ALL)
        with pytest.raises(DamagedLog, match="entry 5"):
            store.read_frames(4, ALL, 9)
        assert len(store.read_frames(0, ALL, 9)) == 4
        with pytest.raises(DamagedLog):
            store.write(Write(entries=batches(10, 10)))
        with pytest.raises(DamagedLog, match="entry 5"):
            store.save_snapshot(Snapshot(9, 1, MEMBERS, b"behind it"))
        check_the_sound_part(store.summary())
        assert [mark.index for mark in store.snapshots()] == [3]
        store.write(Write(hard_state=HardState(1, None, recovering=True)))
        store.cut_damage()
        assert store.summary().damage is None
        assert store.snapshot() == Snapshot(3, 1, MEMBERS, b"state")
        write(store, batches(5, 9, term=2))
        assert read_all(store) == batches(1, 4, body=body) + batches(5, 9, term=2)
        assert [mark.index for mark in store.snapshots()] == [3]


def check_the_sound_part(summary: LogSummary) -> None:
    assert summary.damage is not None
    assert summary.damage.index == 5
    assert (summary.last_index, summary.next_offset) == (4, 4)


def test_a_damaged_configuration_is_found_when_a_log_is_opened(database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        others = Configuration.of([1, 2, 3, 4])
        configurations = [Entry(4, 1, Kind.CONFIGURATION, MEMBERS.to_bytes())]
        configurations += [Entry(5, 1, Kind.CONFIGURATION, others.to_bytes())]
        write(store, [*batches(1, 3), *configurations, batch(6, offset=3)])
        assert store.summary().configurations == [(4, MEMBERS), (5, others)]
        with by_hand(database_url) as connection:
            rot_of_a_frame(connection)
        summary = stores.open("group", 1).summary()
        assert summary.configurations == [(4, MEMBERS)]
        assert summary.damage is not None
        assert summary.damage.index == 5


def test_dropping_the_head_with_the_damage_in_it_leaves_a_sound_log(database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9))
        store.save_snapshot(Snapshot(7, 1, MEMBERS, b""))
        with by_hand(database_url) as connection:
            rot_of_a_frame(connection)
        with pytest.raises(DamagedLog):
            store.read(5, ALL)
        store.drop_head(7)
        assert store.summary().damage is None
        write(store, batches(10, 11))
        assert read_all(store) == batches(8, 11)


def test_an_installed_snapshot_takes_the_place_of_the_damage(database_url: str) -> None:
    with opened(database_url) as stores:
        write(stores.open("group", 1), batches(1, 9))
        with by_hand(database_url) as connection:
            loss_of_a_row(connection)
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        assert store.summary().damage is not None
        store.write(Write(snapshot=Snapshot(30, 2, MEMBERS, b"state"), next_offset=30))
        write(store, batches(31, 32, term=2))
        assert store.summary().damage is None
        assert read_all(store) == batches(31, 32, term=2)


def rot_of_a_snapshot(connection: Connection, index: int) -> None:
    numbers = {"rot": b"stote", "index": index}
    connection.execute(
        text("UPDATE talweg_parts SET bytes = :rot WHERE owner = 1 AND entry_index = :index"), numbers
    )


def loss_of_a_state(connection: Connection, index: int) -> None:
    connection.execute(
        text("DELETE FROM talweg_parts WHERE owner = 1 AND entry_index = :index"), {"index": index}
    )


def loss_of_a_snapshot(connection: Connection, index: int) -> None:
    connection.execute(text("DELETE FROM talweg_snapshots WHERE entry_index = :index"), {"index": index})


Rot = Callable[[Connection, int], None]


@pytest.mark.parametrize("rot", [rot_of_a_snapshot, loss_of_a_state])
def test_a_rotten_snapshot_is_none(rot: Rot, database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9))
        old, new = (Snapshot(index, 1, MEMBERS, b"state") for index in (3, 7))
        for snapshot in (old, new):
            store.save_snapshot(snapshot)
        with by_hand(database_url) as connection:
            rot(connection, 7)
        assert store.snapshot() == old
        assert store.snapshot(7) is None
        assert [mark.index for mark in store.snapshots()] == [3]
        store.drop_head(7)
        assert read_all(store) == batches(1, 9), "nothing else would tell what was dropped"
        assert store.summary().damage is None
        store.save_snapshot(new)
        assert store.snapshot() == new
        store.drop_head(7)
        assert read_all(store) == batches(8, 9)


def test_a_replica_with_a_rotten_snapshot_begins_at_the_one_before(database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9), hard_state=HardState(1))
        state = PartitionState().to_bytes()
        for index in (3, 5, 7):
            store.save_snapshot(Snapshot(index, 1, MEMBERS, state))
        store.drop_head(3)
        with by_hand(database_url) as connection:
            rot_of_a_snapshot(connection, 7)
    with opened(database_url) as stores:
        replica = Replica(1, stores.open("group", 1), MEMBERS, election_timeout=lambda: 10)
        assert replica.raft.applied_index == 5
        assert not replica.raft.recovering


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("rot", [rot_of_a_snapshot, loss_of_a_state, loss_of_a_snapshot])
def test_a_rotten_snapshot_at_the_start_is_damage_there(rot: Rot, is_open: bool, database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9), hard_state=HardState(1))
        for index in (3, 7):
            store.save_snapshot(Snapshot(index, 1, MEMBERS, b"state"))
        store.drop_head(3)
        if not is_open:
            store.close()
        with by_hand(database_url) as connection:
            rot(connection, 3)
        store = stores.open("group", 1)
        assert (store.summary().damage is None) is is_open, "it is looked for when a log is opened"
        with pytest.raises(DamagedLog, match="entry 3"):
            store.snapshot(3)
        summary = store.summary()
        assert summary.damage is not None
        assert (summary.damage.index, summary.start_index, summary.last_index) == (3, 3, 3)
        assert store.snapshots() == []
        assert store.snapshot() is None
        with pytest.raises(DamagedLog):
            store.write(Write(entries=batches(10, 10)))
        store.write(Write(hard_state=HardState(1, None, recovering=True)))
        store.cut_damage()
        summary = store.summary()
        assert (summary.damage, summary.start_index, summary.last_index, summary.next_offset) == (
            None,
            0,
            0,
            0,
        )
        assert summary.hard_state == HardState(1, None, recovering=True)
        write(store, batches(1, 2, term=2))
        assert read_all(stores.open("group", 1)) == batches(1, 2, term=2)


def test_an_installed_snapshot_takes_the_place_of_a_rotten_start(database_url: str) -> None:
    with opened(database_url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 9))
        store.save_snapshot(Snapshot(3, 1, MEMBERS, b"state"))
        store.drop_head(3)
        with by_hand(database_url) as connection:
            rot_of_a_snapshot(connection, 3)
        with pytest.raises(DamagedLog):
            store.snapshot(3)
        store.write(Write(snapshot=Snapshot(5, 1, MEMBERS, b"sound"), next_offset=5))
        assert store.summary().damage is None
        assert store.snapshot() == Snapshot(5, 1, MEMBERS, b"sound")
        write(store, batches(6, 7))
        assert read_all(store) == batches(6, 7)


def test_the_second_of_two_missing_rows_is_not_taken_for_the_first(database_url: str) -> None:
    for missing in range(1, 9):
        with opened(database_url) as stores:
            write(stores.open(f"group-{missing}", 1), batches(1, 9))
            with by_hand(database_url) as connection:
                numbers = {"first": missing, "later": min(missing + 3, 8)}
                where = (
                    "entry_index IN (:first, :later) AND group_id = (SELECT max(group_id) FROM talweg_groups)"
                )
                connection.execute(text(f"DELETE FROM talweg_entries WHERE {where}"), numbers)
        with opened(database_url) as stores:
            damage = stores.open(f"group-{missing}", 1).summary().damage
            assert damage is not None
            assert damage.index == missing


def test_a_log_from_the_future_is_refused(database_url: str) -> None:
    with opened(database_url) as stores:
        write(stores.open("group", 1), batches(1, 3))
        with by_hand(database_url) as connection:
            connection.execute(text("UPDATE talweg_groups SET format = format + 1"))
    with opened(database_url) as stores:
        with pytest.raises(NewerFormat):
            stores.open("group", 1)
        assert stores.groups() == {"group": 1}
