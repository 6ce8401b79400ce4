"""Sectors that the disk cannot read any more are damage, as bytes are that have changed. On segment files."""

import errno
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from storage.conftest import GROUP, segment_stores
from storage.logs import EVERYTHING, LogMaker, contents, snapshot_at, write
from talweg.errors import DamagedLog, StorageError
from talweg.raft import Entry, HardState
from talweg.storage import LogStores, SegmentStores, Write
from talweg.storage.journal_format import JOURNAL_NAMES, read_journal
from talweg.storage.segment_store import SegmentStore
from talweg.testing.disk import PowerCut, SimulatedFiles


def stores_on(files: SimulatedFiles) -> LogStores:
    files.restart()
    return SegmentStores(files, segment_bytes=30_000, index_interval_bytes=2_000)


def open_log(files: SimulatedFiles) -> SegmentStore:
    store = stores_on(files).open(GROUP, 1)
    assert isinstance(store, SegmentStore)
    return store


def written(count: int = 100) -> tuple[SimulatedFiles, list[Entry]]:
    """A closed log of several segments, each of several pages."""
    files = SimulatedFiles()
    entries = LogMaker().batches(count, value_bytes=900)
    store = open_log(files)
    for entry in entries:
        write(store, entry, hard_state=HardState(1, 2))
    store.close()
    return files, entries


def log_files(files: SimulatedFiles) -> list[str]:
    return [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".log")]


def entry_at(files: SimulatedFiles, path: str, position: int) -> int:
    """The number of the entry that holds a byte."""
    before = sum(len(files.content(name)) for name in log_files(files) if name < path)
    ends, end = [], 0
    for entry in LogMaker().batches(100, value_bytes=900):
        end += len(entry.payload)
        ends.append(end)
    return sum(end <= before + position for end in ends) + 1


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("page", [0, 1, 2])
def test_what_comes_before_a_page_that_cannot_be_read_is_read_and_then_it_is_damage(
    number: int, page: int
) -> None:
    files, entries = written()
    store = open_log(files)
    path = log_files(files)[number]
    files.spoil(path, 4096 * page)
    index = entry_at(files, path, 4096 * page)
    found: list[Entry] = []
    with suppress(DamagedLog):
        while len(found) < len(entries):
            found += store.read(len(found) + 1, 7_000)
    assert found == entries[: index - 1]
    summary = store.summary()
    assert summary.damage is not None
    assert (summary.damage.index, summary.last_index) == (index, index - 1)
    with pytest.raises(DamagedLog):
        store.read_frames(summary.next_offset, EVERYTHING, 100)
    write(store, hard_state=HardState(1, None, recovering=True))
    store.cut_damage()
    write(store, *entries[index - 1 :])
    assert contents(open_log(files)) == entries


