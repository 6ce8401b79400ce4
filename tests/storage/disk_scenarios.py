"""Changes to a log on a simulated disk, to be interrupted at every step by other tests."""

from collections.abc import Callable
from typing import NamedTuple

from storage.conftest import GROUP, segment_stores
from storage.logs import LogMaker, contents, mixed, snapshot_at, together, write
from talweg.raft import Configuration, Entry, HardState, Snapshot
from talweg.storage import LogStore, Write
from talweg.storage.segment_store import SegmentStore
from talweg.testing.disk import SimulatedFiles

BEFORE = HardState(1, 1)
AFTER = HardState(2, 2)


class Picture(NamedTuple):
    """Everything that can be seen of a log."""

    start: tuple[int, int, int]
    entries: tuple[Entry, ...]
    hard_state: HardState | None
    snapshots: tuple[Snapshot | None, ...]


class Scenario(NamedTuple):
    """A change. `prepare` makes the log that it happens to."""

    name: str
    change: Callable[[LogStore], None]
    partly: bool = False  # what it adds may survive in part: entries one by one, the hard state by itself
    prepare: Callable[[LogStore], None] = lambda store: None


def picture(store: LogStore) -> Picture:
    summary = store.summary()
    assert summary.damage is None, summary.damage
    marks = store.snapshots()
    return Picture(
        (summary.start_index, summary.start_term, summary.start_offset),
        tuple(contents(store)),
        summary.hard_state,
        tuple(store.snapshot(mark.index) for mark in marks),
    )


def open_log(files: SimulatedFiles) -> SegmentStore:
    files.restart()
    return segment_stores(files).open(GROUP, 1)


def base_log() -> tuple[LogMaker, list[Entry]]:
    make = LogMaker()
    return make, [make.noop(), *make.batches(29)]


def prepared(scenario: Scenario) -> tuple[SimulatedFiles, SegmentStore]:
    """Three segments and a snapshot, all of it durable."""
    files = SimulatedFiles()
    store = open_log(files)
    _, entries = base_log()
    for number in range(0, len(entries), 5):
        write(store, *entries[number : number + 5])
    write(store, hard_state=BEFORE)
    store.save_snapshot(snapshot_at(entries[4], b"fifth"))
    scenario.prepare(store)
    return files, store


def allowed(scenario: Scenario, old: Picture, new: Picture) -> list[Picture]:
    """What may be found after a crash somewhere in the middle."""
    if not scenario.partly:
        # The hard state has a file of its own: it may have come through although the rest has not.
        return [old, new, old._replace(hard_state=new.hard_state), new._replace(hard_state=old.hard_state)]
    assert new.entries[: len(old.entries)] == old.entries
    return [
        old._replace(entries=new.entries[:count], hard_state=state)
        for count in range(len(old.entries), len(new.entries) + 1)
        for state in (old.hard_state, new.hard_state)
    ]


def _append(count: int, hard_state: HardState | None) -> Callable[[LogStore], None]:
    def change(store: LogStore) -> None:
        make, _ = base_log()
        store.write(Write(entries=mixed(make.batches(count)), hard_state=hard_state))
        store.sync()

    return change


def _append_twice(store: LogStore) -> None:
    make, _ = base_log()
    store.write(Write(entries=together(make.batches(2)), hard_state=HardState(1, 3)))
    store.write(Write(entries=mixed(make.batches(3)), hard_state=HardState(1, 3)))
    store.sync()


def _truncate(from_index: int, count: int) -> Callable[[LogStore], None]:
    def change(store: LogStore) -> None:
        make, _ = base_log()
        other = make.at(from_index - 1, 2, from_index - 2)
        entries = mixed(other.batches(count))
        store.write(Write(truncate_from=from_index, entries=entries, hard_state=AFTER))
        store.sync()

    return change


def _install(index: int, count: int) -> Callable[[LogStore], None]:
    def change(store: LogStore) -> None:
        other = LogMaker(index, 2, 100)
        snapshot = Snapshot(index, 2, Configuration.of([1, 2]), b"installed")
        entries = mixed(other.batches(count))
        store.write(Write(snapshot=snapshot, next_offset=100, entries=entries, hard_state=AFTER))
        store.sync()

    return change


def _save_snapshot(store: LogStore) -> None:
    _, entries = base_log()
    store.save_snapshot(snapshot_at(entries[19], b"twentieth"))


def _prepare_drop(index: int) -> Callable[[LogStore], None]:
    def prepare(store: LogStore) -> None:
        _, entries = base_log()
        store.save_snapshot(snapshot_at(entries[index - 1], b"start"))

    return prepare


def _drop(index: int) -> Callable[[LogStore], None]:
    return lambda store: store.drop_head(index)


def _drop_everything_first(store: LogStore) -> None:
    _prepare_drop(30)(store)
    store.drop_head(30)


SCENARIOS = [
    Scenario("append", _append(3, None), partly=True),
    Scenario("append with a hard state", _append(1, AFTER), partly=True),
    Scenario("append over several segments", _append(40, AFTER), partly=True),
    Scenario("append twice before the sync", _append_twice, partly=True),
    Scenario(
        "append after everything was dropped", _append(20, AFTER), partly=True, prepare=_drop_everything_first
    ),
    Scenario("a hard state alone", _append(0, AFTER), partly=True),
    Scenario("truncate within the last segment", _truncate(29, 2)),
    Scenario("truncate over several segments", _truncate(8, 30)),
    Scenario("truncate without new entries", _truncate(17, 0)),
    Scenario("truncate beyond the end", _truncate(31, 1)),
    Scenario("truncate all that follows a snapshot", _truncate(6, 1)),
    Scenario("install beyond the end", _install(200, 0)),
    Scenario("install with entries", _install(200, 3)),
    Scenario("install inside the log", _install(20, 0)),
    Scenario("install inside the log, with entries", _install(20, 25)),
    Scenario("install at the end of the log", _install(30, 1)),
    Scenario("save a snapshot", _save_snapshot),
    Scenario("drop a part of a segment", _drop(5)),
    Scenario("drop some segments", _drop(20), prepare=_prepare_drop(20)),
    Scenario("drop everything", _drop(30), prepare=_prepare_drop(30)),
]
