"""Heartbeats in the background, so that clients are listed as active."""

import threading
from collections.abc import Callable

from talweg.errors import NotFound, TalwegError


class Heartbeat:
    """Says every so often that some producers or consumers live. Knows numbers only, not who they belong to,
    so that a client that was forgotten without being closed can still go."""

    def __init__(self, say: Callable[[int], None], seconds: float) -> None:
        self._say = say
        self._seconds = seconds
        self._numbers: tuple[int, ...] = ()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, number: int) -> None:
        """Begin to speak for a client. Registering it was its first sign of life."""
        self._numbers = (*self._numbers, number)
        if self._thread is None:
            # A daemon: it must not keep a program alive that has nothing else to do.
            self._thread = threading.Thread(target=self._run, name="myqueue heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Fall silent. Does not wait for a heartbeat that is under way."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            for number in self._numbers:
                try:
                    self._say(number)
                except NotFound:
                    # Its topic was deleted. Whoever uses it next will hear of it.
                    self._numbers = tuple(other for other in self._numbers if other != number)
                except TalwegError:
                    continue  # the next one may do
                except RuntimeError:
                    return  # closed
