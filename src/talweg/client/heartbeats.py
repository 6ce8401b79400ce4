"""Signs of life of producers, so that managers list them as active while they live. Nothing rests on them."""

import asyncio
from collections.abc import Callable
from typing import Final

from talweg.client.cluster import Cluster
from talweg.errors import TalwegError
from talweg.http.calls import Answer
from talweg.protocol.plain import ClientHeartbeat

HEARTBEAT_SECONDS: Final = 5.0  # a client that is silent for 30 s is listed as inactive
_ANSWER_SECONDS_MAX: Final = 2.0


class Heartbeats:
    """Sends them from its start until it is stopped. Lives in one event loop."""

    def __init__(
        self, cluster: Cluster, producers: Callable[[], set[int]], seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        self._cluster = cluster
        self._producers = producers  # their numbers, whenever it is time
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Fall silent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            for number in self._producers():
                try:
                    await self._cluster.ask_manager(
                        "POST",
                        "/producer/heartbeat",
                        Answer,
                        ClientHeartbeat(id=number),
                        seconds_max=_ANSWER_SECONDS_MAX,
                    )
                except TalwegError:
                    continue  # it is heard the next time, or its topic is no more
