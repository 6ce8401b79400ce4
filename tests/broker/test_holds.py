"""A hold that comes alone: retention waits for a consumer wherever it is, and its position stays."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from broker.asking import PARTITION, Asking
from broker.primary import QUICK, Brokers, wait_until
from talweg.errors import BadRequest
from talweg.protocol.batches import Commit, PositionAnswer, PositionsAnswer


class Holding(Asking):
    async def position(self, consumer: str) -> tuple[int | None, int]:
        path = f"{PARTITION}/positions?consumer={consumer}"
        found = await self.client.call(self.endpoint, "GET", path, PositionAnswer, seconds_max=10.0)
        return found.position, found.keep_bytes

    async def holds(self) -> dict[str, int]:
        path = "/v1/topics/lines/consumers"
        found = await self.client.call(self.endpoint, "GET", path, PositionsAnswer, seconds_max=10.0)
        return found.partitions[0].holds


def test_a_hold_moves_nobody_and_is_shown(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Holding(brokers, await brokers.topic())
            await asking.produce(b"one", b"two", b"three")
            await asking.commit(Commit(consumer="reader", offset=2))
            await asking.commit(Commit(consumer="reader", keep_bytes=500))
            await asking.commit(Commit(consumer="new", keep_bytes=700))
            assert await asking.position("reader") == (2, 500)
            assert await asking.position("new") == (0, 700)
            assert await asking.holds() == {"reader": 500, "new": 700}
            await asking.commit(Commit(consumer="reader", keep_bytes=0))
            await asking.commit(Commit(consumer="nobody", keep_bytes=0))
            assert await asking.position("reader") == (2, 0)
            assert await asking.position("nobody") == (None, 0)
            assert await asking.holds() == {"new": 700}
            for nothing in (Commit(consumer="reader"), Commit(consumer="reader", keep_bytes=1, seek=True)):
                with pytest.raises(BadRequest, match="offset: is missing"):
                    await asking.commit(nothing)

    asyncio.run(test())


def test_who_was_overtaken_stays_so_when_it_is_held_for(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Holding(brokers, await brokers.topic(retention_bytes=0))
            replica = brokers.running[0].hosting.partitions[10].group.replica
            await asking.commit(Commit(consumer="late", offset=0))
            for _ in range(2):
                await asking.produce(b"x" * 90_000)
            await wait_until(lambda: replica.start_offset > 0)
            await asking.commit(Commit(consumer="late", keep_bytes=1_000_000))
            # Else it would never learn that it has missed something.
            assert await asking.position("late") == (0, 1_000_000)

    asyncio.run(test())
