"""The writer's threads: small jobs share a sync, large ones wait for nobody, and every job is answered."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from server_process import wait_until
from talweg.errors import StorageError, StorageFull, TalwegError
from talweg.raft import Configuration, Entry, HardState, Snapshot
from talweg.replication.job import Job
from talweg.replication.writer import Writer
from talweg.storage import LogStore, MemoryStores, Write

SECONDS_MAX = 10.0


class Stores(MemoryStores):
    """Says what was synced together; a sync takes as long as `gate` is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.synced: list[list[LogStore]] = []
        self.errors: dict[int, TalwegError] = {}  # by place
        self.due = False
        self.checkpoints = 0
        self.checkpoint_error: TalwegError | None = None

    def sync(self, stores: Sequence[LogStore]) -> list[TalwegError | None]:
        self.entered.release()
        assert self.gate.wait(SECONDS_MAX)
        self.synced.append(list(stores))
        return [self.errors.get(place) for place in range(len(stores))]

    @property
    def checkpoint_due(self) -> bool:
        return self.due

    def checkpoint(self) -> None:
        self.checkpoints += 1
        if self.checkpoint_error is not None:
            error, self.checkpoint_error = self.checkpoint_error, None
            raise error
        self.due = False


class Work:
    """A job that notes what happens to it."""

    def __init__(self, store: LogStore, *, is_small: bool = True) -> None:
        self.store = store
        self.is_small = is_small
        self.written = 0
        self.finished = 0
        self.error: Exception | None = None
        self.outcome: list[TalwegError | None] = []
        self.over = threading.Event()

    def write(self) -> None:
        self.written += 1
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        self.finished += 1

    def done(self, error: TalwegError | None) -> None:
        self.outcome.append(error)
        self.over.set()


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def writer(stores: Stores) -> Iterator[Writer]:
    made = Writer(stores, threads=2)
    yield made
    stores.gate.set()
    made.close()


@contextmanager
def a_sync_under_way(writer: Writer, stores: Stores) -> Iterator[None]:
    """Whatever is submitted inside has to wait."""
    stores.gate.clear()
    first = submit(writer, stores.open("first", 1))
    assert stores.entered.acquire(timeout=SECONDS_MAX)
    yield
    stores.gate.set()
    assert first.over.wait(SECONDS_MAX)


def submit(writer: Writer, store: LogStore, **options: bool) -> Work:
    work = Work(store, **options)
    writer.submit([(work, work.done)])
    return work


def logs(stores: Stores, count: int) -> list[LogStore]:
    return [stores.open(f"group-{number}", number + 2) for number in range(count)]


def test_small_jobs_that_come_during_a_sync_share_the_next_one(writer: Writer, stores: Stores) -> None:
    some = logs(stores, 5)
    with a_sync_under_way(writer, stores):
        works = [submit(writer, log) for log in some]
    assert all(work.over.wait(SECONDS_MAX) for work in works)
    assert [work.outcome for work in works] == [[None]] * 5
    assert stores.synced[1:] == [some]
    assert [(work.written, work.finished) for work in works] == [(1, 0)] * 5


def test_a_large_job_waits_for_no_small_one(writer: Writer, stores: Stores) -> None:
    with a_sync_under_way(writer, stores):
        large = submit(writer, logs(stores, 1)[0], is_small=False)
        assert large.over.wait(SECONDS_MAX)
    assert (large.written, large.finished, large.outcome) == (1, 1, [None])


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("error", [StorageFull("full"), ValueError("a bug")])
def test_a_write_that_fails_is_nobody_elses_matter(
    writer: Writer, stores: Stores, error: Exception, is_small: bool
) -> None:
    some = logs(stores, 3)
    with a_sync_under_way(writer, stores):
        works = [Work(log, is_small=is_small) for log in some]
        works[1].error = error
        writer.submit([(work, work.done) for work in works])
    assert all(work.over.wait(SECONDS_MAX) for work in works)
    assert works[0].outcome == works[2].outcome == [None]
    (outcome,) = works[1].outcome
    assert isinstance(outcome, TalwegError)
    assert works[1].finished == 0
    assert some[1] not in [log for synced in stores.synced for log in synced]


def test_each_small_job_is_told_of_its_own_sync(writer: Writer, stores: Stores) -> None:
    failure = StorageError("failing")
    with a_sync_under_way(writer, stores):
        works = [submit(writer, log) for log in logs(stores, 3)]
        stores.errors[2] = failure
    assert all(work.over.wait(SECONDS_MAX) for work in works)
    assert [work.outcome for work in works] == [[None], [None], [failure]]


def test_a_sync_that_breaks_leaves_nobody_waiting(writer: Writer, stores: Stores) -> None:
    def broken(stores: Sequence[LogStore]) -> list[TalwegError | None]:
        raise ValueError("a bug")

    with a_sync_under_way(writer, stores):
        works = [submit(writer, log) for log in logs(stores, 2)]
        stores.sync = broken  # type: ignore[method-assign]
    assert all(work.over.wait(SECONDS_MAX) for work in works)
    assert all(isinstance(work.outcome[0], StorageError) for work in works)


def test_a_checkpoint_is_made_when_it_is_due(writer: Writer, stores: Stores) -> None:
    stores.due = True
    assert submit(writer, logs(stores, 1)[0]).over.wait(SECONDS_MAX)
    wait_until(lambda: stores.checkpoints == 1 and not stores.due, "the checkpoint")


def test_a_checkpoint_that_fails_is_tried_again(
    writer: Writer, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talweg.replication.writer._CHECKPOINT_RETRY_SECONDS", 0.0)
    stores.due, stores.checkpoint_error = True, StorageError("failing")
    log = logs(stores, 1)[0]
    wait_until(
        lambda: submit(writer, log).over.wait(SECONDS_MAX) and not stores.due, "a checkpoint that goes well"
    )
    assert stores.checkpoints >= 2


def test_closing_finishes_what_was_submitted(stores: Stores) -> None:
    writer = Writer(stores, threads=2)
    works = [submit(writer, log, is_small=bool(number % 2)) for number, log in enumerate(logs(stores, 20))]
    writer.close()
    assert [work.outcome for work in works] == [[None]] * 20


def job(*writes: Write, **more: Any) -> Job:
    return Job(MemoryStores().open("group", 1), 1, deque(writes), [], **more)


def test_a_job_is_small_if_it_only_adds_a_little() -> None:
    entry = Entry(1, 1, 2, bytes(30_000))
    snapshot = Snapshot(1, 1, Configuration.of([1]), b"")
    assert job().is_small
    assert job(Write(entries=[entry]), Write(entries=[entry], hard_state=HardState(1))).is_small
    assert not job(Write(entries=[entry, entry]), Write(entries=[entry])).is_small
    assert not job(Write(snapshot=snapshot)).is_small
    assert not job(Write(truncate_from=1, entries=[entry])).is_small
    assert not job(snapshot=snapshot).is_small
    assert not job(drop_head=1).is_small
