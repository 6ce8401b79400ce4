"""Threads that carry out jobs for the disk, so that no fdatasync ever holds the event loop up."""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from talweg.errors import StorageError, TalwegError


class Work(Protocol):
    """Something for the disk: first the writes, then what makes them durable."""

    def write(self) -> None:
        """Hand the bytes to the operating system."""

    def finish(self) -> None:
        """Return when they are durable."""


WorkDone = Callable[[TalwegError | None], None]  # called from a writer's thread


class Writer:
    """A few threads and a queue. One group's jobs never overlap: the replica gives one at a time."""

    def __init__(self, threads: int = 4) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, WorkDone] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"talweg-writer-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, done: WorkDone) -> None:
        """Carry it out soon; `done` is told how it went."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Finish what was submitted and stop."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error: TalwegError | None = None
            try:
                work.write()
                work.finish()
            except TalwegError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - a writer that died would leave the group waiting for ever
                error = StorageError(f"unexpected: {type(failure).__name__}: {failure}")
            done(error)
