"""Batches that were given up: kept until somebody looks, so that none is lost in silence."""

from collections import deque
from typing import Final

from talweg.client.delivery import Fate
from talweg.errors import DeliveryFailed, TalwegError

_BATCHES_MAX: Final = 1000  # of more, only the number of messages is kept


class Failures:
    """Told by the event loop that sends; asked by any thread."""

    def __init__(self) -> None:
        self._batches: deque[Fate] = deque()
        self._older = 0  # messages of batches that are not kept
        self._older_error: TalwegError | None = None

    def add(self, batch: Fate) -> None:
        """A batch was given up."""
        self._batches.append(batch)
        while len(self._batches) > _BATCHES_MAX:
            oldest = self._batches.popleft()
            if oldest.unseen:
                self._older += oldest.unseen
                self._older_error = self._older_error or oldest.error

    def take(self) -> DeliveryFailed | None:
        """What failed and nobody looked at, as an error to be raised; it is told once."""
        count, first = self._older, self._older_error
        self._older, self._older_error = 0, None
        while self._batches:
            batch = self._batches.popleft()
            if batch.unseen:
                count += batch.unseen
                first = first or batch.error
        if not count or first is None:
            return None
        some = "1 message was" if count == 1 else f"{count} messages were"
        why = f"{type(first).__name__}: {first}"
        return DeliveryFailed(
            f"{some} accepted and not delivered; the first one because of {why}", count, first
        )
