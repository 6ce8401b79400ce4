"""A torn tail is cut; damage is reported and left alone. On segment files, by their looks: what is noted as
durable is in test_stable."""

import re
from random import Random

import pytest

from storage.conftest import GROUP, segment_stores
from storage.logs import EVERYTHING, LogMaker, contents, frame_bytes, mixed, snapshot_at, write
from talweg.errors import DamagedLog
from talweg.raft import Configuration, Entry, HardState, Snapshot
from talweg.storage import LogSummary, SegmentStores, Write
from talweg.storage.segment_store import SegmentStore
from talweg.storage.stable_file import STABLE_NAME
from talweg.testing.disk import SimulatedFiles


def open_log(files: SimulatedFiles) -> SegmentStore:
    """As a process that has just been started finds it."""
    files.restart()
    return segment_stores(files).open(GROUP, 1)


def log_files(files: SimulatedFiles) -> list[str]:
    return [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".log")]


def written(count: int) -> tuple[SimulatedFiles, list[Entry]]:
    """A closed log of `count` batches, over several segments; nobody knows how far it was durable."""
    files = SimulatedFiles()
    make = LogMaker()
    entries = [make.configuration(1, 2, 3), *make.batches(count - 1)]
    store = open_log(files)
    for entry in entries:
        write(store, entry, hard_state=HardState(1, 2))
    store.close()
    return unnoted(files), entries


def unnoted(files: SimulatedFiles) -> SimulatedFiles:
    """As after a power cut that comes before the kernel has written the note."""
    files.remove(f"{GROUP}/{STABLE_NAME}")
    return files


def is_damaged_at(summary: LogSummary, index: int) -> bool:
    return summary.damage is not None and (summary.damage.index, summary.last_index) == (index, index - 1)


# Torn


def test_a_tail_torn_at_any_byte_is_cut() -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    whole = files.content(path)
    last_bytes = frame_bytes(entries[-1])
    for torn_bytes in range(last_bytes):
        files.put(path, whole[: len(whole) - last_bytes + torn_bytes])
        store = open_log(unnoted(files))
        assert contents(store) == entries[:-1]
        assert store.summary().damage is None
        assert store.torn_bytes == torn_bytes
        assert files.content(path) == whole[:-last_bytes]
        write(store, entries[-1])
        assert contents(open_log(files)) == entries


def test_a_whole_log_is_not_torn() -> None:
    files, entries = written(5)
    store = open_log(files)
    assert store.torn_bytes == 0
    assert contents(store) == entries


@pytest.mark.parametrize("zeros", [1, 7, 8, 87, 88, 89, 4096, 100_000])
def test_zeros_after_the_last_frame_are_a_torn_tail(zeros: int) -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    files.put(path, files.content(path) + bytes(zeros))
    store = open_log(files)
    assert contents(store) == entries
    assert store.summary().damage is None
    assert store.torn_bytes == zeros


def test_zeros_that_do_not_begin_with_a_sector_are_damage() -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = SegmentStores(files).open(GROUP, 1)
    entries = [make.records(b"x" * 3_000), make.records(b"y" * 1_000)]
    write(store, *entries)
    (path,) = log_files(files)
    whole = files.content(path)
    end = len(whole) - len(whole) % 512 + 1  # one byte of the last sector is there, and so all of it was
    files.put(path, whole[:end] + bytes(len(whole) - end))
    files.restart()
    assert is_damaged_at(SegmentStores(unnoted(files)).open(GROUP, 1).summary(), 2)


def test_a_cut_is_durable_before_anything_is_written_there() -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    files.put(path, files.content(path)[:-3])
    open_log(files)
    cut = files.content(path)
    assert len(cut) == frame_bytes(*entries[:-1])
    for seed in range(20):
        files.crash(Random(seed))
        assert files.content(path) == cut


def test_a_torn_first_frame_leaves_an_empty_segment() -> None:
    files, entries = written(60)
    *_, last = log_files(files)
    first_lost = int(last.removesuffix(".log")[-20:])
    files.put(last, files.content(last)[:50])
    store = open_log(files)
    assert contents(store) == entries[: first_lost - 1]
    write(store, *entries[first_lost - 1 :])
    assert contents(open_log(files)) == entries


def test_what_a_dead_process_had_not_synced_is_made_durable_when_it_is_found() -> None:
    files = SimulatedFiles()
    make = LogMaker()
    store = open_log(files)
    entries = make.batches(3)
    store.write(Write(entries=mixed(entries), hard_state=HardState(4, 1)))
    store = open_log(files)  # no sync, and no power cut either
    assert contents(store) == entries
    files.crash(Random(1))
    store = open_log(files)
    assert contents(store) == entries
    assert store.summary().hard_state == HardState(4, 1)


