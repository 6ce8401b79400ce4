"""Bundles of single requests on their way to one broker.

One bundle of a sort is under way to a broker at a time; what arrives meanwhile goes together in the next
one. So single requests cost little when there are many, wait for nothing when there are few, and keep
their order. A bundle that takes long no longer holds up the next, except for the groups that are in it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from talweg.errors import Overloaded, TalwegError, Unavailable, Undecided, Unreachable
from talweg.protocol.bundles import Failed, Outcome, decode_outcomes, failed

ITEMS_MAX: Final = 1000  # in one bundle
BUNDLES_MAX: Final = 8  # under way at once, all but one of them late
_PATIENCE_SECONDS: Final = 0.1  # after which a bundle is late
_ITEM_BYTES: Final = 64  # that each takes beside its frame, about
_LAST_WORDS_SECONDS: Final = 0.5  # that a leader of the past has for its answer: it mostly has one

_STOPPING: Final = failed(Unreachable("the manager is stopping"))

Post = Callable[[bytes, float], Awaitable[bytes]]


class _Waiting(NamedTuple):
    """Something that is to be in a bundle, and who waits for its outcome."""

    item: Any
    group: int
    bytes_: int
    deadline: float  # by the event loop's clock; what is not sent by then is not sent
    outcome: asyncio.Future[Outcome]


class _Bundle:
    """What is under way together."""

    __slots__ = ("groups", "is_late", "waiting")

    def __init__(self, waiting: list[_Waiting]) -> None:
        self.waiting = waiting
        self.groups = {each.group for each in waiting}
        self.is_late = False  # it takes longer than a broker that can go on takes


class Lane:
    """One sort of bundle for one broker. `post` sends a body by a deadline; `encode` makes it of items."""

    def __init__(
        self, post: Post, encode: Callable[[list[Any]], bytes], *, bundle_bytes_max: int, bytes_max: int
    ) -> None:
        self._post = post
        self._encode = encode
        self._bundle_bytes_max = bundle_bytes_max
        self._bytes_max = bytes_max  # of all that wait
        self._bytes = 0
        self._waiting: list[_Waiting] = []
        self._under_way: dict[asyncio.Task[None], _Bundle] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def put(self, item: Any, group: int, deadline: float, bytes_: int = 0) -> asyncio.Future[Outcome]:
        """Its outcome, in time. Never raises: what goes wrong is an outcome too."""
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        if self._closed:
            outcome.set_result(_STOPPING)
            return outcome
        if self._bytes + bytes_ > self._bytes_max:
            outcome.set_result(failed(Overloaded("too much waits to be sent to this broker already")))
            return outcome
        self._bytes += bytes_
        self._waiting.append(_Waiting(item, group, bytes_, deadline, outcome))
        if not self._under_way and len(self._waiting) == 1:
            self._loop.call_soon(self._send_next)  # with whatever else comes in this turn
        return outcome

    def leadership_moved(self, group: int) -> None:
        """Another broker leads the group: whoever waits for this one's answer need not wait much longer."""
        bundles = self._under_way.values()
        left_behind = [each for bundle in bundles for each in bundle.waiting if each.group == group]
        if left_behind:
            outcome = failed(Undecided("leadership moved before the broker's answer came"))
            self._loop.call_later(_LAST_WORDS_SECONDS, self._fail, left_behind, outcome)

    def close(self) -> None:
        """Stop; everybody who waits is told."""
        self._closed = True
        self._fail(self._waiting, _STOPPING)
        self._waiting = []
        for task in self._under_way:
            task.cancel()

    def _send_next(self) -> None:
        """Send a bundle, unless one is under way that is not late, or nothing may go."""
        if not self._waiting or not all(bundle.is_late for bundle in self._under_way.values()):
            return
        if len(self._under_way) >= BUNDLES_MAX:
            return
        waiting = self._cut()
        if not waiting:
            return
        bundle = _Bundle(waiting)
        task = self._loop.create_task(self._send(bundle.waiting))
        self._under_way[task] = bundle
        patience = self._loop.call_later(_PATIENCE_SECONDS, self._be_late, bundle)
        task.add_done_callback(lambda task: self._ended(task, patience))

    def _be_late(self, bundle: _Bundle) -> None:
        # One group without a majority must not hold up all the others on the same broker.
        bundle.is_late = True
        self._send_next()

    def _ended(self, task: asyncio.Task[None], patience: asyncio.TimerHandle) -> None:
        patience.cancel()
        del self._under_way[task]
        self._send_next()

    def _cut(self) -> list[_Waiting]:
        """The next bundle: as much as may go, but nothing before what came earlier for the same group."""
        waiting = self._waiting
        if not self._under_way and len(waiting) <= ITEMS_MAX and self._bytes <= self._bundle_bytes_max:
            self._waiting = []
            self._bytes = 0
            return waiting
        busy = {group for bundle in self._under_way.values() for group in bundle.groups}
        chosen: list[_Waiting] = []
        left: list[_Waiting] = []
        size = 0
        is_full = False
        for each in waiting:
            size += each.bytes_ + _ITEM_BYTES
            is_full |= len(chosen) >= ITEMS_MAX or (bool(chosen) and size > self._bundle_bytes_max)
            if is_full or each.group in busy:
                left.append(each)
            else:
                chosen.append(each)
        self._waiting = left
        self._bytes -= sum(each.bytes_ for each in chosen)
        return chosen

    async def _send(self, bundle: list[_Waiting]) -> None:
        now = self._loop.time()
        if any(each.deadline <= now for each in bundle):
            for each in bundle:
                if each.deadline <= now:
                    _settle(each, failed(Unreachable("the broker was busy for too long")))
            bundle = [each for each in bundle if each.deadline > now]
            if not bundle:
                return
        try:
            body = self._encode([each.item for each in bundle])
            answer = await self._post(body, max(each.deadline for each in bundle))
            outcomes: list[Outcome] = decode_outcomes(answer)
            if len(outcomes) != len(bundle):
                raise Unavailable(f"a broker answered {len(bundle)} requests with {len(outcomes)} outcomes")
            for each, outcome in zip(bundle, outcomes, strict=True):
                if not each.outcome.done():
                    each.outcome.set_result(outcome)
        except TalwegError as error:
            self._fail(bundle, failed(error))
        except ValueError as error:  # what msgspec raises for bytes that are not outcomes
            self._fail(bundle, failed(Unavailable(f"a broker answered what is not understood: {error}")))
        except asyncio.CancelledError:
            self._fail(bundle, failed(Undecided("the manager is stopping")))
            raise

    def _fail(self, bundle: list[_Waiting], outcome: Failed) -> None:
        for each in bundle:
            _settle(each, outcome)


def _settle(waiting: _Waiting, outcome: Outcome) -> None:
    if not waiting.outcome.done():
        waiting.outcome.set_result(outcome)
