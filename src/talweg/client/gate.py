"""A gate that one thread opens and another waits at, once."""

import threading


class Gate:
    """Closed until it is opened.

    A bare lock, and no `threading.Event`: an interrupt in the middle of that one's `wait` can leave its inner
    lock held, and whoever opens it then, our event loop, stands still for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let the waiting thread through. Called once."""
        self._lock.release()

    def wait(self, seconds_max: float | None = None) -> bool:
        """Wait until it is open; false after so long. Not to be called again after that was true."""
        if seconds_max is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(seconds_max, 0), threading.TIMEOUT_MAX))