# Damaged


def test_a_flipped_byte_anywhere_in_the_last_segment_is_damage_and_is_not_cut() -> None:
    files, entries = written(6)
    (path,) = log_files(files)
    whole = files.content(path)
    ends = [frame_bytes(*entries[: number + 1]) for number in range(len(entries))]
    for position in range(len(whole)):
        files.flip(path, position, 0x10)
        store = open_log(files)
        index = 1 + next(number for number, end in enumerate(ends) if position < end)
        assert is_damaged_at(store.summary(), index)
        assert contents(store) == entries[: index - 1]
        assert store.torn_bytes == 0
        store.close()
        files.flip(path, position, 0x10)
        assert files.content(path) == whole


def test_damage_in_the_last_frame_is_not_taken_for_a_torn_tail() -> None:
    files, _ = written(6)
    (path,) = log_files(files)
    files.flip(path, len(files.content(path)) - 1)
    assert is_damaged_at(open_log(files).summary(), 6)


def test_every_flipped_byte_of_a_sealed_segment_is_found_when_it_is_read() -> None:
    files, entries = written(40)
    path = log_files(files)[1]
    whole = files.content(path)
    first_index = int(path.removesuffix(".log")[-20:])
    ends: list[int] = []
    while not ends or ends[-1] < len(whole):
        ends.append((ends[-1] if ends else 0) + frame_bytes(entries[first_index - 1 + len(ends)]))
    for position in range(len(whole)):
        files.flip(path, position, 0x04)
        store = open_log(files)
        assert store.summary().damage is None, "opening does not read sealed segments"
        index = first_index + next(number for number, end in enumerate(ends) if position < end)
        assert store.read(index - 1, 1) == entries[index - 2 : index - 1]
        with pytest.raises(DamagedLog):
            store.read(index, 1)
        assert is_damaged_at(store.summary(), index)
        store.close()
        files.flip(path, position, 0x04)


def test_readers_of_messages_get_what_is_sound_and_then_an_error() -> None:
    files, entries = written(40)
    files.flip(log_files(files)[1], 500)
    store = open_log(files)
    frames = store.read_frames(0, EVERYTHING, 40)
    assert frames == [entry.payload for entry in entries[1 : 1 + len(frames)]]
    with pytest.raises(DamagedLog):
        store.read_frames(len(frames), EVERYTHING, 40)
    assert is_damaged_at(store.summary(), len(frames) + 2)


def test_a_missing_segment_in_the_middle_is_damage() -> None:
    files, entries = written(60)
    paths = log_files(files)
    files.remove(paths[1])
    first_lost = int(paths[1].removesuffix(".log")[-20:])
    store = open_log(files)
    damage = store.summary().damage
    assert damage is not None
    assert damage.detail.startswith(f"{paths[1]} is missing")
    assert is_damaged_at(store.summary(), first_lost)
    assert contents(store) == entries[: first_lost - 1]
    assert log_files(files) == [paths[0], *paths[2:]]


def test_a_missing_first_segment_is_damage() -> None:
    files, _ = written(60)
    files.remove(log_files(files)[0])
    summary = open_log(files).summary()
    assert is_damaged_at(summary, 1)
    assert (summary.terms, summary.configurations, summary.log_bytes) == ([], [], 0)


def test_a_log_that_lost_the_file_in_which_it_began_goes_on_in_another_one() -> None:
    files, entries = written(1)
    store, make = open_log(files), LogMaker(1)
    write(store, *make.batches(2))
    store.save_snapshot(snapshot_at(entries[0]))
    store.drop_head(1)
    store.close()
    (path,) = log_files(files)
    files.remove(path)
    store = open_log(unnoted(files))
    assert is_damaged_at(store.summary(), 2)
    store.write(Write(hard_state=HardState(1, recovering=True)))
    store.cut_damage()
    others = LogMaker(1).batches(3)
    write(store, *others)
    assert contents(store) == others
    store.close()
    store = open_log(files)
    assert store.summary().damage is None
    assert contents(store) == others


