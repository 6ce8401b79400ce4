"""Disks that are full, write short or fail: nothing is lost, nothing half done is seen. On segment files."""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random

import pytest

from storage.conftest import GROUP, segment_stores
from storage.disk_scenarios import SCENARIOS, Scenario, allowed, open_log, picture, prepared
from storage.logs import EVERYTHING, LogMaker, contents, mixed, snapshot_at, together, values, write
from talweg.errors import StorageError, StorageFull
from talweg.raft import Entry, HardState
from talweg.storage import LogStore, SegmentStores, Write
from talweg.storage.files import File, RealFiles
from talweg.storage.meta_file import Meta, create_meta, read_meta, write_meta
from talweg.testing.disk import PowerCut, SimulatedFiles

DOINGS = ("write", "sync", "truncate", "rename", "remove", "open", "sync_directory")


# Full


@pytest.mark.parametrize("space", [0, 1, 50, 88, 150, 1_000, 2_500])
def test_a_full_disk_refuses_the_write_and_takes_it_when_there_is_space_again(space: int) -> None:
    files = SimulatedFiles()
    store = open_log(files)
    make = LogMaker()
    before = make.batches(10)
    write(store, *before)
    size = store.summary().log_bytes
    entries = make.batches(40)
    files.space_bytes = space
    for _ in range(3):
        with pytest.raises(StorageFull):
            store.write(Write(entries=mixed(entries), hard_state=HardState(2)))
        assert contents(store) == before
        assert store.summary().log_bytes == size
        assert store.summary().hard_state is None
        assert files.space_bytes == space, "what was taken is given back"
    store.sync()
    assert values(store.read_frames(0, EVERYTHING, 10))[0].startswith(b"00000000")
    files.space_bytes = None
    store.write(Write(entries=mixed(entries), hard_state=HardState(2)))
    store.sync()
    files.crash(Random(1))
    store = open_log(files)
    assert contents(store) == before + entries
    assert store.summary().hard_state == HardState(2)


def test_a_crash_on_a_full_disk_loses_nothing_that_was_acknowledged() -> None:
    for seed in range(30):
        files = SimulatedFiles()
        store = open_log(files)
        make = LogMaker()
        before = make.batches(10)
        write(store, *before)
        files.space_bytes = 50 * seed
        with pytest.raises(StorageFull):
            store.write(Write(entries=together(make.batches(40))))
        files.crash(Random(seed))
        found = contents(open_log(files))
        assert found[:10] == before


def test_a_hard_state_can_be_written_on_a_full_disk() -> None:
    files, store = prepared(SCENARIOS[0])
    files.space_bytes = 0
    write(store, hard_state=HardState(9, 3))
    assert open_log(files).summary().hard_state == HardState(9, 3)


def test_the_head_can_be_dropped_on_a_full_disk() -> None:
    files, store = prepared(SCENARIOS[0])
    files.space_bytes = 0
    store.drop_head(5)
    assert open_log(files).summary().start_index == 5


def test_the_head_can_be_dropped_before_what_a_failed_write_left_is_put_right() -> None:
    files, store = prepared(SCENARIOS[0])
    last_index = store.summary().last_index
    files.space_bytes = 100
    files.fail_next("truncate", error=errno.ENOSPC)
    make = LogMaker(last_index, 9, store.summary().next_offset)
    with pytest.raises(StorageFull):
        store.write(Write(entries=mixed(make.batches(5))))
    files.fail_next("truncate", error=errno.ENOSPC)  # to put it right fails as well, until there is space
    store.drop_head(5)
    assert store.summary().start_index == 5
    files.crash(Random(1))
    found = open_log(files).summary()
    assert (found.start_index, found.last_index, found.damage) == (5, last_index, None)


def test_a_group_can_be_deleted_on_a_full_disk() -> None:
    files, store = prepared(SCENARIOS[0])
    store.close()
    files.space_bytes = 0
    stores = segment_stores(files)
    stores.delete(GROUP)
    assert stores.groups() == {}
    assert files.space_bytes > 3_000


def test_a_snapshot_that_does_not_fit_changes_nothing() -> None:
    files, store = prepared(SCENARIOS[0])
    old = picture(store)
    entry = store.read(20, 1)[0]
    files.space_bytes = 100
    with pytest.raises(StorageFull):
        store.save_snapshot(snapshot_at(entry, bytes(1_000)))
    assert picture(store) == old
    assert files.space_bytes == 100
    files.space_bytes = None
    store.save_snapshot(snapshot_at(entry, bytes(1_000)))
    assert open_log(files).snapshot() == snapshot_at(entry, bytes(1_000))


