"""Virtual time: what is to happen and when, and the trace of what did. No clock is ever looked at."""

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

TICK_US = 10_000  # one tick of a broker whose clock runs at the right speed

TRACE_EVENTS = 60  # the last ones, shown when something fails

Action = Callable[[], None]


class Schedule:
    """A queue of actions by time; those of the same moment in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_us = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._numbers = count()

    def after(self, delay_us: int, action: Action) -> None:
        """Do it `delay_us` from now."""
        assert delay_us >= 0
        heapq.heappush(self._queue, (self.now_us + delay_us, next(self._numbers), action))

    def run_next(self) -> None:
        """Go to the next moment and do what is to be done. There is always something: clocks tick."""
        self.now_us, _, action = heapq.heappop(self._queue)
        action()

    @property
    def now_ticks(self) -> float:
        """The time in ticks."""
        return self.now_us / TICK_US


class Trace:
    """What happened, line by line. Equal seeds give equal traces, which the digest shows."""

    def __init__(self, schedule: Schedule, verbose: Callable[[str], None] | None = None) -> None:
        self.steps = 0
        self.recent: deque[str] = deque(maxlen=TRACE_EVENTS)
        self._schedule = schedule
        self._verbose = verbose
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, text: str) -> None:
        """One more thing that happened."""
        self.steps += 1
        line = f"{self.steps:6} {self._schedule.now_us:9} {text}"
        self.recent.append(line)
        self._hash.update(line.encode())
        if self._verbose is not None:
            self._verbose(line)

    @property
    def digest(self) -> str:
        """Of every line so far."""
        return self._hash.hexdigest()
