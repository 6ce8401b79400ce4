"""Bundles on their way to one broker."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from talweg.errors import Unavailable
from talweg.manager.lanes import ITEMS_MAX, Lane
from talweg.protocol.bundles import Failed, Outcome, Written, encode


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class Broker:
    """Answers a bundle of numbers when it is let, each with itself as the offset."""

    def __init__(self) -> None:
        self.bundles: list[list[int]] = []
        self.gates: list[asyncio.Future[None]] = []
        self.lane = Lane(self._post, self._encode, bundle_bytes_max=1 << 20, bytes_max=1000)
        self.deadline = asyncio.get_running_loop().time() + 60

    def put(self, number: int, group: int = 0, bytes_: int = 0) -> asyncio.Future[Outcome]:
        return self.lane.put(number, group, self.deadline, bytes_)

    async def until(self, bundles: int) -> None:
        async with asyncio.timeout(10):
            while len(self.gates) < bundles:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)

    def _encode(self, items: list[int]) -> bytes:
        self.bundles.append(items)
        return encode(items)

    async def _post(self, body: bytes, deadline: float) -> bytes:
        items = self.bundles[-1]
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return encode([Written(item) for item in items])


def test_what_comes_while_a_bundle_is_under_way_goes_together_in_the_next() -> None:
    async def test() -> None:
        broker = Broker()
        first = broker.put(1)
        await broker.until(1)
        others = [broker.put(number) for number in (2, 3, 4)]
        broker.gates[0].set_result(None)
        assert await first == Written(1)
        await broker.until(2)
        broker.gates[1].set_result(None)
        assert [await other for other in others] == [Written(2), Written(3), Written(4)]
        assert broker.bundles == [[1], [2, 3, 4]]

    run(test())


def test_a_bundle_that_takes_long_holds_up_its_own_groups_only() -> None:
    async def test() -> None:
        broker = Broker()
        broker.put(1, group=7)
        await broker.until(1)
        broker.put(2, group=7)
        other = broker.put(3, group=8)
        await broker.until(2)
        assert broker.bundles == [[1], [3]]
        broker.gates[1].set_result(None)
        assert await other == Written(3)
        broker.gates[0].set_result(None)
        await broker.until(3)
        assert broker.bundles[2] == [2]
        broker.lane.close()

    run(test())


def test_a_bundle_has_so_many_parts_at_most() -> None:
    async def test() -> None:
        broker = Broker()
        broker.put(0)
        await broker.until(1)
        for number in range(ITEMS_MAX + 1):
            broker.put(number)
        broker.gates[0].set_result(None)
        await broker.until(2)
        broker.gates[1].set_result(None)
        await broker.until(3)
        assert [len(bundle) for bundle in broker.bundles] == [1, ITEMS_MAX, 1]
        broker.lane.close()

    run(test())


def test_more_than_may_wait_is_refused() -> None:
    async def test() -> None:
        broker = Broker()
        broker.put(0)
        await broker.until(1)
        broker.put(1, bytes_=900)
        refused = await broker.put(2, bytes_=200)
        assert isinstance(refused, Failed)
        assert refused.code == "overloaded"
        broker.lane.close()

    run(test())


def test_what_goes_wrong_is_the_outcome_of_all_in_the_bundle() -> None:
    async def test() -> None:
        broker = Broker()
        outcomes = [broker.put(1), broker.put(2)]
        await broker.until(1)
        broker.gates[0].set_exception(Unavailable("no answer"))
        for outcome in outcomes:
            failed = await outcome
            assert isinstance(failed, Failed)
            assert failed.code == "unavailable"

    run(test())
