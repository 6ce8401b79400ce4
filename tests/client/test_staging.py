"""What is staged arrives in order and in bounded memory, and is all there or nothing. Without a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from talweg.client.async_transaction import AsyncTransaction
from talweg.client.cluster import Cluster
from talweg.client.producer_settings import read_settings
from talweg.client.staging import BATCH_BYTES, Staging
from talweg.errors import BodyTooLarge, Closed, Unavailable, Unreachable
from talweg.records import Codec, frames

SETTINGS = read_settings(
    acks="all",
    linger_ms=5,
    batch_bytes=1 << 20,
    compression="lz4",
    buffer_bytes=64 << 20,
    max_block_ms=1000,
    delivery_timeout_ms=1000,
    request_timeout_ms=1000,
    message_bytes_max=8 << 20,
)


class Leaders:
    """Leaders of a topic with two partitions, and a manager. They take frames when they may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.refusal: Unavailable | None = None  # of whoever is asked for the topic
        self.sequences: dict[int, list[int]] = {0: [], 1: []}
        self.taken_bytes = 0
        self.body_bytes_max = 16 << 20

    async def fresh_topic(self, topic: str, *, seconds_max: float) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(partitions=[0, 1])

    async def ask_leader(
        self, topic: str, partition: int, method: str, path: str, body: bytes, **settings: Any
    ) -> None:
        await self.open.wait()
        if len(body) > self.body_bytes_max:
            raise BodyTooLarge(f"the body has {len(body)} bytes; {self.body_bytes_max} are allowed")
        for header, _ in frames(body, bytes_max=len(body)):
            self.sequences[partition].append(header.sequence)
        self.taken_bytes += len(body)


def staging_with(leaders: Leaders) -> Staging:
    return Staging(cast(Cluster, leaders), "t", codec=Codec.NONE, seconds_max=10)


def rows(count: int, value_bytes: int) -> Any:
    return pa.record_batch([pa.array([b"x" * value_bytes] * count, pa.binary())], names=["value"])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it looks at tells nobody
        await asyncio.sleep(0.001)


def run(work: Callable[[Leaders], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(30):
            await work(Leaders())

    asyncio.run(within_time())


def test_a_small_batch_does_not_overtake_a_large_one() -> None:
    async def work(leaders: Leaders) -> None:
        staging = staging_with(leaders)
        for _ in range(20):  # the large ones are encoded in threads, and the small ones at once
            await staging.add("t", rows(1, 2 * BATCH_BYTES), 0)
            await staging.add("t", rows(1, 10), 0)
            staging._seal(("t", 0))
        await staging.finish()
        assert leaders.sequences == {0: list(range(40)), 1: []}

    run(work)


def test_what_is_under_way_is_bounded() -> None:
    async def work(leaders: Leaders) -> None:
        leaders.open.clear()
        staging = staging_with(leaders)
        adding = asyncio.create_task(staging.add("t", rows(60, 1 << 20)))
        await until(lambda: staging._sending_bytes > 16 << 20 or adding.done())
        for _ in range(20):  # steps that it could go on with
            await asyncio.sleep(0.001)
        assert not adding.done()
        assert staging._sending_bytes <= 18 << 20
        leaders.open.set()
        await adding
        assert len(await staging.finish()) == 2
        assert leaders.taken_bytes >= 60 << 20

    run(work)


def test_a_message_that_is_too_long_is_told_with_its_topic_and_the_setting() -> None:
    async def work(leaders: Leaders) -> None:
        leaders.body_bytes_max = 2 << 20
        staging = staging_with(leaders)
        await staging.add("t", rows(1, 3 << 20))
        with pytest.raises(BodyTooLarge, match=r"topic t: the body has .* 2097152 are allowed.*--body-max"):
            await staging.finish()

    run(work)


def test_what_was_added_in_part_is_never_committed() -> None:
    async def work(leaders: Leaders) -> None:
        leaders.open.clear()
        transaction = AsyncTransaction(cast(Cluster, leaders), SETTINGS)
        values = [b"x" * 1000] * 60_000
        sending = asyncio.create_task(transaction.send_many("t", values))
        await until(lambda: bool(transaction._staging._sending))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        leaders.open.set()
        for _ in range(2):
            with pytest.raises(Closed, match="adding to it was interrupted"):
                await transaction.commit()
        assert transaction.decided is False

    run(work)


def test_a_cancelled_end_may_be_repeated() -> None:
    async def work(leaders: Leaders) -> None:
        leaders.open.clear()
        staging = staging_with(leaders)
        await staging.add("t", rows(3, 1 << 20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await staging.finish()
        leaders.open.set()
        assert len(await staging.finish()) == 2
        assert leaders.taken_bytes > 3 << 20

    run(work)


def test_messages_that_wait_survive_a_topic_that_is_not_found_yet() -> None:
    async def work(leaders: Leaders) -> None:
        transaction = AsyncTransaction(cast(Cluster, leaders), SETTINGS)
        for _ in range(10_000):  # so many wait to become columns
            await transaction.send("t", b"x", partition=0)
        leaders.refusal = Unreachable("nobody is there")
        with pytest.raises(Unreachable):
            await transaction.send("t", b"one more", partition=0)
        leaders.refusal = None
        await transaction.send("t", b"one more", partition=0)  # as whoever was told would do
        await transaction.stage()
        (gathered,) = transaction._staging._gathered.values()
        assert sum(batch.num_rows for batch in gathered) == 10_001

    run(work)


def test_giving_up_leaves_nothing_running() -> None:
    async def work(leaders: Leaders) -> None:
        leaders.open.clear()
        staging = staging_with(leaders)
        await staging.add("t", rows(4, 1 << 20))
        assert len(await staging.give_up()) == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(Unavailable, match="is over"):
            await staging.finish()

    run(work)
