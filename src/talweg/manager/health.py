"""Which brokers live, as far as the primary hears: heartbeats that come, and looks that fail. No I/O.

A broker is given the benefit of the doubt when the primary itself begins, or was away: what it did not
listen to, it did not miss.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

_LATE: Final = 0.5  # of a heartbeat's time: how late one may be
_NEVER: Final = float("-inf")


class Health:
    """Belongs to one primary. Times are by the clock that it is given."""

    def __init__(
        self, *, heartbeat_seconds: float, missed_max: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._missed_max = missed_max
        self._clock = clock
        self._listening_since = clock()
        self._heard: dict[int, float] = {}  # when each was last heard of
        self._failed_looks: dict[int, int] = {}  # in a row

    def begin(self, silent_seconds: Mapping[int, float]) -> None:
        """Listen from now on, to brokers that others last heard of so long ago."""
        now = self._clock()
        self._listening_since = now
        self._failed_looks.clear()
        for broker, seconds in silent_seconds.items():
            self._heard[broker] = max(self._heard.get(broker, _NEVER), now - seconds)

    def listen_again(self) -> None:
        """We were away ourselves, and have missed nothing that counts."""
        self._listening_since = self._clock()
        self._failed_looks.clear()

    def hear(self, broker: int) -> None:
        """A heartbeat came."""
        self._heard[broker] = self._clock()
        self._failed_looks.pop(broker, None)

    def look_failed(self, broker: int) -> None:
        """It was asked who it is, and did not say."""
        self._failed_looks[broker] = self._failed_looks.get(broker, 0) + 1

    def look_succeeded(self, broker: int) -> None:
        """It answers, although no heartbeat of it comes."""
        self._failed_looks.pop(broker, None)

    def silent(self, brokers: Iterable[int]) -> list[int]:
        """Those that are late, and worth a look."""
        return [broker for broker in brokers if self._missed(broker) >= 1]

    def misses(self, broker: int) -> bool:
        """Whether it missed so many heartbeats, or looks, in a row that it does not live."""
        return (
            self._missed(broker) >= self._missed_max or self._failed_looks.get(broker, 0) >= self._missed_max
        )

    def is_heard(self, broker: int) -> bool:
        """Whether a heartbeat came since we listen, and not too long ago."""
        return self._heard.get(broker, _NEVER) >= self._listening_since and not self.misses(broker)

    def gone_seconds(self, broker: int) -> float:
        """How long ago it was last heard of, by anybody."""
        return self._clock() - self._heard.get(broker, self._listening_since)

    def _missed(self, broker: int) -> int:
        """Heartbeats in a row that should have come."""
        since = max(self._heard.get(broker, _NEVER), self._listening_since)
        return int((self._clock() - since) / self._heartbeat_seconds - _LATE)
