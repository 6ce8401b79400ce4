"""What a consumer's caller has in hand: the batch or the messages handed out last, and what is finished with.

What was handed out is finished when the next is asked for. Nothing here costs anything for each message: how
far the caller has gone into a list of messages is asked of the list's own iterator.
"""

from collections.abc import Iterator
from operator import length_hint
from typing import Final

import msgspec

from talweg.client.message import Message, Place
from talweg.client.prefetched import Ends, Prefetched
from talweg.client.received import ReceivedBatch

_LIST_MESSAGES_MAX: Final = 2_000  # made at once: more leave the processor's cache before they are used


class _Held(msgspec.Struct, frozen=True):
    """A batch that was handed out, whole or as messages one by one."""

    batch: ReceivedBatch
    made: list[Message] | None  # None: it was handed out whole
    left: Iterator[Message] | None  # of them: those that were not handed out

    @property
    def position(self) -> int:
        """The first offset that was not handed out."""
        return self.batch.next_offset - (0 if self.left is None else length_hint(self.left))

    @property
    def finished(self) -> int:
        """The first offset that the caller may still be busy with."""
        first = self.batch.first_offset
        return first if self.left is None else max(self.position - 1, first)


class Hand:
    """For one thread; another may ask what is finished."""

    def __init__(self, prefetched: Prefetched, count_max: int | None) -> None:
        self._prefetched = prefetched
        self._count_max = count_max  # of messages in a batch
        self._held: _Held | None = None
        self._finished: dict[Place, int] = {}  # of all partitions that are read

    @property
    def holds_messages(self) -> bool:
        """Whether a loop over messages was left before the last one that is in hand."""
        held = self._held
        return held is not None and held.left is not None and length_hint(held.left) > 0

    def take_batch(self, ends: Ends | None = None) -> ReceivedBatch | None:
        """The next batch, if one is there. What was handed out before is finished with."""
        rest = self._rest()
        self._finish()
        batch = rest or self._prefetched.take(ends, self._count_max)
        if batch is not None:
            self._held = _Held(batch, None, None)
        return batch

    def take_messages(self, ends: Ends | None = None) -> Iterator[Message] | None:
        """The next messages, if some are there. What was handed out before is finished with."""
        held = self._held
        if held is not None and held.left is not None and length_hint(held.left):
            return held.left  # a loop was left, and another begun
        self._finish()
        batch = self._prefetched.take(ends, min(self._count_max or _LIST_MESSAGES_MAX, _LIST_MESSAGES_MAX))
        if batch is None:
            return None
        made = batch.messages()
        left = iter(made)
        self._held = _Held(batch, made, left)
        return left

    def _finish(self) -> None:
        held = self._held
        if held is not None:
            self._finished[held.batch.place] = held.position
            self._held = None

    def _rest(self) -> ReceivedBatch | None:
        """Of the messages in hand, those that were not handed out, as a batch."""
        held = self._held
        if held is None or held.left is None or not length_hint(held.left):
            return None
        return held.batch.since(held.position)

    def move(self, place: Place, offset: int | None) -> None:
        """The partition is read from an offset on, or no more: nothing of what was there is handed out."""
        held = self._held
        if held is not None and held.batch.place == place:
            self._held = None
            if held.made is not None:
                held.made.clear()  # a loop over them ends with this one, and goes on with others
        if offset is None:
            self._finished.pop(place, None)
        else:
            self._finished[place] = offset

    def position(self, place: Place) -> int | None:
        """The first offset that was not handed out, of a partition in hand."""
        held = self._held
        return held.position if held is not None and held.batch.place == place else None

    def count(self, place: Place) -> int:
        """How many messages in hand were not handed out, of a partition."""
        held = self._held
        return held.batch.next_offset - held.position if held is not None and held.batch.place == place else 0

    def finished(self, *, all_handed_out: bool = False) -> dict[Place, int]:
        """By partition: the first offset that is not finished with. For any thread."""
        found = dict(self._finished)
        held = self._held
        if held is not None:
            place = held.batch.place
            # While the hand changes this may be a moment behind, and never ahead.
            found[place] = held.position if all_handed_out else held.finished
        return found
