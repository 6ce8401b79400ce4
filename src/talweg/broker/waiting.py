"""Time limits on what waits for a majority."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from talweg.errors import Undecided

T = TypeVar("T")


async def within(seconds: float, awaited: Awaitable[T]) -> T:
    """Its result; Undecided when it does not come in time: it may still happen."""
    try:
        async with asyncio.timeout(seconds):
            return await awaited
    except TimeoutError:
        raise Undecided(f"no majority has confirmed it within {seconds:g} s; it may be done or not") from None
