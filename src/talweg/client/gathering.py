"""Messages that were accepted and are not sent yet: open batches, lanes of batches to partitions, memory.

Every thread that sends works here, and so does the event loop that takes batches away. One lock guards all
of it; it is held for an instant. An interrupt (Ctrl-C) may strike between any two steps, in the thread that
sends: so each change is made by one step that either happened or did not, and what is merely counted is
counted anew when everything is gone.

A lock costs a third of what `send` does, and most producers are used by one thread. So the first thread that
sends is the `owner`, and adds plain messages to `hot` batches without the lock. Whoever seals a batch says so
first and counts its messages then; the owner adds a message first and looks then whether the batch is sealed.
If it is not, the message was there before the count. If it is, `counted` knows, with the lock. When a second
thread comes there is no owner any more: hot batches are sealed, and everybody takes the lock from then on.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from talweg.client.delivery import moment
from talweg.client.draft import Draft
from talweg.client.gathered import Gathered, Lane, Lanes
from talweg.client.producer_settings import ProducerSettings
from talweg.errors import TalwegError

GRANT_BYTES: Final = 16 << 10  # of the buffer, for a batch that is begun; it doubles with each further grant
SHARED: Final = 0  # the number of no thread
_MARK_SECONDS: Final = 0.01  # a batch that is open for longer gets timestamps in steps of this


class Gathering:
    """All topics of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[Lane], None],  # from any thread: there is something to do
    ) -> None:
        self.lock = threading.Lock()
        # Open batches of plain messages in turn, for the short way: without the lock, and with it.
        self.hot: dict[str, Gathered] = {}
        self.shared: dict[str, Gathered] = {}
        self.owner: int | None = None  # the thread that uses `hot`; None: nobody yet; SHARED: nobody any more
        self.topics: dict[str, Lanes] = {}
        self._forgotten: list[Lanes] = []  # topics that were deleted; some of their batches may be left
        self.refusal: TalwegError | None = None  # why nothing is accepted any more
        self.held_bytes = 0  # of the buffer: granted to open batches, used by sealed ones
        self._waiting: list[Callable[[], None]] = []  # for room
        self._settings = settings
        self._loop = loop
        self._wake = wake

    # All of these with the lock held

    def add(
        self,
        lanes: Lanes,
        draft: Draft,
    ) -> tuple[Gathered, int, Gathered | None] | None:
        """Accept a message: its batch, its place, and a batch that it filled. None: there is no room."""
        message_bytes = draft.message_bytes
        lane = lanes.at(draft.key, draft.partition)
        batch, full = lane.open, None
        if batch is not None and batch.room < message_bytes and not self._grant(batch, message_bytes):
            if batch.granted_bytes - batch.room + message_bytes <= self._settings.batch_bytes:
                return None
            self.seal(batch)
            full = batch
            lane = lanes.at(draft.key, draft.partition)
            batch = lane.open
        if batch is None:
            batch = Gathered(lane, self._loop, self._settings)
            if not self._grant(batch, message_bytes):
                if full is not None:
                    self._wake(full.lane)
                return None
            self._wake(lane)  # before it is there: a batch that nobody was woken for would wait for ever
            lane.queue.append(batch)
        if full is not None:
            full.claimed = True  # whoever filled it encodes it
        batch.room -= message_bytes
        index = batch.append(draft)
        if not batch.plain:
            self._cool(batch)
        elif draft.key is None and draft.partition is None:
            (self.shared if self.owner == SHARED else self.hot)[batch.topic] = batch
        return batch, index, full

    def add_columns(self, lane: Lane, columns: Any, columns_bytes: int) -> Gathered | None:
        """Accept a batch of Arrow columns behind everything else in the lane. None: there is no room."""
        if not self._fits(columns_bytes):
            return None
        if lane.open is not None:
            self.seal(lane.open)
        batch = Gathered(lane, self._loop, self._settings, columns)
        batch.granted_bytes = columns_bytes
        batch.claimed = True
        self.held_bytes += columns_bytes
        lane.queue.append(batch)
        return batch

    def enter(self, thread: int) -> None:
        """A thread is about to add something: the first one is the owner, until there is a second."""
        if self.owner is None:
            self.owner = thread
        elif self.owner not in (thread, SHARED):
            for batch in list(self.hot.values()):
                self.seal(batch)
            self.owner = SHARED

    def seal(self, batch: Gathered) -> None:
        """Nothing more is added to it."""
        self._cool(batch)
        batch.sealed = True
        batch.fix_count()
        unused, batch.room = batch.room, 0
        batch.granted_bytes -= unused
        self.held_bytes -= unused

    def seal_all(self) -> list[Gathered]:
        """Seal every batch; those that are not over yet."""
        live = list(self.live())
        for batch in live:
            if not batch.sealed:
                self.seal(batch)
        return live

    def lanes(self) -> Iterator[Lane]:
        """Every lane of every topic."""
        for lanes in (*self.topics.values(), *self._forgotten):
            yield from lanes.lanes

    def forget(self, lanes: Lanes) -> None:
        """The topic is no more. Nothing is added any longer; what is in its lanes goes its way."""
        self.topics.pop(lanes.topic, None)
        for lane in lanes.lanes:
            if lane.open is not None:
                self.seal(lane.open)
        left = [*self._forgotten, lanes]
        self._forgotten = [each for each in left if any(lane.queue for lane in each.lanes)]

    def live(self) -> Iterator[Gathered]:
        """Batches that are not over."""
        for lane in self.lanes():
            yield from lane.queue

    def wait_for_room(self, tell: Callable[[], None]) -> None:
        """Call this once, from any thread, when there may be room."""
        self._waiting.append(tell)

    def wait_no_more(self, tell: Callable[[], None]) -> None:
        """Whoever waited for room has given up."""
        if tell in self._waiting:
            self._waiting.remove(tell)

    def _cool(self, batch: Gathered) -> None:
        for short_way in (self.hot, self.shared):
            if short_way.get(batch.topic) is batch:
                del short_way[batch.topic]

    def _fits(self, wanted_bytes: int) -> bool:
        # What is larger than the whole buffer passes alone: it was checked against its own limit.
        return self.held_bytes + wanted_bytes <= self._settings.buffer_bytes or not any(self.live())

    def _grant(self, batch: Gathered, message_bytes: int) -> bool:
        """Let a batch grow, for this message and some more; whether it may."""
        used_bytes = batch.granted_bytes - batch.room
        most = max(self._settings.batch_bytes, message_bytes if not used_bytes else 0)
        if used_bytes + message_bytes > most:
            return False
        needed_bytes = message_bytes - batch.room
        wanted_bytes = min(max(needed_bytes, batch.granted_bytes, GRANT_BYTES), most - batch.granted_bytes)
        if not self._fits(wanted_bytes):
            wanted_bytes = needed_bytes
            if not self._fits(wanted_bytes):
                return False
        batch.granted_bytes += wanted_bytes
        batch.room += wanted_bytes
        self.held_bytes += wanted_bytes
        return True

    # These take the lock themselves

    def end(self, lane: Lane, first_offset: int | None, error: TalwegError | None = None) -> Gathered:
        """The first batch of a lane is acknowledged, or given up: its memory is free."""
        with self.lock:
            batch = lane.queue.popleft()
            assert batch.sealed, "whoever holds it may still add to it"
            # Counted anew when nothing is left: an interrupt may have come between a step and its count.
            self.held_bytes = self.held_bytes - batch.granted_bytes if any(self.live()) else 0
            waiting, self._waiting = self._waiting, []
            batch.let_go()
        batch.end(first_offset, error)
        for tell in waiting:
            tell()
        return batch

    def mark(self) -> bool:
        """Give open batches that grow slowly timestamps that keep up; whether there are open ones."""
        with self.lock:
            open_ones = [lane.queue[-1] for lane in self.lanes() if lane.open is not None]
            now = moment()
            for batch in open_ones:
                if now - batch.opened_at >= _MARK_SECONDS:
                    batch.mark()
        return bool(open_ones)
