"""Being the primary: taking the lease, keeping it, and noticing at once that it is gone.

Two things keep a primary of the past from doing harm. Its writes carry its epoch, and the store refuses
them. And it measures the lease's time on its own monotonic clock, from before each renewal was sent, so
after a pause it knows that it may have been replaced before it does anything else.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from talweg.errors import LeaseLost, MetadataUnavailable, TalwegError
from talweg.manager.store import StoreCalls
from talweg.metadata import Lease

_RENEWALS: Final = 3  # in the time of one lease: two may fail
_LOOKS: Final = 6  # of one who stands by, in the same time
_RELEASE_SECONDS_MAX: Final = 2.0

_log = logging.getLogger("talweg.manager")


class LeaseKeeper:
    """Takes the lease when it can and keeps it. `begin` runs each time before it counts as held."""

    def __init__(
        self,
        store: StoreCalls,
        *,
        holder: str,
        endpoint: str,
        lease_seconds: float,
        begin: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._holder = holder
        self._endpoint = endpoint
        self._seconds = lease_seconds
        self._begin = begin
        self._clock = clock
        self._lease: Lease | None = None
        self._holds_until = 0.0  # by our clock; first moment at which another may hold it
        self._began = False  # whether a lease of this process's former self may be taken over
        self._acting = False  # whether `begin` ran since the lease was taken, or lapsed

    @property
    def holds(self) -> bool:
        """Whether this manager is the primary, now."""
        return self._acting and self._clock() < self._holds_until

    @property
    def epoch(self) -> int:
        """Of the lease; raises LeaseLost when it is not held."""
        if not self.holds or self._lease is None:
            raise LeaseLost("this manager is not the primary")
        return self._lease.epoch

    @property
    def lapsed_at(self) -> float | None:
        """When, by our clock, a lease that nobody is known to have taken lapsed; None if none did."""
        return None if self._lease is None or self.holds else self._holds_until

    def lose(self) -> None:
        """The store says that another has it."""
        if self._lease is not None:
            _log.warning("this manager is no longer the primary (epoch %d)", self._lease.epoch)
        self._lease = None
        self._acting = False
        self._holds_until = 0.0

    async def run(self) -> None:
        """Take it and keep it, for ever."""
        while True:
            pause_seconds = await self.step()
            await asyncio.sleep(pause_seconds)

    async def step(self) -> float:
        """Take or renew it, if that is possible now; the time to wait until the next step."""
        try:
            if self._lease is not None:
                return await self._renew(self._lease)
            return await self._acquire()
        except LeaseLost:
            self.lose()
            return 0.0
        except MetadataUnavailable:
            if self._acting and not self.holds:
                _log.warning("the lease lapsed: the metadata store cannot be reached")
                self._acting = False
        except TalwegError as error:
            _log.error("the lease cannot be taken: %s", error)
        return self._seconds / _LOOKS

    async def release(self) -> None:
        """Let another be the primary at once."""
        lease = self._lease
        self._lease = None
        self._acting = False
        self._holds_until = 0.0
        if lease is not None:
            try:
                await self._store.call_for_lease(
                    lambda store: store.release_lease(lease.epoch), seconds_max=_RELEASE_SECONDS_MAX
                )
            except TalwegError as error:
                _log.warning("the lease was not given back: %s", error)

    async def _renew(self, lease: Lease) -> float:
        asked_at = self._clock()
        await self._store.call_for_lease(
            lambda store: store.renew_lease(
                lease.epoch, now_us=_now_us(), duration_us=int(self._seconds * 1e6)
            ),
            seconds_max=self._seconds / 2,
        )
        if not self.holds:
            # It had lapsed and nobody took it. What was heard before is old.
            self._acting = False
            await self._begin()
        self._hold(lease, asked_at)
        return self._seconds / _RENEWALS

    async def _acquire(self) -> float:
        held = await self._store.call_for_lease(lambda store: store.lease(), seconds_max=self._seconds / 2)
        left = (held.expires_us - _now_us()) / 1e6 if held is not None else 0.0
        # Who holds it under our name at our start is our former self. Later it is somebody else's mistake.
        if held is not None and left > 0 and (held.holder != self._holder or self._began):
            self._began = True
            return min(left, self._seconds / _LOOKS)
        self._began = True
        asked_at = self._clock()
        lease = await self._store.call_for_lease(
            lambda store: store.acquire_lease(
                self._holder, self._endpoint, now_us=_now_us(), duration_us=int(self._seconds * 1e6)
            ),
            seconds_max=self._seconds / 2,
        )
        if lease is None:
            return self._seconds / _LOOKS
        self._lease = lease
        await self._begin()
        self._hold(lease, asked_at)
        _log.info("this manager is the primary (epoch %d)", lease.epoch)
        return self._seconds / _RENEWALS

    def _hold(self, lease: Lease, asked_at: float) -> None:
        if self._lease is lease:  # not released, or lost, in the meantime
            self._acting = True
            self._holds_until = asked_at + self._seconds


def _now_us() -> int:
    return time.time_ns() // 1000
