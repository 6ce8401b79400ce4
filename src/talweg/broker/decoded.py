"""Batches that single messages were just taken from, kept for the takes that come next.

One for all partitions of a broker, so that its size is bounded however many partitions there are, and
however large messages are. What was read first goes first: takes move on.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from talweg.records import Batch

BYTES_MAX: Final = 64 << 20
PLACES_MAX: Final = 1000  # of one batch; a take beyond them reads it again
# What Python needs for each beside the bytes of the messages, about.
_BATCH_BYTES: Final = 1 << 10
_PLACE_BYTES: Final = 1 << 8

Place = tuple[int, int]  # a group, and an offset in it


class DecodedBatches:
    """Lives in one event loop."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes_ = 0  # at most that, or one batch
        self._by_place: dict[Place, Batch] = {}
        self._kept: deque[tuple[int, list[Place]]] = deque()  # with their bytes; what was kept first, first

    def find(self, group: int, offset: int) -> Batch | None:
        """The batch that holds an offset, if it is kept."""
        return self._by_place.get((group, offset))

    def keep(self, group: int, offset: int, batches: Sequence[Batch]) -> None:
        """Keep batches that follow one another; the first one was read for the sake of `offset`."""
        for batch in batches:
            first = max(batch.header.first_offset, offset)
            stop = min(batch.header.next_offset, first + PLACES_MAX)
            places = [(group, place) for place in range(first, stop)]
            size = batch.header.raw_bytes + _BATCH_BYTES + _PLACE_BYTES * len(places)
            self._by_place.update(dict.fromkeys(places, batch))
            self._kept.append((size, places))
            self.bytes_ += size
            while self.bytes_ > self._bytes_max and len(self._kept) > 1:
                self._drop_first()

    def _drop_first(self) -> None:
        size, places = self._kept.popleft()
        self.bytes_ -= size
        for place in places:
            self._by_place.pop(place, None)  # one that was read again is gone with its first reading