def test_a_quota_is_a_full_disk_too() -> None:
    files, store = prepared(SCENARIOS[0])
    files.fail_next("write", error=errno.EDQUOT)
    with pytest.raises(StorageFull):
        store.write(Write(hard_state=HardState(2)))


def test_a_missing_index_on_a_full_disk_is_done_without() -> None:
    files = SimulatedFiles()
    store = open_log(files)
    make = LogMaker()
    entries = make.batches(60)
    write(store, *entries)
    for name in files.list(GROUP):
        if name.endswith(".index"):
            files.remove(f"{GROUP}/{name}")
    files.space_bytes = 0
    store = open_log(files)
    assert contents(store) == entries
    assert store.read(30, 1) == entries[29:30]


# Short writes


@pytest.mark.parametrize("write_bytes_max", [5_000, 40_500, 81_000])
def test_short_writes_of_many_large_frames_are_gone_on_with(write_bytes_max: int) -> None:
    files = SimulatedFiles()
    store = SegmentStores(files).open(GROUP, 1)
    make = LogMaker()
    entries = [*make.batches(2), *make.batches(3, value_bytes=40_000), *make.batches(2), make.noop()]
    entries += make.batches(300, value_bytes=40_000)
    write(store, entries[0])
    changes = files.changes
    store.write(Write(entries=entries[1:-1]))
    assert files.changes - changes == 2, "for 306 frames"
    files.write_bytes_max = write_bytes_max
    write(store, entries[-1])
    store.write(Write(truncate_from=2, entries=entries[1:]))
    files.restart()
    assert contents(SegmentStores(files).open(GROUP, 1)) == entries


@pytest.mark.parametrize("write_bytes_max", [1, 7, 100, 1_000])
def test_short_writes_are_gone_on_with(write_bytes_max: int) -> None:
    files = SimulatedFiles(write_bytes_max=write_bytes_max)
    store = open_log(files)
    make = LogMaker()
    entries = [make.noop(), *make.batches(20), make.records(bytes(5_000))]
    write(store, *entries, hard_state=HardState(3, 1))
    store.save_snapshot(snapshot_at(entries[9]))
    store.drop_head(10)
    store = open_log(files)
    assert contents(store) == entries[10:]
    assert store.summary().hard_state == HardState(3, 1)


# Failing