@pytest.mark.parametrize("missing_bytes", [1, 40, 200])
def test_a_sealed_segment_that_is_too_short_is_damage(missing_bytes: int) -> None:
    files, entries = written(60)
    path, following = log_files(files)[1:3]
    files.put(path, files.content(path)[:-missing_bytes])
    store = open_log(files)
    damage = store.summary().damage
    assert damage is not None
    assert damage.index < int(following.removesuffix(".log")[-20:])
    assert contents(store) == entries[: damage.index - 1]


def test_a_sealed_segment_cut_between_two_frames_is_damage() -> None:
    files, entries = written(60)
    path, following = log_files(files)[1:3]
    next_index = int(following.removesuffix(".log")[-20:])
    files.put(path, files.content(path)[: -frame_bytes(entries[next_index - 2])])
    assert is_damaged_at(open_log(files).summary(), next_index - 1)


def test_a_log_that_ends_before_a_snapshot_does_is_damaged() -> None:
    files, entries = written(60)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[-1]))
    store.close()
    *_, last = log_files(files)
    files.remove(last)
    summary = open_log(files).summary()
    assert is_damaged_at(summary, int(last.removesuffix(".log")[-20:]))


def test_an_entry_in_the_place_of_another_is_damage() -> None:
    files, entries = written(6)
    (path,) = log_files(files)
    whole = files.content(path)
    second, third, fourth = (frame_bytes(*entries[:count]) for count in (2, 3, 4))
    files.put(path, whole[:second] + whole[third:fourth] + whole[second:third] + whole[fourth:])
    assert is_damaged_at(open_log(files).summary(), 3)


def test_a_sound_frame_in_the_wrong_place_of_a_sealed_segment_is_found_when_it_is_read() -> None:
    files, entries = written(40)
    path = log_files(files)[1]
    first_index = int(path.removesuffix(".log")[-20:])
    whole, size = files.content(path), frame_bytes(entries[first_index - 1])
    assert all(frame_bytes(entry) == size for entry in entries[first_index : first_index + 4])
    first, second = (slice(number * size, (number + 1) * size) for number in (2, 3))
    files.put(path, whole[: first.start] + whole[second] + whole[first] + whole[second.stop :])
    for read_all in (contents, lambda store: [store.read_frames(at, 1, 40) for at in range(39)]):
        store = open_log(files)
        assert store.summary().damage is None
        with pytest.raises(DamagedLog):
            read_all(store)
        assert is_damaged_at(store.summary(), first_index + 2)


def test_nothing_is_built_on_a_damaged_log() -> None:
    files, _ = written(6)
    (path,) = log_files(files)
    files.flip(path, 400)
    before = files.content(path)
    store = open_log(files)
    next_index = store.summary().last_index + 1
    entry = LogMaker(next_index - 1, 1, store.summary().next_offset).noop()
    for refused in (Write(entries=[entry]), Write(truncate_from=2), Write(truncate_from=2, entries=[entry])):
        with pytest.raises(DamagedLog):
            store.write(refused)
    assert files.content(path) == before


def test_the_end_of_the_sound_part_is_not_the_end_of_the_log() -> None:
    files, entries = written(6)
    files.flip(log_files(files)[0], 400)
    store = open_log(files)
    summary = store.summary()
    with pytest.raises(DamagedLog):
        store.read(summary.last_index + 1, EVERYTHING)
    with pytest.raises(DamagedLog):
        store.read_frames(summary.next_offset, EVERYTHING, 6)
    with pytest.raises(DamagedLog):
        store.offset_at(2**62, 6)
    assert store.read(1, EVERYTHING) == entries[: summary.last_index]
    assert store.read_frames(summary.next_offset, EVERYTHING, summary.last_index) == []
    assert store.offset_at(2**62, summary.last_index) == summary.next_offset


@pytest.mark.parametrize("at_opening", [True, False])
def test_damage_is_cut_once_the_replica_is_recovering(at_opening: bool) -> None:
    files, entries = written(60)
    path = log_files(files)[1]
    index = int(path.removesuffix(".log")[-20:]) + 2
    position = frame_bytes(*entries[index - 3 : index - 1])
    if at_opening:
        files.put(path, files.content(path)[: position + 10])
        store = open_log(files)
    else:
        files.flip(path, position + 100)
        store = open_log(files)
        with pytest.raises(DamagedLog):
            contents(store)
    assert is_damaged_at(store.summary(), index)
    recovering = HardState(1, 2, recovering=True)
    write(store, hard_state=recovering)
    store.cut_damage()
    make = LogMaker(index - 1, 1, index - 2)
    for _ in range(2):
        summary = store.summary()
        assert (summary.damage, summary.last_index, summary.next_offset) == (None, index - 1, index - 2)
        assert summary.hard_state == recovering
        assert summary.log_bytes == frame_bytes(*entries[: index - 1])
        assert contents(store) == entries[: index - 1]
        store = open_log(files)
    again = make.batches(60)
    write(store, *again)
    assert contents(open_log(files)) == entries[: index - 1] + again


