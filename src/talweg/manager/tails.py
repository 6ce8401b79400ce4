"""Waiting for the ends of partitions to move, for many consumers with few requests.

A request that waits at a broker asks for all partitions that anybody waits for there. Who comes later
and waits for one that is asked for already waits along; only for others another request is made.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from talweg.errors import TalwegError
from talweg.http import HttpClient
from talweg.manager.follower import Follower
from talweg.manager.leaders import Leaders
from talweg.protocol.bundles import MSGPACK, AskEnd, AskEnds, Ends, decode_outcomes, encode

POLL_SECONDS: Final = 2.0  # that one request waits at a broker, at most
POLLS_MAX: Final = 8  # at one broker at once; beyond that they are made into one
_RETRY_SECONDS: Final = 0.1  # after one that failed
_GRACE_SECONDS: Final = 5.0  # for an answer, after the time that the broker was to wait


class _Waiter:
    """Somebody who waits for any of these groups to end beyond an offset."""

    __slots__ = ("beyond", "until", "woken")

    def __init__(self, beyond: Mapping[int, int], until: float) -> None:
        self.beyond = beyond
        self.until = until  # by the event loop's clock
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Tails:
    """Lives in one event loop."""

    def __init__(self, follower: Follower, leaders: Leaders, client: HttpClient) -> None:
        self._follower = follower
        self._leaders = leaders
        self._client = client
        self._waiters: dict[int, set[_Waiter]] = {}  # by group
        self._polls: dict[int, dict[asyncio.Task[None], frozenset[int]]] = {}  # by broker; what each asks for
        self.closed = False

    async def wait(self, beyond: Mapping[int, int], seconds_max: float, unless: asyncio.Future[None]) -> None:
        """Wait until one of the groups may end beyond its offset, or `unless` is done. May return early: look
        again."""
        if self.closed:
            return
        waiter = _Waiter(beyond, asyncio.get_running_loop().time() + seconds_max)
        for group in beyond:
            self._waiters.setdefault(group, set()).add(waiter)
        try:
            self._poll(beyond)
            await asyncio.wait(
                {waiter.woken, unless}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for group in beyond:
                waiters = self._waiters[group]
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[group]

    def close(self) -> None:
        """Stop; everybody who waits wakes up."""
        self.closed = True
        for polls in self._polls.values():
            for task in polls:
                task.cancel()
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()

    def _poll(self, groups: Mapping[int, int]) -> None:
        """See to it that every group is asked for at its leader."""
        by_broker: dict[int | None, set[int]] = {}
        for group in groups:
            by_broker.setdefault(self._leaders.by_group.get(group), set()).add(group)
        for broker, wanted in by_broker.items():
            if broker is None:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wake, wanted)
                continue
            polls = self._polls.setdefault(broker, {})
            missing = wanted.difference(*polls.values())
            if not missing:
                continue
            if len(polls) >= POLLS_MAX:
                for task, asked in list(polls.items()):
                    missing |= {group for group in asked if group in self._waiters}
                    del polls[task]
                    task.cancel()
            task = asyncio.get_running_loop().create_task(self._run(broker, frozenset(missing)))
            polls[task] = frozenset(missing)

    async def _run(self, broker: int, groups: frozenset[int]) -> None:
        try:
            woken = await self._ask(broker, groups)
        except TalwegError:
            await asyncio.sleep(_RETRY_SECONDS)
            woken = set(groups)  # whoever waits looks for the leader
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._polls[broker].pop(task, None)
        self._wake(woken)
        # Those who still wait, and nobody asks for them any more. Leaders may have changed meanwhile.
        self._poll({group: 0 for group in groups - woken if group in self._waiters})

    async def _ask(self, broker: int, groups: frozenset[int]) -> set[int]:
        """The groups that may have moved."""
        endpoint = self._follower.endpoint(broker)
        if endpoint is None:
            return set(groups)
        waiters = {group: self._waiters[group] for group in groups if group in self._waiters}
        if not waiters:
            return set()
        asked = [AskEnd(g, None, min(waiter.beyond[g] for waiter in those)) for g, those in waiters.items()]
        longest = max(waiter.until for those in waiters.values() for waiter in those)
        seconds = min(POLL_SECONDS, max(0.001, longest - asyncio.get_running_loop().time()))
        response = await self._client.request(
            endpoint,
            "POST",
            "/bundle/ends",
            encode(AskEnds(asked, int(seconds * 1000) + 1)),
            media_type=MSGPACK,
            seconds_max=seconds + _GRACE_SECONDS,
        )
        outcomes = decode_outcomes(response.body)
        moved = set()
        failed = False
        for each, outcome in zip(asked, outcomes, strict=True):
            if not isinstance(outcome, Ends):
                failed = True
                moved.add(each.group)
            elif outcome.next_offset > each.beyond:
                moved.add(each.group)
        if failed:
            await asyncio.sleep(_RETRY_SECONDS)
        return moved

    def _wake(self, groups: set[int]) -> None:
        for group in groups:
            for waiter in self._waiters.get(group, ()):
                waiter.wake()
