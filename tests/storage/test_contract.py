"""What every store promises, whatever it is made of. Runs over memory, segment files and databases."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.conftest import GROUP, Backend
from storage.logs import (
    EVERYTHING,
    MEMBERS,
    LogMaker,
    contents,
    frame_bytes,
    mixed,
    snapshot_at,
    together,
    values,
    write,
)
from talweg.errors import GroupNotFound, OffsetOutOfRange
from talweg.metadata.model import TOPIC_NAME_LENGTH_MAX
from talweg.raft import Configuration, Entry, HardState, Snapshot
from talweg.storage import LogStore, Write

# Summary


def test_a_new_log_is_empty(store: LogStore) -> None:
    summary = store.summary()
    assert summary.hard_state is None
    assert (summary.start_index, summary.start_term, summary.start_offset) == (0, 0, 0)
    assert (summary.last_index, summary.next_offset, summary.log_bytes) == (0, 0, 0)
    assert (summary.terms, summary.configurations, summary.damage) == ([], [], None)
    assert store.snapshots() == []
    assert store.snapshot() is None


def test_what_was_written_is_there_after_opening_again(backend: Backend) -> None:
    make = LogMaker()
    entries = [make.noop(), make.configuration(1, 2, 3), make.records(b"a", b"b"), make.positions()]
    state = HardState(term=1, vote=3)
    write(backend.open(), *entries, hard_state=state)
    store = backend.reopen()
    summary = store.summary()
    assert contents(store) == entries
    assert summary.hard_state == state
    assert (summary.last_index, summary.next_offset) == (4, 2)
    assert summary.log_bytes == frame_bytes(*entries)
    assert summary.terms == [(1, 1)]
    assert summary.configurations == [(2, Configuration.of([1, 2, 3]))]
    assert summary.damage is None


def test_a_log_of_many_small_writes_survives_as_a_whole(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries: list[Entry] = []
    for number in range(60):
        new = [make.records(b"message %d" % number, bytes(number % 7))]
        if number % 10 == 9:
            make.term += 1
            new.append(make.noop())
        entries += new
        write(store, *new)
    assert contents(store) == entries
    store = backend.reopen()
    assert contents(store) == entries
    assert store.summary().log_bytes == frame_bytes(*entries)


def test_terms_are_listed_as_runs(backend: Backend) -> None:
    make = LogMaker()
    entries = make.batches(20)
    make.term = 2
    entries += [make.noop(), *make.batches(20)]
    make.term = 7
    entries += make.batches(2)
    write(backend.open(), *entries)
    assert backend.open().summary().terms == [(1, 1), (21, 2), (42, 7)]
    assert backend.reopen().summary().terms == [(1, 1), (21, 2), (42, 7)]


def test_configurations_are_listed_wherever_they_are_in_the_log(backend: Backend) -> None:
    make = LogMaker()
    entries = [make.configuration(1), *make.batches(30), make.configuration(1, 2), *make.batches(30)]
    write(backend.open(), *entries)
    expected = [(1, Configuration.of([1])), (32, Configuration.of([1, 2]))]
    assert backend.open().summary().configurations == expected
    assert backend.reopen().summary().configurations == expected


# Hard state


def test_each_hard_state_replaces_the_one_before(backend: Backend) -> None:
    store = backend.open()
    states = [
        HardState(term=1),
        HardState(term=1, vote=2),
        HardState(term=2, vote=0),
        HardState(term=3, recovering=True),
        HardState(term=2**40, vote=2**63 - 1, recovering=False),
    ]
    for state in states:
        write(store, hard_state=state)
        assert store.summary().hard_state == state
        store = backend.reopen()
        assert store.summary().hard_state == state


def test_a_write_without_a_hard_state_leaves_it_as_it_was(backend: Backend) -> None:
    store = backend.open()
    make = LogMaker()
    write(store, hard_state=HardState(term=1, vote=1))
    write(store, make.noop())
    assert backend.reopen().summary().hard_state == HardState(term=1, vote=1)


def test_a_write_of_nothing_is_harmless(store: LogStore) -> None:
    store.write(Write())
    store.sync()
    assert store.summary().last_index == 0


def test_several_logs_can_be_synced_together(backend: Backend) -> None:
    logs = {name: backend.open(name, number) for number, name in enumerate(("a", "b", "c"), start=1)}
    makers = {name: LogMaker() for name in logs}
    entries: dict[str, list[Entry]] = {name: [] for name in logs}
    for count in (1, 3):
        for name in ("a", "b"):
            more = makers[name].batches(count)
            logs[name].write(Write(entries=together(more)))
            entries[name] += more
        # One of them has nothing to sync.
        assert backend.stores.sync(list(logs.values())) == [None, None, None]
    assert backend.stores.sync([]) == []
    backend.stores.checkpoint()
    found = {name: contents(backend.reopen(name, number)) for number, name in enumerate(logs, start=1)}
    assert found == entries


def test_only_the_last_of_several_unsynced_hard_states_counts(backend: Backend) -> None:
    store = backend.open()
    for term in range(1, 6):
        store.write(Write(hard_state=HardState(term=term)))
    store.sync()
    assert backend.reopen().summary().hard_state == HardState(term=5)


# Reading by index


def test_a_read_stops_at_the_byte_limit(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(10)
    write(store, *entries)
    each = frame_bytes(entries[0])
    assert store.read(1, 3 * each) == entries[:3]
    assert store.read(4, 3 * each + each // 2) == entries[3:6]


def test_a_read_gives_one_entry_however_large(store: LogStore) -> None:
    make = LogMaker()
    entries = [make.noop(), make.records(bytes(10_000)), make.noop(), make.records(bytes(700_000))]
    write(store, *entries)
    assert store.read(1, 1) == entries[:1]
    assert store.read(2, 1) == entries[1:2]
    assert store.read(4, 1) == entries[3:]


def test_a_read_stops_at_the_last_index_asked_for(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(40)
    write(store, *entries)
    assert store.read(10, EVERYTHING, 20) == entries[9:20]
    assert store.read(10, EVERYTHING, 10) == entries[9:10]
    assert store.read(10, EVERYTHING, 9) == []


def test_a_read_at_the_end_is_empty_until_there_is_more(store: LogStore) -> None:
    make = LogMaker()
    first = make.batches(3)
    write(store, *first)
    assert store.read(4, EVERYTHING) == []
    assert store.read(9, EVERYTHING) == []
    more = make.batches(2)
    write(store, *more)
    assert store.read(4, EVERYTHING) == more


def test_entries_can_be_read_from_everywhere(store: LogStore) -> None:
    make = LogMaker()
    entries = [
        entry for _ in range(25) for entry in (make.noop(), make.records(b"x", b"y"), make.positions())
    ]
    write(store, *entries)
    for first in range(1, len(entries) + 1):
        assert store.read(first, 1) == entries[first - 1 : first]
    for first in range(len(entries), 0, -7):
        assert contents_from(store, first) == entries[first - 1 :]


def contents_from(store: LogStore, first_index: int) -> list[Entry]:
    found: list[Entry] = []
    while more := store.read(first_index + len(found), 500):
        found += more
    return found


def test_whoever_reads_along_as_the_log_grows_sees_every_entry(store: LogStore) -> None:
    make = LogMaker()
    entries: list[Entry] = []
    seen: list[Entry] = []
    for _ in range(50):
        new = make.batches(1)
        write(store, *new)
        entries += new
        seen += store.read(len(seen) + 1, EVERYTHING)
        assert seen == entries
        assert store.read(len(seen) + 1, EVERYTHING) == []


def test_what_was_written_can_be_read_before_it_is_synced(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(5)
    store.write(Write(entries=together(entries)))
    assert store.read(1, EVERYTHING) == entries


# Reading by offset


def test_frames_are_found_by_any_offset_in_them(store: LogStore) -> None:
    make = LogMaker()
    entries = [make.records(*[b"%d" % (3 * batch + n) for n in range(3)]) for batch in range(20)]
    write(store, *entries)
    for offset in range(60):
        frames = store.read_frames(offset, 1, 20)
        assert frames == [entries[offset // 3].payload]


def test_frames_in_a_row_are_read_up_to_the_byte_limit(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(50)
    write(store, *entries)
    each = frame_bytes(entries[0])
    assert store.read_frames(0, 4 * each, 50) == [entry.payload for entry in entries[:4]]
    assert values(store.read_frames(7, EVERYTHING, 50))[0].startswith(b"00000007")
    assert len(store.read_frames(7, EVERYTHING, 50)) == 43


def test_only_records_are_given_to_readers_of_messages(store: LogStore) -> None:
    make = LogMaker()
    entries: list[Entry] = []
    for number in range(20):
        entries += [
            make.noop(),
            make.positions(),
            make.records(b"%d" % number),
            make.configuration(1, number + 2),
        ]
    write(store, *entries)
    assert values(store.read_frames(0, EVERYTHING, len(entries))) == [b"%d" % number for number in range(20)]


def test_nothing_beyond_the_last_index_is_given_to_readers(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(30)
    write(store, *entries)
    assert len(store.read_frames(0, EVERYTHING, 12)) == 12
    assert store.read_frames(12, EVERYTHING, 12) == []
    assert store.read_frames(29, EVERYTHING, 0) == []
    assert len(store.read_frames(12, EVERYTHING, 13)) == 1


def test_readers_at_the_end_get_nothing_until_there_is_more(store: LogStore) -> None:
    make = LogMaker()
    write(store, *make.batches(5))
    assert store.read_frames(5, EVERYTHING, 5) == []
    write(store, make.positions(), *make.batches(1))
    assert len(store.read_frames(5, EVERYTHING, 7)) == 1
    assert store.read_frames(6, EVERYTHING, 7) == []


def test_reading_on_in_order_sees_every_message_once(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    written: list[bytes] = []
    for batch in range(40):
        batch_values = [b"%d/%d" % (batch, n) for n in range(1 + batch % 3)]
        write(store, make.positions(), make.records(*batch_values))
        written += batch_values
    seen: list[bytes] = []
    while frames := store.read_frames(len(seen), 600, make.last_index):
        seen += values(frames)
    assert seen == written


# Reading by timestamp


def test_offsets_are_found_by_timestamp(backend: Backend) -> None:
    make = LogMaker()
    stamps = [1_000 + 100 * number for number in range(30)]
    write(backend.open(), *[make.records(b"a", b"b", timestamp=stamp) for stamp in stamps])
    store = backend.reopen()
    assert store.offset_at(0, 30) == 0
    for number, stamp in enumerate(stamps):
        assert store.offset_at(stamp, 30) == 2 * number
        assert store.offset_at(stamp - 99, 30) == 2 * number
    assert store.offset_at(stamps[-1] + 1, 30) == 60


def test_a_timestamp_is_looked_for_up_to_the_last_index_only(store: LogStore) -> None:
    make = LogMaker()
    write(store, *[make.records(b"a", timestamp=100 * number) for number in range(1, 31)])
    assert store.offset_at(2_000, 10) == 10
    assert store.offset_at(1_000, 10) == 9
    assert store.offset_at(1_000, 0) == 0
    assert store.offset_at(3_000, 29) == 29


def test_the_first_batch_that_is_new_enough_wins_when_clocks_go_back(store: LogStore) -> None:
    make = LogMaker()
    for stamp in (100, 900, 200, 300, 950, 100):
        write(store, make.noop(), make.records(b"a", timestamp=stamp))
    assert store.offset_at(150, 12) == 1
    assert store.offset_at(901, 12) == 4
    assert store.offset_at(951, 12) == 6


def test_a_timestamp_in_an_empty_log_is_its_end(store: LogStore) -> None:
    assert store.offset_at(5, 0) == 0
    make = LogMaker()
    write(store, make.noop())
    assert store.offset_at(5, 1) == 0


def test_a_timestamp_is_looked_for_after_all_that_followed_the_start_was_removed(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.records(b"a", timestamp=5), make.records(b"b", timestamp=6)]
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[0]))
    store.drop_head(1)
    store.write(Write(truncate_from=2))
    store.sync()
    assert store.offset_at(0, 1) == 1
    assert store.read_frames(1, EVERYTHING, 1) == []
    assert backend.reopen().offset_at(0, 1) == 1


# Truncation


@pytest.mark.parametrize("from_index", [1, 2, 13, 37, 40])
def test_a_conflicting_tail_gives_way_to_another(backend: Backend, from_index: int) -> None:
    make = LogMaker()
    entries = [make.noop(), *make.batches(39)]
    store = backend.open()
    write(store, *entries, hard_state=HardState(1))
    kept = entries[: from_index - 1]
    other = make.at(from_index - 1, 2, max(from_index - 2, 0))
    new = [other.noop(), *other.batches(5)]
    store.write(Write(truncate_from=from_index, entries=together(new), hard_state=HardState(2, 2)))
    store.sync()
    for _ in range(2):
        summary = store.summary()
        assert contents(store) == kept + new
        assert summary.next_offset == other.next_offset
        assert summary.terms == ([(1, 1), (from_index, 2)] if kept else [(1, 2)])
        assert summary.log_bytes == frame_bytes(*kept, *new)
        assert summary.hard_state == HardState(2, 2)
        store = backend.reopen()
    more = other.batches(30)
    write(store, *more)
    assert contents(backend.reopen()) == kept + new + more


def test_a_tail_can_be_removed_without_a_new_one(backend: Backend) -> None:
    make = LogMaker()
    entries = make.batches(40)
    store = backend.open()
    write(store, *entries)
    store.write(Write(truncate_from=20))
    store.sync()
    assert contents(store) == entries[:19]
    assert store.summary().next_offset == 19
    store = backend.reopen()
    assert contents(store) == entries[:19]
    other = make.at(19, 2, 19)
    more = other.batches(3)
    write(store, *more)
    assert contents(backend.reopen()) == entries[:19] + more


def test_truncating_beyond_the_end_removes_nothing(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(3)
    write(store, *entries)
    more = make.batches(3)
    store.write(Write(truncate_from=4, entries=mixed(more)))
    store.sync()
    assert contents(store) == entries + more


def test_readers_never_see_the_tail_that_was_replaced(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(12)
    write(store, *entries)
    assert store.read(1, EVERYTHING) == entries
    assert len(store.read_frames(0, EVERYTHING, 12)) == 12
    other = make.at(5, 2, 5)
    new = [other.records(b"other %d" % number) for number in range(20)]
    store.write(Write(truncate_from=6, entries=mixed(new)))
    assert store.read(6, EVERYTHING)[0] == new[0]
    assert store.read(13, EVERYTHING)[0] == new[7]
    assert values(store.read_frames(5, EVERYTHING, 25)) == [b"other %d" % number for number in range(20)]
    assert values(store.read_frames(12, EVERYTHING, 25))[0] == b"other 7"


def test_configurations_and_timestamps_of_a_removed_tail_are_forgotten(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.configuration(1), make.records(b"a", timestamp=100), make.configuration(1, 2)]
    write(store, *entries, make.records(b"b", timestamp=900))
    other = make.at(2, 2, 1)
    store.write(Write(truncate_from=3, entries=[other.records(b"c", timestamp=200)]))
    store.sync()
    for _ in range(2):
        assert store.summary().configurations == [(1, Configuration.of([1]))]
        assert store.offset_at(150, 3) == 1
        assert store.offset_at(800, 3) == 2
        store = backend.reopen()


# Snapshots and the head


def test_a_snapshot_is_kept_and_says_what_would_remain(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.records(b"a", b"b", timestamp=100 * number) for number in range(1, 41)]
    write(store, *entries)
    snapshot = snapshot_at(entries[14], b"the state")
    store.save_snapshot(snapshot)
    for _ in range(2):
        assert store.snapshot() == snapshot
        assert store.snapshot(15) == snapshot
        assert store.snapshot(14) is None
        (mark,) = store.snapshots()
        assert (mark.index, mark.next_offset, mark.last_timestamp) == (15, 30, 1_500)
        assert mark.bytes_after == frame_bytes(*entries[15:])
        store = backend.reopen()


def test_the_newest_snapshot_is_given_when_none_is_named(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = make.batches(30)
    write(store, *entries)
    kept = [snapshot_at(entries[index], b"%d" % index) for index in (4, 29, 12)]
    for snapshot in kept:
        store.save_snapshot(snapshot)
    assert [mark.index for mark in store.snapshots()] == [5, 13, 30]
    assert store.snapshot() == kept[1]
    store = backend.reopen()
    assert [mark.index for mark in store.snapshots()] == [5, 13, 30]
    assert [mark.bytes_after for mark in store.snapshots()] == [
        frame_bytes(*entries[5:]),
        frame_bytes(*entries[13:]),
        0,
    ]
    assert store.snapshot() == kept[1]
    assert store.snapshot(5) == kept[0]


def test_a_snapshot_of_the_same_entry_replaces_the_one_before(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    (entry,) = make.batches(1)
    write(store, entry)
    store.save_snapshot(snapshot_at(entry, b"one"))
    store.save_snapshot(snapshot_at(entry, b"two"))
    store = backend.reopen()
    assert store.snapshot() == snapshot_at(entry, b"two")
    assert len(store.snapshots()) == 1


def test_a_large_snapshot_is_kept_whole(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    (entry,) = make.batches(1)
    write(store, entry)
    snapshot = snapshot_at(entry, bytes(range(256)) * 12_000, Configuration.of([2**63, 5], [7]))
    store.save_snapshot(snapshot)
    assert backend.reopen().snapshot() == snapshot


@pytest.mark.parametrize("index", [1, 7, 20, 39, 40])
def test_the_head_is_dropped_up_to_a_snapshot(backend: Backend, index: int) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.configuration(1), *make.batches(19)]
    make.term = 3
    entries += [make.configuration(1, 2), *make.batches(19)]
    write(store, *entries)
    for at in (1, 7, 20, 39, 40):
        store.save_snapshot(snapshot_at(entries[at - 1], b"%d" % at))
    store.drop_head(index)
    offset = sum(1 for entry in entries[:index] if entry.kind == 2)
    for _ in range(2):
        summary = store.summary()
        assert (summary.start_index, summary.start_term, summary.start_offset) == (
            index,
            entries[index - 1].term,
            offset,
        )
        assert (summary.last_index, summary.next_offset) == (40, 38)
        assert summary.log_bytes == frame_bytes(*entries[index:])
        runs = [(index + 1, 1)] if index < 20 else []
        assert summary.terms == ([*runs, (max(21, index + 1), 3)] if index < 40 else [])
        assert [at for at, _ in summary.configurations] == ([21] if index < 21 else [])
        assert contents(store) == entries[index:]
        assert [mark.index for mark in store.snapshots()] == [at for at in (1, 7, 20, 39, 40) if at >= index]
        assert store.snapshots()[0].bytes_after == summary.log_bytes
        assert store.log_bytes() in (summary.log_bytes, None)
        assert store.snapshot(index) == snapshot_at(entries[index - 1], b"%d" % index)
        store = backend.reopen()
    more = make.batches(10)
    write(store, *more)
    assert contents(backend.reopen()) == entries[index:] + more


def test_what_is_below_the_start_is_out_of_range(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.noop(), *make.batches(30)]
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[9]))
    store.drop_head(10)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            store.read(10, EVERYTHING)
        with pytest.raises(OffsetOutOfRange):
            store.read_frames(8, EVERYTHING, 31)
        assert store.read(11, EVERYTHING)[0] == entries[10]
        assert store.read_frames(9, EVERYTHING, 31)[0] == entries[10].payload
        assert store.offset_at(0, 31) == 9
        store = backend.reopen()


def test_dropping_what_is_gone_already_is_harmless(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(10)
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[4]))
    store.drop_head(5)
    store.drop_head(5)
    assert store.summary().start_index == 5
    assert len(store.snapshots()) == 1


def test_dropping_at_a_snapshot_that_went_with_the_head_is_harmless(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(10)
    write(store, *entries)
    for entry in (entries[4], entries[7]):
        store.save_snapshot(snapshot_at(entry))
    store.drop_head(8)
    store.drop_head(5)
    assert store.summary().start_index == 8
    assert contents(store) == entries[8:]


def test_timestamps_before_the_start_still_count_for_later_snapshots(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = [make.records(b"a", timestamp=stamp) for stamp in (100, 900, 200, 300)]
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[1]))
    store.drop_head(2)
    store = backend.reopen()
    store.save_snapshot(snapshot_at(entries[2]))
    assert [mark.last_timestamp for mark in store.snapshots()] == [900, 900]


def test_the_log_goes_on_after_everything_was_dropped(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    for _ in range(3):
        entries = make.batches(15)
        write(store, *entries)
        store.save_snapshot(snapshot_at(entries[-1]))
        store.drop_head(entries[-1].index)
        assert store.summary().log_bytes == 0
        assert store.snapshots()[0].bytes_after == 0
        store = backend.reopen()
    assert store.summary().start_index == 45
    more = make.batches(3)
    write(store, *more)
    assert contents(store) == more


# Installing a snapshot


def test_an_installed_snapshot_replaces_the_whole_log(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    entries = make.batches(40)
    write(store, *entries, hard_state=HardState(1))
    store.save_snapshot(snapshot_at(entries[9]))
    snapshot = Snapshot(25, 4, Configuration.of([1, 2]), b"from the leader")
    store.write(Write(snapshot=snapshot, next_offset=77, hard_state=HardState(4)))
    store.sync()
    for _ in range(2):
        summary = store.summary()
        assert (summary.start_index, summary.start_term, summary.start_offset) == (25, 4, 77)
        assert (summary.last_index, summary.next_offset, summary.log_bytes) == (25, 77, 0)
        assert (summary.terms, summary.configurations) == ([], [])
        assert summary.hard_state == HardState(4)
        assert store.snapshot() == snapshot
        assert [mark.index for mark in store.snapshots()] == [25]
        assert store.read(26, EVERYTHING) == []
        store = backend.reopen()
    with pytest.raises(OffsetOutOfRange):
        store.read(25, EVERYTHING)
    other = make.at(25, 4, 77)
    more = other.batches(20)
    write(store, *more)
    assert contents(backend.reopen()) == more


def test_entries_may_come_with_the_snapshot_they_follow(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    write(store, *make.batches(10))
    other = make.at(100, 3, 500)
    new = [other.noop(), *other.batches(30)]
    store.write(Write(snapshot=Snapshot(100, 2, MEMBERS, b""), next_offset=500, entries=together(new)))
    store.sync()
    for _ in range(2):
        assert contents(store) == new
        assert store.summary().start_term == 2
        assert store.summary().next_offset == 530
        store = backend.reopen()


def test_a_snapshot_is_installed_again_over_itself(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    other = make.at(100, 3, 500)
    new = other.batches(3)
    for _ in range(2):
        snapshot = Snapshot(100, 2, MEMBERS, b"s")
        store.write(Write(snapshot=snapshot, next_offset=500, entries=together(new)))
        store.sync()
        assert contents(store) == new
    assert contents(backend.reopen()) == new


def test_a_snapshot_is_installed_in_an_empty_log(backend: Backend) -> None:
    store = backend.open()
    store.write(Write(snapshot=Snapshot(9, 2, MEMBERS, b"s"), next_offset=4))
    store.sync()
    assert backend.reopen().summary().start_index == 9


# Many groups


def test_groups_do_not_see_each_other(backend: Backend) -> None:
    logs = {}
    for number in range(5):
        make = LogMaker()
        logs[f"group-{number}"] = [make.records(b"%d" % number) for _ in range(number + 1)]
    for group, entries in logs.items():
        write(backend.open(group, 7), *entries)
    for group, entries in logs.items():
        assert contents(backend.reopen(group, 7)) == entries


def test_groups_are_listed_with_their_incarnations(backend: Backend) -> None:
    assert backend.stores.groups() == {}
    backend.open("one", 5)
    backend.open("Two.-_", 2**63 - 1)
    longest = f"{'z' * TOPIC_NAME_LENGTH_MAX}-99999"  # no topic can have more partitions
    backend.open(longest, 1)
    expected = {"one": 5, "Two.-_": 2**63 - 1, longest: 1}
    assert backend.stores.groups() == expected
    backend.reopen("one", 5)
    assert backend.stores.groups() == expected


def test_names_that_differ_only_in_case_are_different_groups(backend: Backend) -> None:
    for name in ("topic", "Topic", "TOPIC"):
        write(backend.open(name, 1), LogMaker().records(name.encode()))
    for name in ("topic", "Topic", "TOPIC"):
        assert values(backend.open(name, 1).read_frames(0, EVERYTHING, 1)) == [name.encode()]


def test_a_log_of_another_incarnation_is_not_opened(backend: Backend) -> None:
    write(backend.open(GROUP, 1), LogMaker().noop())
    for incarnation in (0, 2):
        with pytest.raises(GroupNotFound):
            backend.stores.open(GROUP, incarnation)
    backend.reopen(GROUP, 1)
    with pytest.raises(GroupNotFound):
        backend.stores.open(GROUP, 2)
    assert backend.open(GROUP, 1).summary().last_index == 1


def test_a_deleted_log_is_gone_and_may_be_made_anew(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open(GROUP, 1)
    entries = make.batches(30)
    write(store, *entries, hard_state=HardState(3, 1))
    store.save_snapshot(snapshot_at(entries[-1]))
    backend.open("other", 1)
    backend.stores.delete(GROUP)
    assert backend.stores.groups() == {"other": 1}
    store = backend.reopen(GROUP, 2)
    assert store.summary().hard_state is None
    assert store.summary().last_index == 0
    assert store.snapshots() == []
    write(store, LogMaker().noop())
    assert backend.reopen(GROUP, 2).summary().last_index == 1


def test_deleting_what_is_not_there_is_harmless(backend: Backend) -> None:
    backend.stores.delete("nothing")
    assert backend.stores.groups() == {}


def test_closing_twice_is_harmless(backend: Backend) -> None:
    store = backend.open()
    store.close()
    store.close()
    backend.stores.close()
    backend.stores.close()


def test_a_store_that_was_closed_can_be_opened_again(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    write(store, make.noop())
    store.close()
    store = backend.open()
    write(store, make.noop())
    assert store.summary().last_index == 2


# Reading from other threads


def test_readers_and_the_writer_do_not_disturb_each_other(backend: Backend) -> None:
    make = LogMaker()
    store = backend.open()
    write(store, *make.batches(5))
    entries = make.batches(60)

    def read_along() -> int:
        offset = 0
        while offset < 65:
            for frame in store.read_frames(offset, 700, store.summary().last_index):
                assert values([frame])[0].startswith(b"%08d" % offset)
                offset += 1
            found = store.read(1 + offset // 2, 500)
            assert not found or found[0].index == 1 + offset // 2
        return offset

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_along) for _ in range(3)]
        for entry in entries:
            write(store, entry)
        assert [reader.result(60) for reader in readers] == [65, 65, 65]


def test_damage_is_cut_where_there_is_none_without_harm(store: LogStore) -> None:
    make = LogMaker()
    entries = make.batches(3)
    write(store, *entries)
    store.cut_damage()
    assert contents(store) == entries
