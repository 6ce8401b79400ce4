"""When producers, consumers and brokers were last heard of: kept in memory, written down once a second."""

import asyncio
import logging
import time
from typing import Final

from talweg.errors import LeaseLost, MetadataUnavailable
from talweg.manager.lease import LeaseKeeper
from talweg.manager.store import StoreCalls
from talweg.manager.writer import Writer
from talweg.metadata import MemberKind

FLUSH_SECONDS: Final = 1.0

_log = logging.getLogger("talweg.manager")


class Heartbeats:
    """Belongs to the primary; other managers only read what is written down."""

    def __init__(self, store: StoreCalls, lease: LeaseKeeper, writer: Writer) -> None:
        self._store = store
        self._lease = lease
        self._writer = writer
        self._heard: dict[MemberKind, dict[int, int]] = {kind: {} for kind in MemberKind}  # microseconds
        self._unwritten: dict[MemberKind, set[int]] = {kind: set() for kind in MemberKind}

    def hear(self, kind: MemberKind, number: int) -> None:
        """It lives."""
        self._heard[kind][number] = time.time_ns() // 1000
        self._unwritten[kind].add(number)

    async def last(self, kind: MemberKind, at_least: dict[int, int]) -> dict[int, int]:
        """When each was last heard of, in microseconds. `at_least` is what is known in any case; beyond
        that, what the store says, if it can be asked, and what was heard since."""
        try:
            written = await self._store.call(lambda store: store.heartbeats(kind))
        except MetadataUnavailable:
            written = {}
        heard = self._heard[kind] if self._lease.holds else {}
        return {n: max(at, written.get(n, 0), heard.get(n, 0)) for n, at in at_least.items()}

    async def run(self) -> None:
        """Write down what was heard, for ever."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if not self._lease.holds:
                continue
            for kind in MemberKind:
                await self._flush(kind)

    async def _flush(self, kind: MemberKind) -> None:
        numbers = self._unwritten[kind]
        if not numbers:
            return
        self._unwritten[kind] = set()
        at_us = time.time_ns() // 1000
        try:
            await self._writer.note(
                lambda store, epoch: store.record_heartbeats(kind, numbers, at_us=at_us, epoch=epoch)
            )
        except (LeaseLost, MetadataUnavailable):
            self._unwritten[kind] |= numbers
