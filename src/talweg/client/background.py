"""An event loop in a thread of its own, in which the asynchronous core works for callers that block."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from talweg.errors import Unavailable

A = TypeVar("A")


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
        doing = self.begin(work)
        try:
            return doing.result(seconds_max)
        except BaseException:
            doing.cancel()  # means nothing to one that is done
            raise

    def begin(self, work: Coroutine[Any, Any, A]) -> concurrent.futures.Future[A]:
        """Let it be done. Raises Unavailable when this is closed, or was made before a fork."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        with self._lock:  # what is begun after the loop has stopped would never be done
            if not self._closed and os.getpid() == self._process:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        why = "it is closed" if self._closed else "it was made before a fork; make one in each process"
        raise Unavailable(f"the client cannot be used: {why}")

    def close(self) -> None:
        """End the thread; what is still being done is cancelled. A second call does nothing."""
        with self._lock:
            if self._closed or os.getpid() != self._process:
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
