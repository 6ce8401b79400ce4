"""The journal: one sync for many small appends, and what a crash finds there. On a simulated disk."""

import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from threading import Thread

import pytest

from storage.conftest import JOURNAL_BYTES, segment_stores
from storage.disk_scenarios import BEFORE, SCENARIOS, Picture, Scenario, base_log, picture
from storage.logs import LogMaker, contents, mixed, snapshot_at, write
from talweg.errors import NewerFormat, StorageError
from talweg.raft import Entry, HardState
from talweg.storage import LogStore, Write
from talweg.storage.journal import Journal, JournalFull
from talweg.storage.journal_format import HEAD_BYTES, JOURNAL_NAMES, Append, read_journal
from talweg.storage.segment_store import SegmentStore
from talweg.testing.disk import PowerCut, SimulatedFile, SimulatedFiles

GROUPS = ("one", "two", "three")
SEEDS = 6


class Logs:
    """Some groups on one disk, and what they hold."""

    def __init__(self, files: SimulatedFiles | None = None) -> None:
        self.files = files or SimulatedFiles()
        self.entries: dict[str, list[Entry]] = {group: [] for group in GROUPS}
        self.makers = {group: LogMaker() for group in GROUPS}
        self.open()

    def open(self) -> None:
        self.files.restart()
        self.stores = segment_stores(self.files)
        self.logs: dict[str, LogStore] = {group: self.stores.open(group, 1) for group in GROUPS}

    def append(self, *groups: str, count: int = 1, value_bytes: int = 20) -> None:
        """The same to each of these groups, without a sync."""
        for group in groups or GROUPS:
            entries = self.makers[group].batches(count, value_bytes)
            self.logs[group].write(Write(entries=mixed(entries)))
            self.entries[group] += entries

    def sync(self, *groups: str) -> None:
        errors = self.stores.sync([self.logs[group] for group in groups or GROUPS])
        assert not any(errors), errors

    def insist(self, *groups: str) -> None:
        """As a driver does: append, and try again what fails. (Of a sync that failed, whoever has the file
        open is told once, by a sync of his own.)"""
        for group in groups or GROUPS:
            entries = self.makers[group].batches(1)
            self.entries[group] += entries
            for _ in range(2):
                with suppress(StorageError):
                    self.logs[group].write(Write(entries=entries))
                    break
        if any(self.stores.sync([self.logs[group] for group in groups or GROUPS])):
            self.sync(*groups)

    def check(self) -> None:
        """Everything is there, and goes on."""
        assert {group: contents(self.logs[group]) for group in GROUPS} == self.entries
        for log in self.logs.values():
            assert log.summary().damage is None
            assert log.summary().hard_state is None or not log.summary().hard_state.recovering

    def crash(self, seed: int) -> None:
        self.files.crash(Random(seed))
        self.open()


def changes_of(files: SimulatedFiles, action: Callable[[], None]) -> list[str]:
    """What an action does to the disk."""
    done: list[str] = []
    acting = files.acting

    def noting(doing: str) -> None:
        done.append(doing)
        acting(doing)

    files.acting = noting  # type: ignore[method-assign]
    try:
        action()
    finally:
        files.acting = acting  # type: ignore[method-assign]
    return done


def test_small_appends_to_many_logs_share_one_sync() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    logs.append()
    assert changes_of(logs.files, logs.sync) == ["write", "sync"]


def test_one_log_alone_needs_no_journal() -> None:
    logs = Logs()
    logs.append("one")
    logs.sync("one")
    logs.append("one")
    assert changes_of(logs.files, lambda: logs.sync("one")) == ["sync", "write"], "the write is a note"
    assert not logs.files.exists(JOURNAL_NAMES[0])


def test_a_large_append_is_not_written_twice() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    logs.append("one", "two")
    logs.append("three", value_bytes=70_000)
    assert changes_of(logs.files, logs.sync).count("sync") == 2  # the journal's and its own
    assert sum(len(logs.files.content(name)) for name in JOURNAL_NAMES if logs.files.exists(name)) < 1_000
    logs.crash(0)
    logs.check()


