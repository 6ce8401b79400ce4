"""Random histories of a log in segment files, with crashes and failing disks, against a plain list."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.conftest import GROUP, segment_stores
from storage.logs import EVERYTHING, LogMaker, mixed, snapshot_at, together, values
from talweg.errors import OffsetOutOfRange, StorageError
from talweg.raft import Configuration, Entries, Entry, HardState, Snapshot
from talweg.records import Kind, read_header
from talweg.storage import Write
from talweg.testing.disk import SimulatedFiles

DOINGS = ["write", "sync", "truncate", "rename", "remove", "open", "sync_directory"]

Pieces = Callable[[Sequence[Entry]], Entries]
PIECES: st.SearchStrategy[Pieces] = st.sampled_from([list, mixed, together])  # how a write is given entries


class Model(NamedTuple):
    """What a log is."""

    start: tuple[int, int, int] = (0, 0, 0)  # index, term, offset
    entries: tuple[Entry, ...] = ()
    hard_state: HardState | None = None
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def last_index(self) -> int:
        return self.start[0] + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.start[1]

    @property
    def next_offset(self) -> int:
        return self.start[2] + sum(count(entry) for entry in self.entries)

    def until(self, index: int) -> "Model":
        return self._replace(entries=self.entries[: index - self.start[0]])

    def maker(self, term: int) -> LogMaker:
        return LogMaker(self.last_index, term, self.next_offset)


def count(entry: Entry) -> int:
    return read_header(entry.payload).count if entry.kind > 1 else 0


class LogHistory(RuleBasedStateMachine):
    """The model moves only when the store says that it has done something."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles()
        self.open()
        self.model = Model()
        self.since_sync = [self.model]  # what a crash may go back to
        self.sync_failed = False

    @initialize(drops=st.booleans())
    def choose(self, drops: bool) -> None:
        self.files.failed_sync_drops = drops

    def open(self) -> None:
        self.stores = segment_stores(self.files, journal_least=1)
        self.store = self.stores.open(GROUP, 1)

    # Changes

    def insist(self, change: Callable[[], None], after: Model) -> None:
        """As a driver does: what fails is tried again."""
        while True:
            try:
                change()
            except StorageError:
                with suppress(StorageError):
                    assert self.seen() in (self.model, after)
            else:
                return

    def write(self, write: Write, after: Model) -> None:
        self.insist(lambda: self.store.write(write), after)
        self.moved(after)

    def moved(self, after: Model) -> None:
        self.model = after
        self.since_sync.append(after)

    @rule(
        kinds=st.lists(st.integers(0, 9), min_size=1, max_size=12),
        state=st.booleans(),
        size=st.integers(0, 400),
        pieces=PIECES,
    )
    def append(self, kinds: list[int], state: bool, size: int, pieces: Pieces) -> None:
        make = self.model.maker(max(self.model.last_term, 1))
        entries = [self.entry(make, kind, size) for kind in kinds]
        hard_state = HardState(make.term, kinds[0]) if state else None
        after = self.model._replace(entries=(*self.model.entries, *entries))
        if hard_state is not None:
            after = after._replace(hard_state=hard_state)
        self.write(Write(entries=pieces(entries), hard_state=hard_state), after)

    def entry(self, make: LogMaker, kind: int, size: int) -> Entry:
        if kind == 0:
            make.term += 1
            return make.noop()
        if kind == 1:
            return make.configuration(1, 2, make.last_index + 3)
        if kind == 2:
            return make.positions(bytes(size))
        return make.records(*[b"%d" % make.next_offset + bytes(size)] * (kind - 2))

    @rule(term=st.integers(0, 5), voted=st.booleans(), recovering=st.booleans())
    def change_state(self, term: int, voted: bool, recovering: bool) -> None:
        hard_state = HardState(term, 3 if voted else None, recovering)
        self.write(Write(hard_state=hard_state), self.model._replace(hard_state=hard_state))

    @rule(back=st.integers(0, 60), added=st.integers(0, 20), state=st.booleans(), pieces=PIECES)
    def truncate(self, back: int, added: int, state: bool, pieces: Pieces) -> None:
        lowest = self.model.snapshots[-1].index + 1 if self.model.snapshots else self.model.start[0] + 1
        from_index = max(self.model.last_index + 1 - back, lowest)
        kept = self.model.until(from_index - 1)
        make = kept.maker(self.model.last_term + 1)
        entries = make.batches(added)
        hard_state = HardState(make.term) if state else None
        after = kept._replace(entries=(*kept.entries, *entries))
        if hard_state is not None:
            after = after._replace(hard_state=hard_state)
        write = Write(truncate_from=from_index, entries=pieces(entries), hard_state=hard_state)
        self.write(write, after)

    @rule(ahead=st.integers(-30, 100), added=st.integers(0, 20), pieces=PIECES)
    def install(self, ahead: int, added: int, pieces: Pieces) -> None:
        index = max(self.model.last_index + ahead, self.model.start[0] + 1)
        term, offset = self.model.last_term + 1, self.model.next_offset + 7
        snapshot = Snapshot(index, term, Configuration.of([index]), b"installed at %d" % index)
        entries = LogMaker(index, term, offset).batches(added)
        after = self.model._replace(
            start=(index, term, offset), entries=tuple(entries), snapshots=(snapshot,)
        )
        self.write(Write(snapshot=snapshot, next_offset=offset, entries=pieces(entries)), after)

    @precondition(lambda self: self.model.entries)
    @rule(place=st.floats(0, 1))
    def save_snapshot(self, place: float) -> None:
        entry = self.model.entries[int(place * (len(self.model.entries) - 1))]
        snapshot = snapshot_at(entry, b"%d" % len(self.since_sync))
        others = [other for other in self.model.snapshots if other.index != entry.index]
        snapshots = tuple(sorted([*others, snapshot], key=lambda one: one.index))
        after = self.model._replace(snapshots=snapshots)
        self.insist(lambda: self.store.save_snapshot(snapshot), after)
        self.synced(after, log_only=True)

    @precondition(lambda self: self.model.snapshots)
    @rule(place=st.floats(0, 1))
    def drop_head(self, place: float) -> None:
        snapshot = self.model.snapshots[int(place * (len(self.model.snapshots) - 1))]
        after = self.model
        if snapshot.index > self.model.start[0]:
            offset = self.model.until(snapshot.index).next_offset
            after = self.model._replace(
                start=(snapshot.index, snapshot.term, offset),
                entries=self.model.entries[snapshot.index - self.model.start[0] :],
                snapshots=tuple(one for one in self.model.snapshots if one.index >= snapshot.index),
            )
        self.insist(lambda: self.store.drop_head(snapshot.index), after)
        if after != self.model:
            self.synced(after, log_only=True)

    @rule()
    def sync(self) -> None:
        try:
            self.store.sync()
        except StorageError:
            self.sync_failed = True
            return
        self.synced(self.model)

    @rule()
    def sync_by_journal(self) -> None:
        (error,) = self.stores.sync([self.store])
        if error is not None:
            self.sync_failed = True
            return
        self.synced(self.model)

    @rule()
    def checkpoint(self) -> None:
        with suppress(StorageError):
            self.stores.checkpoint()

    def synced(self, model: Model, *, log_only: bool = False) -> None:
        """The log is durable, and so is the hard state unless it was only the log that mattered."""
        states = [one.hard_state for one in self.since_sync] if log_only else []
        self.model = model
        self.sync_failed = False
        self.since_sync = [*(model._replace(hard_state=state) for state in states), model]

    # Trouble

    @rule(doing=st.sampled_from(DOINGS), after=st.integers(0, 6))
    def fail(self, doing: str, after: int) -> None:
        self.files.fail_next(doing, after=after)

    @rule(seed=st.integers(0, 10_000))
    def crash(self, seed: int) -> None:
        self.files.crash(Random(seed))
        self.open()
        found = self.seen()
        assert any(self.may_be(found, step) for step in range(len(self.since_sync)))
        assert found.hard_state in [one.hard_state for one in self.since_sync]
        self.model = found
        self.since_sync = [found]

    def may_be(self, found: Model, step: int) -> bool:
        """One of the steps since the last sync, or (for what was only added) a part of the way to it."""
        after = self.since_sync[step]
        before = self.since_sync[max(step - 1, 0)]
        adds = before.start == after.start and after.entries[: len(before.entries)] == before.entries
        least = len(before.entries) if adds else len(after.entries)
        return (
            (found.start, found.snapshots) == (after.start, after.snapshots)
            and found.entries == after.entries[: len(found.entries)]
            and len(found.entries) >= least
        )

    @precondition(lambda self: not self.sync_failed)  # otherwise nobody can know what the disk has
    @rule()
    def kill(self) -> None:
        """The process dies, the machine does not: nothing is lost. Opening makes it durable."""
        self.files.fail_no_more()
        self.files.restart()
        self.open()
        self.synced(self.model)

    # What is seen

    def seen(self) -> Model:
        summary = self.store.summary()
        assert summary.damage is None, summary.damage
        entries: list[Entry] = []
        while summary.start_index + len(entries) < summary.last_index:
            entries += self.store.read(summary.start_index + len(entries) + 1, 700)
        snapshots = [self.store.snapshot(mark.index) for mark in self.store.snapshots()]
        return Model(
            (summary.start_index, summary.start_term, summary.start_offset),
            tuple(entries),
            summary.hard_state,
            tuple(one for one in snapshots if one is not None),
        )

    @invariant()
    def agrees(self) -> None:
        assert self.seen() == self.model
        summary = self.store.summary()
        model = self.model
        assert (summary.last_index, summary.next_offset) == (model.last_index, model.next_offset)
        runs: list[tuple[int, int]] = []
        for entry in model.entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        assert summary.terms == runs
        assert [index for index, _ in summary.configurations] == [
            entry.index for entry in model.entries if entry.kind == 1
        ]

    @rule(place=st.floats(0, 1), bytes_max=st.integers(0, 3_000))
    def read(self, place: float, bytes_max: int) -> None:
        entries = self.model.entries
        first = int(place * len(entries))
        found = self.store.read(self.model.start[0] + 1 + first, bytes_max)
        assert tuple(found) == entries[first : first + len(found)]
        assert bool(found) == bool(entries[first:])

    @rule(place=st.floats(0, 1), last_place=st.floats(0, 1))
    def read_messages(self, place: float, last_place: float) -> None:
        last = self.model.start[0] + int(last_place * len(self.model.entries))
        span = self.model.next_offset - self.model.start[2]
        offset = self.model.start[2] + int(place * span)
        wanted = [
            entry.payload
            for entry in self.model.entries
            if entry.kind == Kind.RECORDS
            and entry.index <= last
            and read_header(entry.payload).next_offset > offset
        ]
        found = self.store.read_frames(offset, EVERYTHING, last)
        assert values(found) == values(wanted)

    @rule(timestamp=st.integers(0, 30))
    def find_timestamp(self, timestamp: int) -> None:
        timestamp *= 1_000_000
        wanted = self.model.next_offset
        for entry in self.model.entries:
            if entry.kind == Kind.RECORDS and read_header(entry.payload).last_timestamp >= timestamp:
                wanted = read_header(entry.payload).first_offset
                break
        assert self.store.offset_at(timestamp, self.model.last_index) == wanted

    @precondition(lambda self: self.model.start[0])
    @rule()
    def read_below(self) -> None:
        with pytest.raises(OffsetOutOfRange):
            self.store.read(self.model.start[0], EVERYTHING)


LogHistory.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLogHistory = LogHistory.TestCase
