"""What was read ahead, by partition: readers fill it, whoever consumes empties it, perhaps in another thread.

Partitions that have something take turns.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from talweg.client.message import Place
from talweg.client.offsets import End
from talweg.client.received import ReceivedBatch
from talweg.errors import TalwegError

NOWHERE: Final = -1  # the position of a partition that nobody knows where to begin

Ends = Mapping[Place, End]  # where to stop


class _Shelf:
    """The batches of one partition, in order."""

    __slots__ = ("batches", "error", "incarnation", "jump", "position", "raw_bytes", "wanting")

    def __init__(self, position: int, incarnation: int) -> None:
        self.incarnation = incarnation  # of the partition, as it is read
        self.batches: deque[ReceivedBatch] = deque()
        self.raw_bytes = 0  # of them all
        self.position = position  # the first offset that was not handed out
        self.jump: int | None = None  # where reading goes on, behind the batches; None: without a gap
        self.error: Exception | None = None  # why nothing comes any more
        self.wanting = False  # its reader waits for room

    def is_before(self, end: End | None) -> bool:
        """Whether there is something to be handed out before an end; None: nothing of it is meant. Nor is
        anything of a topic that was made again: what was meant went with the old one."""
        return end is not None and end.incarnation == self.incarnation and self.position < end.offset

    def follow_jump(self) -> None:
        """What lies before it is handed out: it counts."""
        if self.jump is not None and not self.batches:
            self.position, self.jump = self.jump, None


def _may_pass(error: Exception) -> bool:
    return isinstance(error, TalwegError) and error.retriable


class Prefetched:
    """Safe between the threads of its readers and of its consumer. `notify` is called when there is news."""

    def __init__(self, share_bytes: int, more: Callable[[Place], None]) -> None:
        self.share_bytes = share_bytes  # of each partition: who has more does not read ahead
        self.notify: Callable[[], None] = lambda: None
        self.closed = False
        self.news = 0  # how often something came
        self._more = more  # tells a reader that there is room again, or that it may try again
        self._changed: Final = threading.Condition()
        self._shelves: dict[Place, _Shelf] = {}
        self._paused: set[Place] = set()  # also while they are not read
        self._turns: deque[Place] = deque()  # who may have something, whose turn is next first

    # Readers

    def open(self, place: Place, position: int, incarnation: int) -> None:
        """Begin a partition, or begin it anew elsewhere: what was read ahead is dropped."""
        with self._changed:
            self._shelves[place] = _Shelf(position, incarnation)

    def remove(self, place: Place) -> None:
        """It is no longer read. That is news to whoever waits for what was to come before an end."""
        with self._changed:
            self._shelves.pop(place, None)
            self._has_news(place)

    def put(self, place: Place, batches: list[ReceivedBatch]) -> None:
        """They follow what was put before."""
        with self._changed:
            shelf = self._shelves[place]
            shelf.batches += batches
            shelf.raw_bytes += sum(batch.raw_bytes for batch in batches)
            self._has_news(place)

    def fail(self, place: Place, error: Exception) -> None:
        """Nothing comes any more: whoever consumes is told, after what was read before."""
        with self._changed:
            if (shelf := self._shelves.get(place)) is not None:
                shelf.error = error
                self._has_news(place)

    def jump(self, place: Place, offset: int) -> None:
        """What is put next begins there: what lies between is not to be had."""
        with self._changed:
            shelf = self._shelves[place]
            shelf.jump = offset
            shelf.follow_jump()
            self._has_news(place)

    def has_room(self, place: Place) -> bool:
        """Whether to read ahead. If not, `more` is called when there is."""
        with self._changed:
            shelf = self._shelves[place]
            shelf.wanting = shelf.raw_bytes >= self.share_bytes or place in self._paused
            return not shelf.wanting

    def close(self) -> None:
        """Whoever waits is woken: nothing comes any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self.notify()

    def _has_news(self, place: Place) -> None:
        if place not in self._turns:
            self._turns.append(place)
        self.news += 1
        self._changed.notify_all()
        self.notify()

    # Consumers

    def take(self, ends: Ends | None = None, count_max: int | None = None) -> ReceivedBatch | None:
        """The next batch of the partition whose turn it is; None if nothing is there.

        With `ends`, only what lies before them. Raises why a partition cannot be read; it is tried again.
        """
        with self._changed:
            for _ in range(len(self._turns)):
                place = self._turns[0]
                shelf = self._shelves.get(place)
                if shelf is None or not (shelf.batches or shelf.error):
                    self._turns.popleft()
                    continue
                self._turns.rotate(-1)
                if place in self._paused or not (ends is None or shelf.is_before(ends.get(place))):
                    continue
                if shelf.batches:
                    return self._take_from(place, shelf, ends, count_max)
                assert shelf.error is not None
                raise self._told(shelf, shelf.error)
        return None

    def _told(self, shelf: _Shelf, error: Exception) -> Exception:
        """Somebody is told of it, and it is tried again. What may pass is mostly one outage: one of all the
        partitions that wait to tell of it is enough."""
        for place, each in self._shelves.items():
            if each is shelf or (each.error is not None and _may_pass(error) and _may_pass(each.error)):
                each.error = None
                self._more(place)
        return error

    def _take_from(
        self, place: Place, shelf: _Shelf, ends: Ends | None, count_max: int | None
    ) -> ReceivedBatch:
        batch = shelf.batches.popleft()
        shelf.raw_bytes -= batch.raw_bytes
        end = batch.next_offset if ends is None else min(batch.next_offset, ends[place].offset)
        if count_max is not None:
            end = min(end, batch.first_offset + count_max)
        if end < batch.next_offset:
            rest = batch.since(end)
            shelf.batches.appendleft(rest)
            shelf.raw_bytes += rest.raw_bytes
            batch = batch.until(end)
        shelf.position = end
        shelf.follow_jump()
        if shelf.wanting and shelf.raw_bytes < self.share_bytes:
            shelf.wanting = False
            self._more(place)
        return batch

    def put_back(self, batch: ReceivedBatch) -> None:
        """It was taken, and not handed out: it is the next of its partition, unless that is another now."""
        with self._changed:
            shelf = self._shelves.get(batch.place)
            if shelf is None or shelf.incarnation != batch.incarnation:
                return
            if shelf.position != batch.next_offset and not shelf.batches:
                shelf.jump = shelf.position  # there was a gap behind it, which has been followed too early
            shelf.batches.appendleft(batch)
            shelf.raw_bytes += batch.raw_bytes
            shelf.position = batch.first_offset
            self._has_news(batch.place)

    def is_before(self, ends: Ends) -> bool:
        """Whether something before these ends was not taken; what is paused does not count."""
        with self._changed:
            return any(
                shelf.is_before(ends.get(place))
                for place, shelf in self._shelves.items()
                if place not in self._paused
            )

    def wait(self, news: int, seconds_max: float | None) -> bool:
        """Wait until there is more news than that, or it is closed; false when time is up. For threads."""
        with self._changed:
            return self._changed.wait_for(lambda: self.closed or self.news != news, seconds_max)

    def positions(self) -> dict[Place, int]:
        """The first offset of each partition that was not handed out."""
        with self._changed:
            return {place: shelf.position for place, shelf in self._shelves.items()}

    def counts(self) -> dict[Place, int]:
        """How many messages of each partition were read ahead and not handed out."""
        with self._changed:
            return {place: sum(map(len, shelf.batches)) for place, shelf in self._shelves.items()}

    def pause(self, place: Place, paused: bool) -> None:
        """Hand nothing of it out, or do again."""
        with self._changed:
            if paused:
                self._paused.add(place)
            else:
                self._paused.discard(place)
                self._more(place)
                self._has_news(place)