def test_a_hard_state_is_synced_by_itself() -> None:
    logs = Logs()
    logs.append()
    logs.logs["one"].write(Write(hard_state=HardState(3, 1)))
    logs.sync()
    logs.crash(1)
    logs.check()
    assert logs.logs["one"].summary().hard_state == HardState(3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_journal_has_survives_any_crash(seed: int) -> None:
    random = Random(seed)
    logs = Logs()
    for step in range(60):
        groups = random.sample(GROUPS, k=random.randint(1, 3))
        logs.append(*groups, count=random.randint(1, 3), value_bytes=random.randint(10, 200))
        logs.sync(*groups)
        if random.random() < 0.2:
            logs.stores.checkpoint()
        if random.random() < 0.1:
            logs.crash(seed * 100 + step)
            logs.check()
    logs.crash(seed)
    logs.check()


def test_a_crash_at_any_step_of_a_sync_loses_nothing_of_the_one_before() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            logs = Logs()
            for _ in range(4):
                logs.append()
                logs.sync()
            before = {group: list(entries) for group, entries in logs.entries.items()}
            logs.files.cut_power_after(steps)
            try:
                logs.append(count=3)
                logs.sync()
            except PowerCut:
                logs.crash(seed)
            else:
                assert steps > 3
                return
            for group, entries in before.items():
                found = contents(logs.logs[group])
                assert found[: len(entries)] == entries
        steps += 1


def test_a_full_file_gives_way_to_the_other_and_is_used_again_after_a_checkpoint() -> None:
    logs = Logs()
    turns = 0
    for _ in range(200):
        logs.append()
        logs.sync()
        if logs.stores.checkpoint_due:
            turns += 1
            logs.stores.checkpoint()
            assert not logs.stores.checkpoint_due
    assert turns > 5
    assert all(len(logs.files.content(name)) <= JOURNAL_BYTES for name in JOURNAL_NAMES)
    logs.crash(3)
    logs.check()


def test_without_a_checkpoint_each_log_is_synced_by_itself_in_the_end() -> None:
    logs = Logs()
    for _ in range(100):
        logs.append()
        logs.sync()
    assert logs.stores.checkpoint_due
    assert changes_of(logs.files, lambda: (logs.append(), logs.sync())[0]).count("sync") == len(GROUPS)
    logs.crash(4)
    logs.check()


def test_after_a_clean_end_there_is_nothing_to_recover() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    assert read_journal(logs.files).writes
    logs.stores.close()
    assert not read_journal(logs.files).writes
    logs.crash(5)
    logs.check()


def test_recovering_empties_the_journal() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    logs.crash(6)
    assert not read_journal(logs.files).writes
    logs.crash(7)
    logs.check()


# What was to go must not come back


def journaled(scenario: Scenario) -> tuple[SimulatedFiles, LogStore]:
    """The scenario's log. Its last segments are there by the journal's word alone."""
    files = SimulatedFiles()
    stores = segment_stores(files, journal_least=1)
    store = stores.open("topic-0", 1)
    write(store, hard_state=BEFORE)
    _, entries = base_log()
    for number in range(0, len(entries), 5):
        store.write(Write(entries=mixed(entries[number : number + 5])))
        assert stores.sync([store]) == [None]
    store.save_snapshot(snapshot_at(entries[4], b"fifth"))
    scenario.prepare(store)
    assert read_journal(files).writes
    return files, store


CUTTING = [
    scenario for scenario in SCENARIOS if scenario.name.startswith(("truncate", "install", "drop", "save"))
]


@pytest.mark.parametrize("scenario", CUTTING, ids=lambda scenario: scenario.name)
def test_a_crash_at_any_step_of_a_change_never_brings_back_what_it_took_away(scenario: Scenario) -> None:
    files, store = journaled(scenario)
    old = picture(store)
    scenario.change(store)
    new = picture(store)
    fine: list[Picture] = [
        old,
        new,
        old._replace(hard_state=new.hard_state),
        new._replace(hard_state=old.hard_state),
    ]
    steps = 0
    while True:
        for seed in range(SEEDS):
            files, store = journaled(scenario)
            files.cut_power_after(steps)
            try:
                scenario.change(store)
            except PowerCut:
                files.crash(Random(seed))
            else:
                files.crash(Random(seed))
                assert picture(reopened(files)) == new
                assert steps > 3
                return
            assert picture(reopened(files)) in fine, (steps, seed)
        steps += 1


def reopened(files: SimulatedFiles) -> LogStore:
    files.restart()
    return segment_stores(files, journal_least=1).open("topic-0", 1)


def test_a_group_that_is_deleted_and_made_again_is_empty_whatever_crashes() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            logs = Logs()
            logs.append(count=2)
            logs.sync()
            logs.files.cut_power_after(steps)
            try:
                logs.stores.delete("two")
                again = logs.stores.open("two", 2)
                entries = LogMaker().batches(1, 30)
                write(again, *entries)
            except PowerCut:
                pass
            else:
                logs.files.crash(Random(seed))
                stores = segment_stores(logs.files)
                assert contents(stores.open("two", 2)) == entries
                assert contents(stores.open("one", 1)) == logs.entries["one"]
                assert steps > 5
                return
            logs.files.crash(Random(seed))
            stores = segment_stores(logs.files)
            assert contents(stores.open("one", 1)) == logs.entries["one"]
            if stores.groups().get("two") == 1:
                assert contents(stores.open("two", 1)) == logs.entries["two"]
            else:
                assert contents(stores.open("two", 2)) in ([], LogMaker().batches(1, 30))
        steps += 1


def test_a_group_whose_deletion_is_tried_again_is_whole_or_gone_whatever_crashes() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            logs = Logs()
            logs.append(count=2)
            logs.sync()
            logs.files.fail_next("sync_directory")
            with pytest.raises(StorageError):
                logs.stores.delete("two")
            logs.files.cut_power_after(steps)
            try:
                logs.stores.delete("two")
            except PowerCut:
                logs.files.crash(Random(seed))
            else:
                assert steps > 5
                return
            stores = segment_stores(logs.files)
            if stores.groups().get("two") == 1:
                again = stores.open("two", 1)
                assert again.summary().damage is None
                assert contents(again) == logs.entries["two"], (steps, seed)
        steps += 1


def test_logs_can_be_cut_and_deleted_on_a_full_disk_that_has_no_room_in_the_journal() -> None:
    logs = Logs()
    while not logs.stores.checkpoint_due:
        logs.append()
        logs.sync()
    # The journal's last bytes are taken, and the other file is not free.
    for size in (200, 40, 1):
        while len(logs.files.content(JOURNAL_NAMES[1])) + 3 * (size + 150) < JOURNAL_BYTES:
            logs.append(value_bytes=size + 8)
            logs.sync()
    logs.files.space_bytes = 0
    logs.stores.delete("one")
    assert set(logs.stores.groups()) == {"two", "three"}
    logs.files.crash(Random(1))
    logs.files.space_bytes = None
    stores = segment_stores(logs.files)
    assert contents(stores.open("one", 2)) == []
    assert contents(stores.open("two", 1)) == logs.entries["two"]


class Bare:
    """A journal and two files, without logs."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self.salts = count(1)
        self.begin()
        for path in ("a/1", "b/1"):
            self.files.make_directory(path[0])
            self.files.sync_directory("")
            self.files.open(path).sync()
            self.files.sync_directory(path[0])

    def begin(self) -> None:
        self.journal = Journal(self.files, 230, self.salts.__next__)
        self.journal.recover(lambda: pytest.fail("nothing is damaged"))

    def append(self, path: str, position: int, data: bytes) -> None:
        """To the file and to the journal, which has room for one of them in each of its files."""
        file, doubts = self.files.open(path), self.journal.doubts
        file.write_at(data, position)
        file.close()
        self.journal.append([Append(path, position, [data], doubts)])

    def generations(self) -> dict[str, int]:
        return read_journal(self.files).generations


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("more", [True, False])
def test_a_crash_while_recovering_does_not_bring_back_what_was_forgotten(turns: int, more: bool) -> None:
    steps = 0
    while True:
        bare = Bare()
        for turn in range(turns):  # so that either of the two files is the newer one
            bare.append("a/1", 100 * turn, b"a" * 100)
            if bare.journal.checkpoint_due:
                bare.journal.checkpoint()
        file = bare.files.open("a/1")
        file.sync()
        bare.journal.forget("a")
        assert set(bare.generations().values()) == {turns + 1, turns + 2}, "it stands in the other file"
        file.truncate(0)
        file.sync()
        if more:
            bare.append("b/1", 0, b"b")
        bare.files.cut_power_after(steps)
        try:
            bare.begin()
            done = True
        except PowerCut:
            done = False
        bare.files.crash(Random(steps))
        bare.begin()
        bare.append("b/1", 0, b"b")
        bare.files.crash(Random(steps))
        bare.begin()
        assert bare.files.content("a/1") == b""
        assert bare.files.content("b/1") == b"b"
        if done:
            assert steps > 3
            return
        steps += 1


def test_what_is_forgotten_in_doubt_is_written_again_first() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"first")
    bare.files.fail_next("sync")
    file = bare.files.open("a/1")
    with pytest.raises(OSError, match="error"), bare.journal.sync_of_segments("a/1"):
        file.sync()  # what the kernel had to write is dropped
    file.sync()
    bare.journal.forget("a")
    bare.files.crash(Random(1))
    assert bare.files.content("a/1") == b"first"


def test_a_doubt_that_comes_during_a_checkpoint_outlives_it() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a" * 100)
    bare.append("b/1", 0, b"b" * 100)
    assert bare.journal.checkpoint_due

    def open_and_doubt(path: str, *, create: bool = True) -> SimulatedFile:
        bare.files.open = original  # type: ignore[method-assign]
        with suppress(OSError), bare.journal.sync_of_segments(path):
            raise OSError
        return original(path, create=create)

    original = bare.files.open
    bare.files.open = open_and_doubt  # type: ignore[method-assign]
    bare.journal.checkpoint()
    assert bare.journal.checkpoint_due
    with pytest.raises(JournalFull):  # what the other file holds is needed
        bare.append("b/1", 100, b"b" * 100)
    bare.journal.checkpoint()
    assert not bare.journal.checkpoint_due
    bare.append("b/1", 100, b"b" * 100)


def test_a_checkpoint_waits_for_whoever_may_yet_find_that_a_sync_has_failed() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a" * 100)
    bare.append("b/1", 0, b"b" * 100)
    with bare.journal.sync_of_segments("a/"):
        bare.journal.checkpoint()
        assert bare.journal.checkpoint_due
    with bare.journal.sync_of_segments("b/1"):  # of which the full file says nothing
        bare.journal.checkpoint()
        assert not bare.journal.checkpoint_due


def test_a_settling_that_fails_believes_nothing_the_next_time() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a" * 100)
    bare.append("b/1", 0, b"b" * 100)
    bare.files.fail_next("sync")
    with pytest.raises(OSError, match="error"):
        bare.journal.close()
    bare.journal.close()
    bare.files.crash(Random(1))
    assert bare.files.content("a/1") == b"a" * 100


def test_what_a_settling_that_failed_may_have_dropped_is_not_answered_for() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a")
    doubts = bare.journal.doubts
    bare.files.fail_next("sync")
    with pytest.raises(OSError, match="error"):
        bare.journal.close()
    bare.journal.close()
    with pytest.raises(JournalFull):
        bare.journal.append([Append("a/1", 1, [b"b"], doubts)])
    bare.append("a/1", 1, b"b")


def test_what_is_forgotten_while_a_checkpoint_fails_is_written_again_first() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a" * 100)
    bare.append("b/1", 0, b"b" * 100)
    original = bare.files.open

    class Closing(SimulatedFile):
        """Has failed to be synced. Before the journal hears of it, somebody else is about to cut the file."""

        __slots__ = ()

        def close(self) -> None:
            super().close()
            bare.files.open = original  # type: ignore[method-assign]
            bare.journal.forget("a")

    def open_closing(path: str, *, create: bool = True) -> SimulatedFile:
        original(path, create=create).close()
        return Closing(bare.files, bare.files._inode(path))

    bare.files.open = open_closing  # type: ignore[method-assign]
    bare.files.fail_next("sync")
    with pytest.raises(OSError, match="error"):
        bare.journal.checkpoint()
    bare.files.crash(Random(1))
    bare.begin()
    assert bare.files.content("a/1") == b"a" * 100
    assert bare.files.content("b/1") == b"b" * 100


def test_a_checkpoint_syncs_what_its_turn_speaks_of_and_nothing_else() -> None:
    bare = Bare()
    for turn in range(6):
        bare.append("b/1" if turn % 3 else "a/1", 100 * turn, b"x" * 100)
        if bare.journal.checkpoint_due:
            # And a batch that says so.
            assert changes_of(bare.files, bare.journal.checkpoint) == ["sync", "write", "sync"]


def test_a_turn_is_not_taken_for_settled_because_an_earlier_one_of_its_file_was_synced() -> None:
    bare = Bare()
    bare.append("a/1", 0, b"a" * 100)
    bare.append("b/1", 0, b"b" * 100)
    settling = bare.journal._other

    def open_and_fill(path: str, *, create: bool = True) -> SimulatedFile:
        bare.files.open = original  # type: ignore[method-assign]
        bare.journal.close()
        bare.append("a/1", 100, b"a" * 100)
        while bare.journal._other is not settling or settling.is_settled:
            bare.journal.checkpoint()
            bare.append("a/1", 100, b"a" * 100)
        return original(path, create=create)

    original = bare.files.open
    bare.files.open = open_and_fill  # type: ignore[method-assign]
    bare.journal.checkpoint()
    assert bare.journal.checkpoint_due


def test_what_an_earlier_turn_left_behind_the_last_batch_is_not_read() -> None:
    bare = Bare()
    bare.journal = Journal(bare.files, 3 * 163 + 44, bare.salts.__next__)
    for number in range(7):  # three in a turn, all of one size
        bare.append("a/1", 100 * number, b"%d" % number * 100)
        if number == 4:
            bare.journal.checkpoint()
    found = read_journal(bare.files)
    assert [position for position, _ in found.writes["a/1"]] == [300, 400, 500, 600]
    assert not found.is_damaged


def test_what_was_emptied_is_not_missed_by_what_is_written_next() -> None:
    bare = Bare()
    bare.journal = Journal(bare.files, 1_000, bare.salts.__next__)
    for number in range(5):
        bare.append("a/1", 100 * number, b"a" * 100)
    bare.journal.close()
    bare.append("b/1", 0, b"b")
    found = read_journal(bare.files)
    assert list(found.writes) == ["b/1"]
    assert not found.is_damaged


# Failing disks


def test_a_journal_that_cannot_be_written_is_done_without() -> None:
    for doing in ("write", "sync", "open", "sync_directory"):
        logs = Logs()
        logs.append()
        logs.files.fail_next(doing)
        logs.sync()
        logs.append()
        logs.sync()
        logs.crash(2)
        logs.check()


def test_a_checkpoint_that_fails_is_still_due_and_believes_nothing_the_next_time() -> None:
    logs = Logs()
    while not logs.stores.checkpoint_due:
        logs.append()
        logs.sync()
    logs.files.fail_next("sync", after=1)
    with pytest.raises(StorageError):
        logs.stores.checkpoint()
    assert logs.stores.checkpoint_due
    logs.insist()  # each by itself
    logs.stores.checkpoint()
    assert not logs.stores.checkpoint_due
    for _ in range(100):  # over everything that the journal held until then
        logs.insist()
        if logs.stores.checkpoint_due:
            logs.stores.checkpoint()
    logs.crash(8)
    logs.check()


def test_a_checkpoint_that_fails_may_have_dropped_what_a_log_has_yet_to_sync() -> None:
    logs = Logs()
    while not logs.stores.checkpoint_due:
        logs.append()
        logs.sync()
    logs.append("one")
    logs.files.fail_next("sync")
    with pytest.raises(StorageError):
        logs.stores.checkpoint()
    (error,) = logs.stores.sync([logs.logs["one"]])
    assert isinstance(error, StorageError), "the kernel tells everybody who has the file open"
    logs.sync("one")
    logs.crash(9)
    logs.check()


def test_what_a_failed_checkpoint_may_have_dropped_does_not_go_into_the_journal_later() -> None:
    logs = full_and_begun()
    logs.append("one")
    logs.files.fail_next("sync")
    with pytest.raises(StorageError):
        logs.stores.checkpoint()  # the kernel drops what was appended last, too
    logs.stores.checkpoint()
    assert not logs.stores.checkpoint_due
    logs.insist()
    for _ in range(100):  # over everything that the journal held until then
        logs.insist("two", "three")
        if logs.stores.checkpoint_due:
            logs.stores.checkpoint()
    logs.crash(1)
    logs.check()


def test_when_a_segments_own_sync_fails_the_journal_writes_again_what_it_answers_for() -> None:
    logs = Logs()
    logs.append()
    logs.sync()  # by the journal
    logs.append("one")
    logs.files.fail_next("sync")
    (error,) = logs.stores.sync(
        [logs.logs["one"]]
    )  # by itself: and the kernel drops what the journal had, too
    assert isinstance(error, StorageError)
    assert logs.stores.checkpoint_due
    logs.stores.checkpoint()
    logs.sync("one")
    logs.stores.close()
    logs.crash(9)
    logs.check()


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("doing", ["write", "sync"])
@pytest.mark.parametrize("turn", range(3))
def test_what_a_failed_append_may_have_left_is_never_replayed_over_what_came_later(
    doing: str, drops: bool, turn: int
) -> None:
    for end in ("power cut", "kill", "close"):
        for seed in range(SEEDS):
            logs = Logs()
            logs.files.failed_sync_drops = drops
            for _ in range(40 * turn):
                logs.append()
                logs.sync()
                if logs.stores.checkpoint_due:
                    logs.stores.checkpoint()
            kept = len(logs.entries["one"])
            logs.append(count=2)
            logs.files.fail_next(doing)
            logs.sync()  # each by itself
            logs.logs["one"].write(Write(truncate_from=kept + 1))
            logs.logs["one"].sync()
            logs.entries["one"] = logs.entries["one"][:kept]
            logs.stores.delete("two")
            again = logs.stores.open("two", 2)
            other = LogMaker().batches(1, 30)
            write(again, *other)
            if end == "close":
                logs.stores.close()
            if end == "power cut":
                logs.files.crash(Random(seed))
            logs.files.restart()
            stores = segment_stores(logs.files)
            assert contents(stores.open("one", 1)) == logs.entries["one"]
            assert contents(stores.open("two", 2)) == other
            assert contents(stores.open("three", 1)) == logs.entries["three"]


@pytest.mark.parametrize("after", range(6))
def test_what_follows_an_emptying_that_failed_half_way_is_not_lost(after: int) -> None:
    for seed in range(SEEDS):
        logs = Logs()
        logs.files.failed_sync_drops = False
        logs.append()
        logs.sync()
        logs.files.fail_next("write")
        logs.files.fail_next("sync", after=after)
        with suppress(StorageError):
            logs.stores.delete("two")
        logs.files.fail_no_more()
        for _ in range(3):
            logs.insist("one", "three")
        logs.files.crash(Random(seed))
        stores = segment_stores(logs.files)
        for group in ("one", "three"):
            assert contents(stores.open(group, 1)) == logs.entries[group]


@pytest.mark.parametrize("after", range(8))
def test_what_follows_an_emptying_for_want_of_room_that_failed_half_way_is_not_lost(after: int) -> None:
    for seed in range(SEEDS):
        logs = Logs()
        logs.files.failed_sync_drops = False
        for _ in range(100):  # both files are full, and there was no checkpoint
            logs.append()
            logs.sync()
        logs.files.fail_next("sync", after=after)
        with suppress(StorageError):
            logs.stores.delete("two")
        logs.files.fail_no_more()
        for _ in range(3):
            logs.append("one", "three")
            logs.sync("one", "three")
        logs.files.crash(Random(seed))
        stores = segment_stores(logs.files)
        for group in ("one", "three"):
            assert contents(stores.open(group, 1)) == logs.entries[group]


@pytest.mark.parametrize("after", range(3))
def test_a_log_whose_opening_failed_loses_nothing_that_the_journal_answers_for(after: int) -> None:
    logs = Logs()
    logs.append(count=2)
    logs.sync()
    logs.logs["one"].close()
    logs.files.fail_next("sync", after=after)
    with suppress(StorageError):
        logs.stores.open("one", 1)
    logs.files.fail_no_more()
    logs.logs["one"] = logs.stores.open("one", 1)
    for _ in range(100):  # over everything that the journal held until then
        logs.append("two", "three")
        logs.sync("two", "three")
        if logs.stores.checkpoint_due:
            logs.stores.checkpoint()
    logs.crash(1)
    logs.check()


def test_one_log_that_cannot_be_closed_keeps_the_others_from_nothing() -> None:
    logs = Logs()
    for group in GROUPS:
        logs.append(group)
    logs.files.fail_next("sync")
    with pytest.raises(StorageError):
        logs.stores.close()
    logs.files.crash(Random(1))
    logs.open()
    assert contents(logs.logs["two"]) == logs.entries["two"]
    assert contents(logs.logs["three"]) == logs.entries["three"]


def test_a_store_that_is_closed_tells_so_without_a_lock_that_others_may_wait_for() -> None:
    store = Logs().logs["one"]
    assert isinstance(store, SegmentStore)
    free: list[bool] = []

    def look() -> None:
        thread = Thread(target=lambda: free.append(store._writer.acquire(timeout=5)))
        thread.start()
        thread.join()

    store._on_close = look
    store.close()
    assert free == [True]


def test_a_log_is_not_read_while_the_kernel_may_have_dropped_what_the_journal_answers_for() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    logs.logs["one"].close()
    (path,) = [path for path in read_journal(logs.files).writes if path.startswith("one/")]
    with suppress(OSError), logs.stores._journal.sync_of_segments(path):
        raise OSError
    logs.files.put(path, b"")  # dropped, and then evicted from memory
    logs.logs["one"] = logs.stores.open("one", 1)
    logs.check()


# Damage


def flip_in_batch(logs: Logs, number: int, position: int) -> None:
    """Change a byte of one of the batches in the journal's first file, all of one size."""
    content = logs.files.content(JOURNAL_NAMES[0])
    (body_bytes,) = struct.unpack_from("<I", content, 28)
    logs.files.flip(JOURNAL_NAMES[0], number * (HEAD_BYTES + body_bytes) + position)


def in_three_batches() -> Logs:
    logs = Logs()
    for _ in range(3):
        logs.append()
        logs.sync()
    return logs


def test_a_damaged_first_batch_is_noticed_like_any_other() -> None:
    for position in (0, 5, 13, 21, 25, 29, 33, 41, 60):
        logs = in_three_batches()
        flip_in_batch(logs, 0, position)
        logs.files.crash(Random(1))
        logs.files.restart()
        stores = segment_stores(logs.files)
        for group in GROUPS:
            hard_state = stores.open(group, 1).summary().hard_state
            assert hard_state is not None
            assert hard_state.recovering


def full_and_begun() -> Logs:
    """One of the journal's files is full, and there is a batch in the other."""
    logs = Logs()
    while not logs.stores.checkpoint_due:
        logs.append()
        logs.sync()
    return logs


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_batch_in_the_file_that_is_full_is_noticed(number: int) -> None:
    logs = full_and_begun()
    content = logs.files.content(JOURNAL_NAMES[0])
    (body_bytes,) = struct.unpack_from("<I", content, 28)
    batches = len(content) // (HEAD_BYTES + body_bytes)
    flip_in_batch(logs, number % batches, 60)
    assert read_journal(logs.files).is_damaged


def test_damage_in_a_file_that_nobody_needs_is_none() -> None:
    logs = full_and_begun()
    logs.stores.checkpoint()
    flip_in_batch(logs, 1, 60)
    assert not read_journal(logs.files).is_damaged
    logs.crash(1)
    logs.check()


def test_the_first_batch_of_a_turn_may_be_torn_over_what_nobody_needs() -> None:
    for kept in range(0, 400, 13):  # bytes of the new batch that reach the disk
        logs = full_and_begun()
        logs.stores.checkpoint()
        before = logs.files.content(JOURNAL_NAMES[0])
        while logs.files.content(JOURNAL_NAMES[0]) == before:
            logs.append()
            logs.sync()
        new = logs.files.content(JOURNAL_NAMES[0])
        logs.files.put(JOURNAL_NAMES[0], new[:kept] + before[kept:])
        assert not read_journal(logs.files).is_damaged
        # From the end on, too: sectors are written in any order.
        logs.files.put(JOURNAL_NAMES[0], before[:kept] + new[kept : kept + 13] + before[kept + 13 :])
        assert not read_journal(logs.files).is_damaged


def test_the_last_batch_may_be_torn() -> None:
    logs = in_three_batches()
    flip_in_batch(logs, 2, 40)
    logs.open()  # nothing is lost: the process died, not the machine
    logs.check()
    assert not any(log.summary().hard_state for log in logs.logs.values())


@pytest.mark.parametrize("position", [0, 5, 13, 21, 25, 29, 40, 100])
def test_a_damaged_batch_in_the_middle_makes_every_replica_recover(position: int) -> None:
    logs = in_three_batches()
    flip_in_batch(logs, 1, position)
    logs.files.crash(Random(1))
    logs.files.restart()
    stores = segment_stores(logs.files)
    for group in GROUPS:
        hard_state = stores.open(group, 1).summary().hard_state
        assert hard_state is not None
        assert hard_state.recovering
    stores.close()
    assert not read_journal(logs.files).is_damaged


def test_a_journal_that_cannot_be_read_settles_no_doubt() -> None:
    logs = in_three_batches()
    logs.append("one")
    logs.files.fail_next("sync")
    assert any(logs.stores.sync([logs.logs["one"]]))  # what the journal answers for may be lost, too
    flip_in_batch(logs, 1, 40)
    for _ in range(2):
        with pytest.raises(StorageError, match="journal"):
            logs.stores.checkpoint()
    with pytest.raises(StorageError):
        logs.stores.close()
    logs.files.crash(Random(1))
    stores = segment_stores(logs.files)
    assert all(stores.open(group, 1).summary().hard_state.recovering for group in GROUPS)  # type: ignore[union-attr]


def test_a_crash_while_replicas_are_told_to_recover_is_no_reason_to_forget_it() -> None:
    steps = 0
    while True:
        logs = in_three_batches()
        flip_in_batch(logs, 1, 40)
        logs.files.cut_power_after(steps)
        try:
            segment_stores(logs.files)
        except PowerCut:
            logs.files.crash(Random(steps))
            logs.files.restart()
            stores = segment_stores(logs.files)
            assert all(stores.open(group, 1).summary().hard_state.recovering for group in GROUPS)  # type: ignore[union-attr]
        else:
            assert steps > 5
            return
        steps += 1


def test_a_message_that_looks_like_a_batch_is_none() -> None:
    logs = Logs()
    logs.append()
    logs.sync()
    batch = logs.files.content(JOURNAL_NAMES[0])
    forged = batch[:12] + bytes(8) + batch[20:]  # its salt, which nobody can know
    entry = logs.makers["one"].records(forged)
    logs.logs["one"].write(Write(entries=[entry]))
    logs.entries["one"].append(entry)
    logs.append("two")
    logs.sync("one", "two")
    flip_in_batch(logs, 1, 50)  # the last one is torn
    logs.open()
    assert not logs.logs["one"].summary().hard_state


def test_a_journal_of_a_later_format_is_refused() -> None:
    from talweg.storage import journal_format

    logs = Logs()
    logs.append()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_format, "FORMAT_VERSION", 2)
        logs.sync()
    with pytest.raises(NewerFormat, match="journal-0 has format 2"):
        logs.open()
