"""What becomes of messages that were accepted: a future for one of them, and one for many.

A delivery is a batch and a place in it. Batches are acknowledged, not messages: a million deliveries that
nobody asks about cost nothing when the acknowledgement comes.
"""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final

import msgspec

from talweg.client.gate import Gate
from talweg.errors import TalwegError

# Of everybody's callbacks: held for an instant, when one is added or told. `exits` sees to it in forks.
callbacks_lock: Final = threading.Lock()
_log: Final = logging.getLogger("talweg.producer")


class Sent(msgspec.Struct, frozen=True, gc=False):
    """Where a message stands, on disk on a majority of its partition's replicas."""

    topic: str
    partition: int
    offset: int | None  # None with acks=0: nobody waited to hear it
    timestamp: int  # microseconds since 1970


class SentRun(msgspec.Struct, frozen=True, gc=False):
    """Where messages stand that follow one another in a partition."""

    topic: str
    partition: int
    offset: int | None  # of the first one; None with acks=0
    count: int


class Fate(ABC):
    """What becomes of a batch: nothing yet, an offset, or an error. Told by the event loop that sends it."""

    __slots__ = ("_callbacks", "_looked_at", "error", "first_offset", "loop", "partition", "told", "topic")

    def __init__(self, topic: str, partition: int, loop: asyncio.AbstractEventLoop, *, told: bool) -> None:
        self.topic = topic
        self.partition = partition
        self.loop = loop  # that tells: whoever runs in it must not wait for it
        self.told = told  # deliveries are done; from the beginning with acks=0
        self.first_offset: int | None = None
        self.error: TalwegError | None = None
        self._callbacks: list[Callable[[], object]] | None = []  # None: no more is to come
        self._looked_at: set[int] | None = None  # which of its failed messages somebody asked about

    @property
    @abstractmethod
    def count(self) -> int:
        """Messages in it."""

    @property
    def over(self) -> bool:
        """Whether it was delivered, or was given up."""
        return self._callbacks is None

    @abstractmethod
    def timestamp_of(self, index: int) -> int:
        """Of a message, in microseconds since 1970."""

    def end(self, first_offset: int | None, error: TalwegError | None = None) -> None:
        """Tell everybody. Once."""
        with callbacks_lock:
            callbacks, self._callbacks = self._callbacks, None
            if callbacks is None:
                return
            self.first_offset, self.error, self.told = first_offset, error, True
        for callback in callbacks:
            _call(callback)

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call it when this is over, in the event loop that sends; at once if it is."""
        with callbacks_lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        _call(callback)

    def look(self, index: int) -> TalwegError | None:
        """The error, if it has one; the message counts as looked at."""
        if self.error is not None:
            with callbacks_lock:
                if self._looked_at is None:
                    self._looked_at = set()
                self._looked_at.add(index)
        return self.error

    @property
    def unseen(self) -> int:
        """Messages that failed and that nobody asked about."""
        return 0 if self.error is None else self.count - len(self._looked_at or ())


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - it is the user's; the others want to be told, too
        _log.exception("a callback of a delivery failed")


class Awaited:
    """What deliveries of one message and of many have in common: they can be waited for.

    By its contract abstract; msgspec's structs, of which one is made for every message, have a metaclass of
    their own.
    """

    __slots__ = ()

    def _fates(self) -> Iterable[Fate]:
        raise NotImplementedError

    def done(self) -> bool:
        """Whether it is known what became of it."""
        return all(fate.told for fate in self._fates())

    def _wait(self, timeout: float | None) -> None:
        left = [fate for fate in self._fates() if not fate.told]
        if left:
            wait_for(left, timeout)

    async def _wait_in_loop(self) -> None:
        left = [fate for fate in self._fates() if not fate.told]
        if left:
            await wait_in_loop(left)


class Delivery(msgspec.Struct, Awaited, gc=False, eq=False, repr_omit_defaults=True):
    """What becomes of one message: a future. In an event loop, await it."""

    _fate: Fate
    _index: int

    def _fates(self) -> Iterable[Fate]:
        return (self._fate,)

    def result(self, timeout: float | None = None) -> Sent:
        """Wait for it: where the message stands. Raises why it is not, or TimeoutError after so long."""
        self._wait(timeout)
        return self._sent()

    def exception(self, timeout: float | None = None) -> TalwegError | None:
        """Wait for it: why it was not delivered; None if it was."""
        self._wait(timeout)
        return self._fate.look(self._index)

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call it with this delivery once it is done: in the producer's thread, so it must not wait."""
        if self._fate.told:
            _call(lambda: callback(self))
        else:
            self._fate.when_over(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, Sent]:
        yield from self._wait_in_loop().__await__()
        return self._sent()

    def _sent(self) -> Sent:
        fate = self._fate
        error = fate.look(self._index)
        if error is not None:
            raise error.with_traceback(None)
        first = fate.first_offset
        return Sent(
            fate.topic,
            fate.partition,
            None if first is None else first + self._index,
            fate.timestamp_of(self._index),
        )


