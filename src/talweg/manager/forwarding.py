"""Writes that came to a manager that is not the primary, sent on to the one that is."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from talweg.errors import MetadataUnavailable, Unavailable, Unreachable
from talweg.http import Answer, HttpClient, Request
from talweg.manager.follower import Follower
from talweg.manager.lease import LeaseKeeper

A = TypeVar("A", bound=Answer)

FORWARDED: Final = "Talweg-Forwarded"  # what carries this header is not sent on again
_GRACE_SECONDS: Final = 2.0  # for the primary's answer, beyond the time that it has itself

_STAND_IN_SECONDS_MAX: Final = 0.5  # to learn from the store that another is the primary


class Forwarding:
    """Knows the primary by the lease."""

    def __init__(
        self,
        follower: Follower,
        lease: LeaseKeeper,
        client: HttpClient,
        *,
        endpoint: str,
        request_seconds_max: float,
    ) -> None:
        self._follower = follower
        self._lease = lease
        self._client = client
        self._endpoint = endpoint
        self._seconds_max = request_seconds_max + _GRACE_SECONDS
        self._lapse_looked_into = 0.0  # the last lapse of the lease after which we have tried to learn more

    def primary(self) -> str | None:
        """The primary's URL, if that is another manager."""
        lease = self._follower.copy.lease
        if lease is None or lease.endpoint == self._endpoint:
            return None
        return lease.endpoint

    async def stands_in(self) -> bool:
        """Whether this manager was the last primary, lost its lease to nobody but time, and cannot learn
        more, because the store is down. What needs no store it may go on doing."""
        lapsed_at = self._lease.lapsed_at
        if lapsed_at is None:
            return self._lease.holds
        if max(self._follower.looked_at, self._lapse_looked_into) < lapsed_at:
            # After a pause of ours, say: another may be the primary by now. But a store that hangs is not
            # waited for with every message.
            with contextlib.suppress(MetadataUnavailable, TimeoutError):
                async with asyncio.timeout(_STAND_IN_SECONDS_MAX):
                    await self._follower.follow()
            self._lapse_looked_into = lapsed_at
        lease = self._follower.copy.lease
        return lease is not None and lease.endpoint == self._endpoint

    def to_primary(
        self,
        method: str,
        target: str | Callable[[Any], str],
        answer: type[A],
        handler: Callable[[Any], Awaitable[A]],
    ) -> Callable[[Any], Awaitable[A]]:
        """The handler, for the primary; on other managers, what the primary answers. `target` is the path,
        or makes it of the request."""

        async def handle(request: Request[Any, Any]) -> A:
            if self._lease.holds:
                return await handler(request)
            path = target if isinstance(target, str) else target(request)
            return await self.forward(request, method, path, answer)

        return handle

    async def forward(
        self,
        request: Request[Any, Any],
        method: str,
        target: str,
        answer: type[A],
        *,
        lost: type[Unavailable] = Unavailable,
    ) -> A:
        """Ask the primary. Raises what it answers; Unavailable or MetadataUnavailable when there is none;
        and `lost` when it was asked and does not say whether it was done."""
        primary = await self._find_primary()
        if primary is None or request.header(FORWARDED) is not None:
            raise Unavailable("there is no primary now; another manager is about to be")
        try:
            return await self._client.call(
                primary,
                method,
                target,
                answer,
                request.body,
                headers={FORWARDED: "1"},
                seconds_max=self._seconds_max,
            )
        except Unreachable as error:
            raise Unavailable(f"the primary cannot be reached: {error}") from None
        except Unavailable as error:
            if type(error) is Unavailable:
                raise lost(f"through the primary: {error}") from None
            raise

    async def _find_primary(self) -> str | None:
        primary = self.primary()
        if primary is None:
            # Who has just lost the lease, to another maybe, still has itself down as the primary.
            await self._follower.refresh()
            primary = self.primary()
        if primary is None and not self._follower.available:
            raise MetadataUnavailable("the metadata store cannot be reached, so there is no primary")
        return primary