def test_cutting_damage_in_the_last_segment_keeps_what_is_sound() -> None:
    files, entries = written(6)
    (path,) = log_files(files)
    files.flip(path, frame_bytes(*entries[:4]) + 3)
    store = open_log(files)
    store.cut_damage()
    assert contents(store) == entries[:4]
    assert store.summary().damage is None
    write(store, *entries[4:])
    assert contents(open_log(files)) == entries


def test_snapshots_of_what_was_damaged_go_with_it() -> None:
    files, entries = written(60)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[4], b"sound"))
    store.save_snapshot(snapshot_at(entries[49], b"beyond"))
    store.close()
    files.flip(log_files(files)[1], 300)
    files.remove(log_files(files)[1].replace(".log", ".index"))
    files.flip(log_files(files)[1], 5)
    store = open_log(files)
    assert store.summary().damage is not None
    assert store.snapshot() == snapshot_at(entries[4], b"sound")
    assert [mark.index for mark in store.snapshots()] == [5]
    store.cut_damage()
    assert [mark.index for mark in store.snapshots()] == [5]
    assert open_log(files).summary().damage is None


def test_no_snapshot_is_kept_behind_damage_that_a_reader_has_found() -> None:
    files, entries = written(60)
    path = log_files(files)[1]
    store = open_log(files)
    files.flip(path, 300)
    with pytest.raises(DamagedLog):
        contents(store)
    damage = store.summary().damage
    assert damage is not None
    with pytest.raises(DamagedLog, match=re.escape(damage.detail)):
        store.save_snapshot(snapshot_at(entries[damage.index - 1]))
    with pytest.raises(DamagedLog):
        store.save_snapshot(snapshot_at(entries[-1]))
    sound = snapshot_at(entries[damage.index - 2])
    store.save_snapshot(sound)
    assert store.snapshot() == sound


def test_an_installed_snapshot_replaces_damage_with_all_the_rest() -> None:
    files, _ = written(60)
    files.flip(log_files(files)[1], 5)
    files.remove(log_files(files)[1].replace(".log", ".index"))
    store = open_log(files)
    assert store.summary().damage is not None
    snapshot = Snapshot(100, 3, Configuration.of([1]), b"state")
    store.write(Write(snapshot=snapshot, next_offset=90))
    store.sync()
    for _ in range(2):
        assert store.summary().damage is None
        assert store.summary().start_index == 100
        store = open_log(files)


def test_damage_in_a_dropped_head_does_not_matter() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[24]))
    store.drop_head(25)
    store.close()
    path = log_files(files)[0]
    assert int(path.removesuffix(".log")[-20:]) < 25, "the start is inside a segment"
    for position in (0, 100):
        files.flip(path, position)
    files.remove(path.replace(".log", ".index"))
    store = open_log(files)
    assert store.summary().damage is None
    assert contents(store) == entries[25:]
    assert store.offset_at(0, 40) == 24


def test_dropping_the_head_with_the_damage_in_it_heals_the_log() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[29]))
    files.flip(log_files(files)[0], 300)
    with pytest.raises(DamagedLog):
        contents(store)
    store.drop_head(30)
    assert store.summary().damage is None
    assert contents(store) == entries[30:]


def test_a_damaged_snapshot_where_the_log_starts_is_damage() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9]))
    store.drop_head(10)
    store.close()
    (path,) = [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".snapshot")]
    whole = files.content(path)
    for position in range(len(whole)):
        files.flip(path, position)
        summary = open_log(files).summary()
        assert summary.damage is not None
        assert (summary.damage.index, summary.last_index) == (10, 10)
        files.flip(path, position)
    files.flip(path, 30)
    store = open_log(files)
    write(store, hard_state=HardState(1, recovering=True))
    store.cut_damage()
    for _ in range(2):
        summary = store.summary()
        assert (summary.start_index, summary.last_index, summary.damage) == (0, 0, None)
        assert summary.hard_state == HardState(1, recovering=True)
        store = open_log(files)
    write(store, *entries)
    assert contents(open_log(files)) == entries


