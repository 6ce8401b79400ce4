"""Tells brokers that there is something new for them, so that it does not wait for their next heartbeat."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from talweg.errors import TalwegError
from talweg.http import Answer, HttpClient
from talweg.manager.follower import Follower
from talweg.metadata import BrokerStatus

_NUDGE_SECONDS_MAX: Final = 1.0


class Nudging:
    """At most one nudge to a broker is under way, and one more is remembered."""

    def __init__(self, follower: Follower, client: HttpClient) -> None:
        self._follower = follower
        self._client = client
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()

    def nudge_all(self) -> None:
        """Nudge every broker that may listen."""
        brokers = self._follower.copy.brokers.values()
        self.nudge(broker.id for broker in brokers if broker.status is not BrokerStatus.REMOVED)

    def nudge(self, brokers: Iterable[int]) -> None:
        """Nudge these. Nobody waits for it: a nudge that is lost costs a second."""
        for broker in brokers:
            if broker in self._under_way:
                self._again.add(broker)
            else:
                self._under_way[broker] = asyncio.get_running_loop().create_task(self._run(broker))

    def close(self) -> None:
        """Stop."""
        for task in self._under_way.values():
            task.cancel()

    async def _run(self, broker: int) -> None:
        try:
            while True:
                self._again.discard(broker)
                endpoint = self._follower.endpoint(broker)
                if endpoint is not None:
                    with contextlib.suppress(TalwegError):
                        await self._client.call(
                            endpoint, "POST", "/nudge", Answer, seconds_max=_NUDGE_SECONDS_MAX
                        )
                if broker not in self._again:
                    return
        finally:
            del self._under_way[broker]