@pytest.mark.parametrize("doing", DOINGS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_failure_at_any_step_changes_nothing_and_the_same_can_be_tried_again(
    scenario: Scenario, doing: str
) -> None:
    files, store = prepared(scenario)
    old = picture(store)
    scenario.change(store)
    new = picture(store)
    after = 0
    while True:
        files, store = prepared(scenario)
        files.fail_next(doing, after=after)
        try:
            scenario.change(store)
        except StorageError:
            pass
        else:
            return
        found = picture(store)
        if scenario.partly:
            # Writes that went well stay when only their sync failed.
            assert found in allowed(scenario, old, new), after
        else:
            assert found in (old, new), after
        if scenario.name != "append twice before the sync":
            retry(scenario, store, len(old.entries), len(new.entries))
            assert picture(store) == new, after
            files.crash(Random(after))
            assert picture(open_log(files)) == new, after
        after += 1


def retry(scenario: Scenario, store: LogStore, old_count: int, new_count: int) -> None:
    """What the driver does: a write that failed is done again, a sync is done again."""
    if scenario.partly and len(contents(store)) == new_count > old_count:
        store.sync()
    else:
        scenario.change(store)


@pytest.mark.parametrize("doing", DOINGS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_crash_after_a_failure_leaves_the_old_log_or_the_new_one(scenario: Scenario, doing: str) -> None:
    files, store = prepared(scenario)
    old = picture(store)
    scenario.change(store)
    new = picture(store)
    after = 0
    while True:
        for seed in range(3):
            files, store = prepared(scenario)
            files.fail_next(doing, after=after)
            try:
                scenario.change(store)
            except StorageError:
                pass
            else:
                return
            files.crash(Random(seed))
            assert picture(open_log(files)) in allowed(scenario, old, new), (after, seed)
        after += 1


@pytest.mark.parametrize("doing", ["open", "truncate", "write", "sync_directory"])
def test_a_crash_while_a_failed_append_is_undone_leaves_no_gap(doing: str) -> None:
    (scenario,) = [one for one in SCENARIOS if one.name == "append over several segments"]
    for after, steps, seed in product(range(1, 4), range(5, 25), range(6)):
        files, store = prepared(scenario)
        before = contents(store)
        files.fail_next(doing, after=after)
        files.cut_power_after(steps)
        with suppress(PowerCut, StorageError):
            scenario.change(store)
        files.crash(Random(seed))
        found = picture(open_log(files)).entries  # which are not damaged
        assert list(found[: len(before)]) == before, (after, steps, seed)


def test_a_disk_that_fails_again_and_again_is_survived() -> None:
    """Not even the way back works: the store remembers what is to be undone."""
    for first in range(12):
        files, store = prepared(SCENARIOS[2])
        old = picture(store)
        make = LogMaker(30, 1, 29)
        entries = make.batches(40)
        files.fail_next("write", after=first)
        for doing in ("truncate", "remove", "sync_directory", "sync"):
            for _ in range(3):
                files.fail_next(doing)
        failures = 0
        while failures < 50:
            try:
                store.write(Write(entries=mixed(entries)))
            except StorageError:
                failures += 1
                assert picture(store) == old
            else:
                break
        assert 0 < failures < 50
        while True:
            try:
                store.sync()
            except StorageError:
                continue
            break
        files.crash(Random(first))
        assert contents(open_log(files)) == [*old.entries, *entries]


def test_a_failed_sync_is_not_believed_the_second_time() -> None:
    """The pages are gone from the kernel's list: they have to be written again."""
    files = SimulatedFiles()
    store = open_log(files)
    make = LogMaker()
    first, second, third = make.batches(3), make.batches(3), make.batches(3)
    write(store, *first, hard_state=HardState(1))
    store.write(Write(entries=mixed(second), hard_state=HardState(2)))
    files.fail_next("sync")
    with pytest.raises(StorageError):
        store.sync()
    store.write(Write(entries=together(third)))
    files.fail_next("sync")
    with pytest.raises(StorageError):
        store.sync()
    store.sync()
    files.crash(Random(1))
    store = open_log(files)
    assert contents(store) == first + second + third
    assert store.summary().hard_state == HardState(2)


def test_nor_is_it_when_the_head_cannot_be_dropped_in_between() -> None:
    for after in range(4):
        files, store = prepared(SCENARIOS[0])
        before = contents(store)
        entries = LogMaker(before[-1].index, 9, store.summary().next_offset).batches(3)
        store.write(Write(entries=together(entries)))
        files.fail_next("sync")
        with pytest.raises(StorageError):
            store.sync()
        files.fail_next("sync", after=after)
        for _ in range(3):
            with suppress(StorageError):
                store.drop_head(5)
                store.sync()
        assert contents(store) == before[5:] + entries
        files.crash(Random(1))
        assert contents(open_log(files)) == before[5:] + entries


def test_a_failed_sync_of_the_hard_state_is_not_believed_either() -> None:
    files = SimulatedFiles()
    store = open_log(files)
    write(store, hard_state=HardState(1))
    store.write(Write(hard_state=HardState(2, 2)))
    files.fail_next("sync")
    with pytest.raises(StorageError):
        store.sync()
    store.sync()
    files.crash(Random(1))
    assert open_log(files).summary().hard_state == HardState(2, 2)


def test_what_a_failed_write_left_is_cut_also_when_it_was_the_sync_that_failed() -> None:
    """A segment is synced before the next one is made. When that fails, half the write is in the file."""
    files, store = prepared(SCENARIOS[0])
    store.write(Write(entries=[LogMaker(30, 1, 29).noop()]))
    size = store.summary().log_bytes
    files.fail_next("sync")
    with pytest.raises(StorageError):
        store.write(Write(entries=together(LogMaker(31, 1, 29).batches(40))))
    logs = [name for name in files.list(GROUP) if name.endswith(".log")]
    assert sum(len(files.content(f"{GROUP}/{name}")) for name in logs) == size
    store.sync()
    files.crash(Random(1))
    assert len(contents(open_log(files))) == 31


def test_the_slots_of_the_meta_file_are_never_written_together() -> None:
    """A disk may write in any order: one slot is durable before the other is touched."""
    done: list[str] = []

    class Watched(SimulatedFiles):
        def acting(self, doing: str) -> None:
            done.append(doing)
            super().acting(doing)

    files = Watched()
    files.make_directory(GROUP)
    create_meta(files, GROUP, Meta(1))
    done.clear()
    write_meta(files, GROUP, Meta(1, start_index=5))
    assert done == ["write", "sync", "write", "sync"]


@pytest.mark.parametrize("drops", [True, False])
def test_a_meta_file_never_falls_back_behind_what_it_was_given(drops: bool) -> None:
    for failing in product(range(5), repeat=2):
        for steps, seed in product(range(16), range(8)):
            files = SimulatedFiles()
            files.failed_sync_drops = drops
            files.make_directory(GROUP)
            files.sync_directory("")
            create_meta(files, GROUP, Meta(1))
            for after in failing:
                files.fail_next("sync", after=after)
            files.cut_power_after(steps)
            given = 0
            with suppress(PowerCut):
                while given < 3:
                    with suppress(OSError):
                        write_meta(files, GROUP, Meta(1, changes=given + 1))
                        given += 1
            files.crash(Random(seed))
            meta = read_meta(files, GROUP)
            assert meta is not None
            assert meta.changes >= given, (failing, steps, seed)


def test_reads_go_on_while_the_disk_fails_to_write() -> None:
    files, store = prepared(SCENARIOS[0])
    entries = contents(store)
    for doing in ("write", "sync"):
        files.fail_next(doing)
        with pytest.raises(StorageError):
            write(store, LogMaker(30, 1, 29).noop())
        assert contents(store)[:30] == entries


def test_what_is_not_synced_does_not_pile_up_without_end() -> None:
    files = SimulatedFiles()
    store = SegmentStores(files, unsynced_bytes_max=5_000).open(GROUP, 1)
    make = LogMaker()
    for _ in range(200):
        store.write(Write(entries=make.batches(1)))
    files.crash(Random(3))
    assert len(contents(open_log(files))) > 150


# A real full disk


class SmallFiles(RealFiles):
    """Real files, of which the log may not grow beyond a size."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.limit_bytes = 1 << 30

    def open(self, path: str, *, create: bool = True) -> File:  # type: ignore[override]
        return SmallFile(super().open(path, create=create), self)


class SmallFile:
    def __init__(self, file: File, files: SmallFiles) -> None:
        self._file = file
        self._files = files
        self.read_at, self.size, self.sync, self.close = file.read_at, file.size, file.sync, file.close
        self.truncate = file.truncate

    def write_at(self, data: bytes | memoryview, position: int) -> int:
        room = self._files.limit_bytes - position
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write_at(data[:room], position)

    def write_parts_at(self, parts: Sequence[bytes | memoryview], position: int) -> int:
        return self.write_at(b"".join(parts), position)


def test_a_full_disk_of_real_files_is_survived_too(tmp_path: Path) -> None:
    files = SmallFiles(tmp_path)
    stores = SegmentStores(files)
    store = stores.open(GROUP, 1)
    make = LogMaker()
    before, entries = make.batches(50), make.batches(50, value_bytes=500)
    write(store, *before)
    files.limit_bytes = store.summary().log_bytes + 10_000
    with pytest.raises(StorageFull):
        store.write(Write(entries=together(entries)))
    assert contents(store) == before
    assert (tmp_path / GROUP / f"{1:020}.log").stat().st_size == store.summary().log_bytes
    files.limit_bytes = 1 << 30
    write(store, *entries)
    stores.close()
    assert contents(SegmentStores(RealFiles(tmp_path)).open(GROUP, 1)) == before + entries


# Failures that are none of the disk's


class Exhausted(SimulatedFiles):
    """Memory runs out once, in the middle of something."""

    left: int | None = None  # things that still go well

    def acting(self, doing: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise MemoryError
        super().acting(doing)


CHANGES: dict[str, Callable[[LogStore, list[Entry]], None]] = {
    "append": lambda store, more: store.write(Write(entries=mixed(more), hard_state=HardState(3))),
    "truncate": lambda store, more: store.write(Write(truncate_from=21, entries=together(more[:5]))),
    "install": lambda store, more: store.write(
        Write(snapshot=snapshot_at(more[0]), next_offset=21, entries=together(more[1:5]))
    ),
    "drop": lambda store, more: store.drop_head(10),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_runs_out_of_memory_at_any_step_can_be_tried_again(change: str) -> None:
    steps = 0
    while True:
        files, make = Exhausted(), LogMaker()
        store = segment_stores(files).open(GROUP, 1)
        entries = make.batches(20)
        write(store, *entries, hard_state=HardState(1))
        store.save_snapshot(snapshot_at(entries[9]))
        if change == "truncate":
            store.write(Write(entries=together(make.at(20, 1, 20).batches(3))))
        more = make.at(20, 2, 20).batches(30)
        files.left = steps
        with suppress(MemoryError):
            CHANGES[change](store, more)
            files.left = None
            assert steps > 1
            return
        CHANGES[change](store, more)
        store.sync()
        found = contents(store)
        assert store.summary().damage is None
        store.close()
        files.restart()
        assert contents(segment_stores(files).open(GROUP, 1)) == found
        steps += 1
