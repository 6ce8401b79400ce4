"""What a consumer's caller has in hand: the batch or the messages handed out last, and what is finished with.

What was handed out is finished when the next is asked for. Nothing here costs anything for each message: how
far the caller has gone into a list of messages is asked of the list's own iterator.

There is no lock: a handler of signals may close a consumer in the midst of a take. Whoever takes puts the
batch in hand first and then looks whether it may be there; whoever closes, or moves a partition, says so
first and then looks at what is in hand. So one of the two sees the other.
"""

from collections.abc import Iterator
from operator import length_hint
from typing import Any, Final

import msgspec

from talweg.client.message import Message, Place
from talweg.client.prefetched import Ends, Prefetched
from talweg.client.received import ReceivedBatch

_LIST_MESSAGES_MAX: Final = 2_000  # made at once: more leave the processor's cache before they are used


class _Held(msgspec.Struct, frozen=True):
    """A batch that was handed out, whole or as messages one by one."""

    batch: ReceivedBatch
    made: list[Any]  # its messages; or itself alone, if it is handed out whole
    left: Iterator[Any]  # of them: those that may still be handed out
    each: int  # how many messages one of them is
    withheld: list[int] = msgspec.field(default_factory=list)  # once it has ended: how many of them were not

    @property
    def left_count(self) -> int:
        """How many of its messages may still be handed out."""
        return length_hint(self.left) * self.each

    @property
    def position(self) -> int:
        """The first offset that was not handed out."""
        count = length_hint(self.left)  # before the other is looked at: it may end between the two
        return self.batch.next_offset - (self.withheld[0] if self.withheld else count) * self.each

    @property
    def finished(self) -> int:
        """The first offset that the caller may still be busy with."""
        return max(self.position - self.each, self.batch.first_offset)

    def end(self) -> None:
        """A loop over its messages ends with the one that it is at."""
        # Counted and emptied in one step of the interpreter, in which no other thread takes a message.
        nothing: Any = filter(self.withheld.append, map(length_hint, (self.left,)))
        self.made[:] = nothing


class Hand:
    """For one thread; others may ask what is finished, move a partition, and close it."""

    def __init__(self, prefetched: Prefetched, count_max: int | None) -> None:
        self._prefetched = prefetched
        self._count_max = count_max  # of messages in a batch
        self._held: _Held | None = None
        self._closed = False
        self._incarnations: dict[Place, int] = {}  # of the partitions that are read
        # By partition and incarnation: what was finished of one that is no more means nothing in the next.
        self._finished: dict[tuple[Place, int], int] = {}

    @property
    def holds_messages(self) -> bool:
        """Whether a loop over messages was left before the last one that is in hand."""
        held = self._held
        return held is not None and held.left_count > 0

    def take_batch(self, ends: Ends | None = None) -> ReceivedBatch | None:
        """The next batch, if one is there. What was handed out before is finished with."""
        rest = self._rest()
        self._finish()
        while not self._closed:
            batch = rest or self._prefetched.take(ends, self._count_max)
            if batch is None:
                return None
            made = [batch]
            if self._holds(_Held(batch, made, left := iter(made), each=len(batch))):
                taken = next(left, None)  # None: it was closed, or moved, at this very moment
                if taken is not None:
                    return taken
            rest = None
        return None

    def take_messages(self, ends: Ends | None = None) -> Iterator[Message] | None:
        """The next messages, if some are there. What was handed out before is finished with."""
        held = self._held
        if held is not None and held.left_count:
            return held.left  # a loop was left, and another begun
        self._finish()
        count_max = min(self._count_max or _LIST_MESSAGES_MAX, _LIST_MESSAGES_MAX)
        while not self._closed:
            batch = self._prefetched.take(ends, count_max)
            if batch is None:
                return None
            made = batch.messages()
            left = iter(made)
            if self._holds(_Held(batch, made, left, each=1)):
                return left
        return None

    def _holds(self, held: _Held) -> bool:
        """Put a batch in hand; false if nothing of it may be handed out any more."""
        self._held = held
        if self._closed or self._incarnations.get(held.batch.place) != held.batch.incarnation:
            self._held = None
            return False
        return True

    def _finish(self) -> None:
        held = self._held
        if held is not None:
            self._finished[held.batch.place, held.batch.incarnation] = held.position
            self._held = None

    def _rest(self) -> ReceivedBatch | None:
        """Of the messages in hand, those that were not handed out, as a batch."""
        held = self._held
        return held.batch.since(held.position) if held is not None and held.left_count else None

    def close(self) -> None:
        """Hand out nothing any more: a loop ends with the message that it is at."""
        self._closed = True
        if self._held is not None:
            self._held.end()

    def put_back(self, place: Place) -> None:
        """Hand out no more of a partition for now: what is left of it in hand is the next to be taken."""
        held = self._held
        if held is not None and held.batch.place == place and held.left_count:
            held.end()
            self._prefetched.put_back(held.batch.since(held.position))

    def move(self, place: Place, offset: int | None, incarnation: int = -1) -> None:
        """The partition is read from an offset on, or no more: nothing of what was there is handed out."""
        before = self._incarnations.pop(place, -1)
        held = self._held
        if held is not None and held.batch.place == place:
            self._held = None
            held.end()  # a loop over them goes on with others
        self._finished.pop((place, before), None)
        if offset is not None:
            self._incarnations[place] = incarnation
            self._finished[place, incarnation] = offset

    def position(self, place: Place) -> int | None:
        """The first offset that was not handed out, of a partition in hand."""
        held = self._held
        return held.position if held is not None and held.batch.place == place else None

    def count(self, place: Place) -> int:
        """How many messages in hand were not handed out, of a partition."""
        held = self._held
        return held.left_count if held is not None and held.batch.place == place else 0

    def finished(self, *, all_handed_out: bool = False) -> dict[Place, int]:
        """By partition that is read: the first offset that is not finished with. For any thread."""
        found = {
            place: self._finished[place, incarnation]
            for place, incarnation in self._incarnations.items()
            if (place, incarnation) in self._finished
        }
        held = self._held
        if held is not None and self._incarnations.get(held.batch.place) == held.batch.incarnation:
            # While the hand changes this may be a moment behind, and never ahead.
            found[held.batch.place] = held.position if all_handed_out else held.finished
        return found
