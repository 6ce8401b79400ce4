"""Threads that carry out jobs for the disk, so that no fdatasync ever holds the event loop up.

Small jobs of many groups gather while those before them are made durable, and share the next sync. Large
ones have threads of their own, so that small ones need not wait for them.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from talweg.errors import StorageError, TalwegError
from talweg.storage import LogStore, LogStores

_CHECKPOINT_RETRY_SECONDS = 1.0  # after one that failed

_log = logging.getLogger("talweg.replication")


class Work(Protocol):
    """Something for the disk: first the writes, then what makes them durable."""

    @property
    def store(self) -> LogStore:
        """Where it goes."""

    @property
    def is_small(self) -> bool:
        """Little to write, and a sync of the store is all that `finish` does."""

    def write(self) -> None:
        """Hand the bytes to the operating system."""

    def finish(self) -> None:
        """Return when they are durable."""


WorkDone = Callable[[TalwegError | None], None]  # called from a writer's thread


class Writer:
    """A few threads and two queues. One group's jobs never overlap: the replica gives one at a time."""

    def __init__(self, stores: LogStores, threads: int = 4) -> None:
        self._stores = stores
        self._small: queue.SimpleQueue[Sequence[tuple[Work, WorkDone]] | None] = queue.SimpleQueue()
        self._other: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_checkpointing = False
        self._threads = [
            threading.Thread(target=target, name=f"talweg-writer-{number}", daemon=True)
            for number, target in enumerate([self._run_small, *[self._run_other] * threads])
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, works: Sequence[tuple[Work, WorkDone]]) -> None:
        """Carry them out soon; each `WorkDone` is told how its own went."""
        small: list[tuple[Work, WorkDone]] = []
        for work, done in works:
            if work.is_small:
                small.append((work, done))
            else:
                self._other.put(partial(_carry_out, work, done))
        if small:
            self._small.put(small)  # at once: to wake a thread costs more than most of what it has to do

    def close(self) -> None:
        """Finish what was submitted and stop."""
        self._small.put(None)
        self._threads[0].join()  # first: it may have a checkpoint for the others
        for _ in self._threads[1:]:
            self._other.put(None)
        for thread in self._threads[1:]:
            thread.join()

    def _run_other(self) -> None:
        while (action := self._other.get()) is not None:
            action()

    def _run_small(self) -> None:
        while (first := self._small.get()) is not None:
            together = list(first)
            while not self._small.empty():
                if (more := self._small.get()) is None:
                    self._small.put(None)  # for the next turn
                    break
                together += more
            self._write_together(together)
            if self._stores.checkpoint_due and not self._is_checkpointing:
                self._is_checkpointing = True
                self._other.put(self._checkpoint)

    def _write_together(self, together: Sequence[tuple[Work, WorkDone]]) -> None:
        written: list[tuple[Work, WorkDone]] = []
        for work, done in together:
            if (error := _error_of(work.write)) is None:
                written.append((work, done))
            else:
                done(error)
        try:
            errors = self._stores.sync([work.store for work, _ in written])
        except Exception as failure:  # noqa: BLE001 - see _error_of
            errors = [_unexpected(failure)] * len(written)
        for (_, done), error in zip(written, errors, strict=True):
            done(error)

    def _checkpoint(self) -> None:
        if (error := _error_of(self._stores.checkpoint)) is not None:
            _log.error("housekeeping of the logs failed: %s; trying again", error)
            time.sleep(_CHECKPOINT_RETRY_SECONDS)
        self._is_checkpointing = False


def _carry_out(work: Work, done: WorkDone) -> None:
    done(_error_of(work.write) or _error_of(work.finish))


def _error_of(action: Callable[[], None]) -> TalwegError | None:
    try:
        action()
    except TalwegError as failure:
        return failure
    except Exception as failure:  # noqa: BLE001 - a writer that died would leave the group waiting for ever
        return _unexpected(failure)
    return None


def _unexpected(failure: Exception) -> StorageError:
    return StorageError(f"unexpected: {type(failure).__name__}: {failure}")