class Deliveries(Awaited):
    """What becomes of many messages: a future of all of them. In an event loop, await it."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[tuple[Fate, int, int]]) -> None:
        self._runs = tuple(runs)  # in order: batches, the first message in each, and how many of them

    def __len__(self) -> int:
        """How many messages."""
        return sum(count for _, _, count in self._runs)

    def _fates(self) -> Iterable[Fate]:
        return (fate for fate, _, _ in self._runs)

    def result(self, timeout: float | None = None) -> tuple[SentRun, ...]:
        """Wait for all: where they stand. Raises why the first that failed did, or TimeoutError."""
        self._wait(timeout)
        return self._sent()

    def exception(self, timeout: float | None = None) -> TalwegError | None:
        """Wait for all: why the first that failed was not delivered; None if all were."""
        self._wait(timeout)
        return self._look()

    def add_done_callback(self, callback: Callable[["Deliveries"], object]) -> None:
        """Call it with this once all are done: in the producer's thread, so it must not wait."""
        _when_all_over(
            [fate for fate in self._fates() if not fate.told], lambda: _call(lambda: callback(self))
        )

    def __await__(self) -> Generator[Any, None, tuple[SentRun, ...]]:
        yield from self._wait_in_loop().__await__()
        return self._sent()

    def _look(self) -> TalwegError | None:
        errors = [
            error
            for fate, first, count in self._runs
            for error in [fate.look(index) for index in range(first, first + count) if fate.error][:1]
        ]
        return errors[0] if errors else None

    def _sent(self) -> tuple[SentRun, ...]:
        error = self._look()
        if error is not None:
            raise error.with_traceback(None)
        return tuple(
            SentRun(
                fate.topic,
                fate.partition,
                None if fate.first_offset is None else fate.first_offset + first,
                count,
            )
            for fate, first, count in self._runs
        )


def _when_all_over(fates: Sequence[Fate], callback: Callable[[], object]) -> None:
    left = len(fates)
    if not left:
        callback()
        return

    def one_is_over() -> None:
        nonlocal left
        with callbacks_lock:
            left -= 1
            last = not left
        if last:
            callback()

    for fate in fates:
        fate.when_over(one_is_over)


def wait_for(fates: Sequence[Fate], timeout: float | None) -> None:
    """Block until all are over; raises TimeoutError after so many seconds."""
    if fates and asyncio._get_running_loop() is fates[0].loop:
        raise asyncio.InvalidStateError("it is not done, and this event loop is what does it: await it")
    over = Gate()
    _when_all_over(fates, over.open)
    if not over.wait(timeout):
        left = sum(fate.count for fate in fates if not fate.over)
        if left:
            raise TimeoutError(f"after {timeout:g} s it is not known what became of {left} messages")


async def wait_in_loop(fates: Sequence[Fate], seconds_max: float | None = None) -> None:
    """Wait until all are over; raises TimeoutError after so many seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not over.done():
            over.set_result(None)

    _when_all_over(fates, lambda: loop.call_soon_threadsafe(tell))
    try:
        async with asyncio.timeout(seconds_max):
            await over
    except TimeoutError:
        left = sum(fate.count for fate in fates if not fate.over)
        raise TimeoutError(
            f"after {seconds_max:g} s it is not known what became of {left} messages"
        ) from None


def moment() -> float:
    """Seconds of a clock that is the same in every thread, and never goes back."""
    return time.monotonic()
