"""Changes of the metadata, by the primary alone."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from talweg.errors import LeaseLost
from talweg.manager.follower import Follower
from talweg.manager.lease import LeaseKeeper
from talweg.manager.store import StoreCalls
from talweg.metadata import MetadataStore

T = TypeVar("T")


class Writer:
    """Writes under the lease's epoch, so that a primary of the past writes nothing."""

    def __init__(self, store: StoreCalls, lease: LeaseKeeper, follower: Follower) -> None:
        self._store = store
        self._lease = lease
        self._follower = follower
        # Held while something is decided from the copy and written: two decisions on where partitions go
        # would otherwise not know of each other.
        self.deciding = asyncio.Lock()

    async def write(self, change: Callable[[MetadataStore, int], T]) -> T:
        """Make a change, given the store and the epoch, and have it in the copy.

        Raises LeaseLost when nothing was written, MetadataUnavailable when that is not known, and what the
        store raises.
        """
        epoch = self._lease.epoch
        try:
            written = await self._store.call(lambda store: change(store, epoch))
        except LeaseLost:
            self._lease.lose()
            raise
        await self._follower.follow()
        return written

    async def note(self, change: Callable[[MetadataStore, int], None]) -> None:
        """The same for what has no version and is not followed: heartbeats."""
        epoch = self._lease.epoch
        try:
            await self._store.call(lambda store: change(store, epoch))
        except LeaseLost:
            self._lease.lose()
            raise
