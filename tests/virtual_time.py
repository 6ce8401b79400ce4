"""An event loop in which nobody waits: what should take a while has taken it."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class _Hurried(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for something that never comes"
        self.now += max(timeout, 0.0)
        return super().select(0)


class _VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._hurried = _Hurried()
        super().__init__(self._hurried)

    def time(self) -> float:
        return self._hurried.now


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run it from second 0 on. Threads and sockets have no place in it."""

    async def main() -> None:
        await test()

    with asyncio.Runner(loop_factory=_VirtualTime) as runner:
        runner.run(main())


def now() -> float:
    """Seconds since it began."""
    return asyncio.get_running_loop().time()