def test_a_snapshot_where_the_log_starts_that_rots_in_use_is_damage() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9]))
    store.drop_head(10)
    files.flip(f"{GROUP}/{10:020}.snapshot", 30)
    with pytest.raises(DamagedLog):
        store.snapshot()
    summary = store.summary()
    assert summary.damage is not None
    assert (summary.damage.index, summary.start_index, summary.last_index) == (10, 10, 10)
    assert store.snapshots() == []
    write(store, hard_state=HardState(1, recovering=True))
    store.cut_damage()
    write(store, *entries)
    assert contents(open_log(files)) == entries


def test_the_head_is_not_dropped_where_the_snapshot_has_rotted() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9], b"older"))
    store.save_snapshot(snapshot_at(entries[19], b"newer"))
    files.flip(f"{GROUP}/{20:020}.snapshot", 40)
    store.drop_head(20)
    assert contents(store) == entries
    assert [mark.index for mark in store.snapshots()] == [10]
    store.drop_head(10)
    assert contents(store) == entries[10:]
    assert store.snapshot() == snapshot_at(entries[9], b"older")


def test_a_damaged_snapshot_that_is_not_needed_is_passed_over() -> None:
    files, entries = written(40)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9], b"older"))
    store.save_snapshot(snapshot_at(entries[19], b"newer"))
    store.close()
    files.flip(f"{GROUP}/{20:020}.snapshot", 40)
    store = open_log(files)
    assert store.summary().damage is None
    assert store.snapshot() == snapshot_at(entries[9], b"older")


# The hard state


def test_a_hard_state_that_cannot_be_read_makes_the_replica_recover() -> None:
    files, entries = written(6)
    path = f"{GROUP}/state"
    for position in (2, 4096 + 2):
        files.flip(path, position)
    store = open_log(files)
    summary = store.summary()
    assert summary.hard_state == HardState(1, None, recovering=True)
    assert is_damaged_at(summary, 7)
    assert contents(store) == entries
    write(store, hard_state=HardState(1, None, recovering=True))
    store.cut_damage()
    assert store.summary().damage is None
    store = open_log(files)
    assert store.summary().damage is None
    assert store.summary().hard_state == HardState(1, None, recovering=True)
    assert contents(store) == entries


def test_a_lost_hard_state_stays_lost_until_another_is_written() -> None:
    files, entries = written(6)
    files.remove(f"{GROUP}/state")
    store = open_log(files)
    store.cut_damage()
    assert store.summary().damage is not None
    assert contents(store) == entries
    write(store, hard_state=HardState(1, None, recovering=True))
    store.cut_damage()
    assert store.summary().damage is None
    assert contents(store) == entries


def test_a_missing_hard_state_is_not_a_new_one() -> None:
    files, _ = written(6)
    files.remove(f"{GROUP}/state")
    summary = open_log(files).summary()
    assert summary.hard_state == HardState(1, None, recovering=True)
    assert summary.damage is not None


def test_one_slot_of_the_hard_state_torn_leaves_the_other() -> None:
    files = SimulatedFiles()
    store = open_log(files)
    write(store, hard_state=HardState(5, 1))
    for seed in range(40):
        store.write(Write(hard_state=HardState(6 + seed, 2)))
        files.crash(Random(seed))
        store = open_log(files)
        assert store.summary().damage is None
        assert store.summary().hard_state in (HardState(5, 1), HardState(6 + seed, 2))
        write(store, hard_state=HardState(5, 1))


# The meta file


def test_a_damaged_meta_file_is_an_error_and_nothing_is_removed() -> None:
    files, _ = written(30)
    before = files.list(GROUP)
    for position in (10, 4096 + 10):
        files.flip(f"{GROUP}/meta", position)
    files.restart()
    stores = segment_stores(files)
    with pytest.raises(DamagedLog):
        stores.open(GROUP, 1)
    assert stores.groups() == {}
    assert files.list(GROUP) == before


def test_a_bad_sector_under_one_slot_of_the_meta_file_changes_nothing() -> None:
    files, entries = written(30)
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9]))
    store.drop_head(10)
    store.close()
    for position in (10, 4096 + 10):
        files.flip(f"{GROUP}/meta", position)
        assert contents(open_log(files)) == entries[10:]
        files.flip(f"{GROUP}/meta", position)


def test_a_log_without_a_meta_file_is_not_taken_for_a_new_one() -> None:
    files, _ = written(30)
    files.remove(f"{GROUP}/meta")
    files.restart()
    with pytest.raises(DamagedLog):
        segment_stores(files).open(GROUP, 1)
    assert log_files(files)
