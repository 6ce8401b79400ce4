"""An event loop in a thread of its own, in which the asynchronous core works for callers that block."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import uvloop

from talweg.client.gate import Gate
from talweg.errors import Closed

A = TypeVar("A")
B = TypeVar("B")


class _Job(Generic[A]):
    """Work in the loop that a thread waits for. `over` opens when it is done.

    A gate of ours, and no future of Python's: see there what an interrupt can do to those.
    """

    def __init__(self, work: Coroutine[Any, Any, A], loop: asyncio.AbstractEventLoop) -> None:
        self.over = Gate()
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[A] | None = None

    def start(self) -> None:
        """In the loop."""
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._done)

    def stop(self) -> None:
        """In the loop, behind `start` if that comes at all. Means nothing when it is done."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def _done(self, task: asyncio.Task[A]) -> None:
        if not task.cancelled():
            task.exception()  # looked at: whoever waited may have given up
        self.over.open()

    def result(self) -> A:
        """When it is over: what it returned, or raised."""
        assert self._task is not None
        if self._task.cancelled():
            raise Closed("the client cannot be used: it was closed meanwhile")
        return self._task.result()


class Background:
    """Begins at once; `close` ends it. Belongs to the process that made it: a fork has no thread."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        # A daemon: a program that forgets to close must still be able to end.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, A], seconds_max: float | None = None) -> A:
        """Wait until it is done. Interrupted, or after so long (TimeoutError), it is cancelled."""
        job = _Job(work, self.loop)
        try:
            # Nothing of this is outside: an interrupt (Ctrl-C) may come between any two steps, and what was
            # begun would go on, with nobody to take its result.
            self._give(work, lambda: self.loop.call_soon_threadsafe(job.start))
            if not job.over.wait(seconds_max):
                raise TimeoutError(f"it was not done after {seconds_max:g} s")
        except BaseException:
            self._stop(job)
            raise
        return job.result()

    def begin(self, work: Coroutine[Any, Any, A]) -> concurrent.futures.Future[A]:
        """Let it be done. Raises Closed when this is, or was made before a fork."""
        return self._give(work, lambda: asyncio.run_coroutine_threadsafe(work, self.loop))

    def _give(self, work: Coroutine[Any, Any, Any], give: Callable[[], B]) -> B:
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        why = "it was made before a fork; make one in each process"
        if self._is_ours():
            why = "it is closed"
            with self._lock:  # what is begun after the loop has stopped would never be done
                if not self._closed:
                    return give()
        work.close()
        raise Closed(f"the client cannot be used: {why}")

    def _is_ours(self) -> bool:
        """Looked at before the lock is taken: a thread that a fork does not have may have held it."""
        return os.getpid() == self._process

    def _stop(self, job: "_Job[Any]") -> None:
        if self._is_ours():
            with self._lock:
                if not self._closed:
                    self.loop.call_soon_threadsafe(job.stop)

    def close(self) -> None:
        """End the thread; what is still being done is cancelled. A second call does nothing."""
        if not self._is_ours():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