def test_a_page_of_the_last_segment_that_cannot_be_read_is_damage_at_the_opening() -> None:
    files, entries = written()
    path = log_files(files)[-1]
    files.spoil(path, len(files.content(path)) - 1)
    store = open_log(files)
    summary = store.summary()
    assert summary.damage is not None
    assert contents(store) == entries[: summary.damage.index - 1]
    assert summary.damage.index == entry_at(files, path, len(files.content(path)) // 4096 * 4096)
    assert files.is_spoilt(path), "nothing is cut before the replica is recovering"


def test_an_index_that_cannot_be_read_is_made_again() -> None:
    files, entries = written()
    for name in files.list(GROUP):
        if name.endswith(".index"):
            files.spoil(f"{GROUP}/{name}", 0)
    store = open_log(files)
    assert store.summary().damage is None
    assert contents(store) == entries
    assert store.offset_at(50_000_000, 100) == 48


def test_a_read_that_fails_once_is_no_damage() -> None:
    files, entries = written()
    store = open_log(files)
    for _ in range(3):
        files.fail_next("read", after=1)
        assert contents(store) == entries
    assert store.summary().damage is None


def test_only_what_the_disk_cannot_read_is_damage() -> None:
    files, _ = written()
    store = open_log(files)
    store.read(1, 1)  # where things are is known now
    files.fail_next("read", error=errno.ENOMEM)
    with pytest.raises(StorageError) as caught:
        store.read(1, EVERYTHING)
    assert not isinstance(caught.value, DamagedLog)
    assert store.summary().damage is None


# Small files


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("votes", [1, 2])
def test_a_hard_state_that_cannot_be_read_is_lost_until_another_is_written(
    places: tuple[int, ...], votes: int
) -> None:
    files, entries = written()
    store = open_log(files)
    for vote in range(votes):  # so that either slot is the newer one
        write(store, hard_state=HardState(5 + vote, 2))
    store.close()
    for place in places:
        files.spoil(f"{GROUP}/state", 4096 * place)
    store = open_log(files)
    assert store.summary().damage is not None
    assert store.summary().hard_state == HardState(1, None, recovering=True)
    write(store, hard_state=HardState(1, None, recovering=True))
    store.cut_damage()
    for _ in range(2):
        assert store.summary().damage is None
        assert store.summary().hard_state == HardState(1, None, recovering=True)
        store = open_log(files)
    write(store, hard_state=HardState(7, 1))
    store = open_log(files)
    assert store.summary().hard_state == HardState(7, 1)
    assert contents(store) == entries


class Torn(Random):
    """Of what was not synced, the first 20 bytes survive."""

    def randint(self, a: int, b: int) -> int:
        return a

    def randrange(self, *arguments: int) -> int:
        return min(20, arguments[0] - 1)


@pytest.mark.parametrize("place", [0, 1])
def test_a_crash_while_a_lost_hard_state_is_written_anew_never_brings_an_older_one_back(place: int) -> None:
    for steps in range(6):
        for dice in (Torn(), *map(Random, range(5))):
            files, _ = written(3)
            files.spoil(f"{GROUP}/state", 4096 * place)
            store = open_log(files)
            files.cut_power_after(steps)
            with suppress(PowerCut):
                write(store, hard_state=HardState(9, None, recovering=True))
            files.crash(dice)
            hard_state = open_log(files).summary().hard_state
            assert hard_state is not None
            assert hard_state.recovering


@pytest.mark.parametrize("place", [0, 1])
def test_one_slot_of_the_meta_file_will_do(place: int) -> None:
    files, entries = written()
    files.spoil(f"{GROUP}/meta", 4096 * place)
    store = open_log(files)
    assert contents(store) == entries
    store.save_snapshot(snapshot_at(entries[49]))
    store.drop_head(50)
    assert contents(open_log(files)) == entries[50:]
    assert not files.is_spoilt(f"{GROUP}/meta")


def test_a_snapshot_that_cannot_be_read_is_none() -> None:
    files, entries = written()
    store = open_log(files)
    store.save_snapshot(snapshot_at(entries[9], b"older"))
    store.save_snapshot(snapshot_at(entries[19], b"newer"))
    files.spoil(f"{GROUP}/{20:020}.snapshot", 0)
    assert store.snapshot(20) is None
    assert store.snapshot() == snapshot_at(entries[9], b"older")
    assert [mark.index for mark in store.snapshots()] == [10]
    assert store.summary().damage is None


# The journal


def journaled() -> tuple[SimulatedFiles, list[Entry]]:
    """Two logs, of which the journal has everything and the segments may have nothing."""
    files = SimulatedFiles()
    stores = segment_stores(files)
    logs = [stores.open(group, 1) for group in ("one", "two")]
    entries = LogMaker().batches(5)
    for log in logs:
        write(log, hard_state=HardState(1, 1))
    for entry in entries:
        for log in logs:
            log.write(Write(entries=[entry]))
        assert stores.sync(logs) == [None, None]
    assert read_journal(files).writes
    return files, entries


def assert_all_recover(files: SimulatedFiles) -> None:
    stores = segment_stores(files)
    for group in ("one", "two"):
        hard_state = stores.open(group, 1).summary().hard_state
        assert hard_state is not None
        assert hard_state.recovering
    stores.close()
    assert not read_journal(files).is_damaged, "it is said once"


@pytest.mark.parametrize("names", [JOURNAL_NAMES[:1], JOURNAL_NAMES[1:], JOURNAL_NAMES])
@pytest.mark.parametrize("seed", range(5))
def test_a_journal_that_cannot_be_read_makes_every_replica_recover(names: Sequence[str], seed: int) -> None:
    files, _ = journaled()
    for name in names:
        files.spoil(name, 0)
    files.crash(Random(seed))
    assert_all_recover(files)


@pytest.mark.parametrize("name", JOURNAL_NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_a_journal_of_which_a_file_is_missing_makes_every_replica_recover(name: str, seed: int) -> None:
    files, _ = journaled()
    files.remove(name)
    files.sync_directory("")
    files.crash(Random(seed))
    assert_all_recover(files)


def test_a_segment_that_cannot_be_read_does_not_keep_the_journal_from_the_others() -> None:
    files, entries = journaled()
    files.spoil(f"one/{1:020}.log", 0)
    files.restart()
    stores = segment_stores(files)
    assert contents(stores.open("two", 1)) == entries
    assert stores.open("one", 1).summary().damage is not None
