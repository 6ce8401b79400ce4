"""Positions that are deleted, and how many there may be."""

import asyncio
from pathlib import Path

import pytest

from broker.asking import PARTITION, Asking
from broker.primary import Brokers
from talweg.errors import BadRequest, GroupNotFound, NotLeader, TooManyPositions
from talweg.http import Answer
from talweg.protocol.batches import Commit, PositionAnswer
from talweg.protocol.bundles import MSGPACK, Failed, Take, decode_outcomes, encode
from talweg.replication import Position
from talweg.replication.state import POSITIONS_MAX


class Positions(Asking):
    async def of(self, query: str) -> tuple[int | None, int]:
        path = f"{PARTITION}/positions?{query}"
        found = await self.client.call(self.endpoint, "GET", path, PositionAnswer, seconds_max=10.0)
        return found.position, found.keep_bytes


def test_a_position_is_deleted_with_its_hold_and_may_come_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            asking = Positions(brokers, leader)
            await asking.produce(b"one", b"two", b"three")
            await asking.commit(Commit(consumer="gone", offset=2, keep_bytes=500))
            await asking.commit(Commit(consumer_id=7, offset=3))
            await asking.delete_position("consumer=gone")
            await asking.delete_position("consumer=gone")
            await asking.delete_position("consumer=never")
            assert await asking.of("consumer=gone") == (None, 0)
            assert await asking.of("consumer_id=7") == (3, 0)
            await asking.delete_position("consumer_id=7")
            assert await asking.of("consumer_id=7") == (None, 0)
            await asking.commit(Commit(consumer="gone", offset=1))
            assert await asking.of("consumer=gone") == (1, 0)
            for nobody in ("", "consumer=%231", "consumer=a&consumer_id=1"):
                with pytest.raises(BadRequest):
                    await asking.delete_position(nobody)
            with pytest.raises(NotLeader):
                await Positions(brokers, (leader + 1) % 3).delete_position("consumer=gone")
            path = "/v1/topics/other/partitions/0/positions?consumer=gone"
            with pytest.raises(GroupNotFound):
                await asking.client.call(asking.endpoint, "DELETE", path, Answer, seconds_max=10.0)

    asyncio.run(test())


def test_a_partition_keeps_so_many_positions_and_says_how_to_make_room(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Positions(brokers, await brokers.topic())
            await asking.produce(b"one", b"two")
            group = brokers.running[0].hosting.partitions[10].group
            await group.commit_positions([Position(f"reader-{n}", 0) for n in range(POSITIONS_MAX)])
            for new in (Commit(consumer="new", offset=1), Commit(consumer="new", keep_bytes=100)):
                with pytest.raises(TooManyPositions, match="talweg consumer delete"):
                    await asking.commit(new)
            assert await asking.of("consumer=new") == (None, 0)
            answer = await asking.client.request(
                asking.endpoint,
                "POST",
                "/bundle/take",
                encode([Take(10, "#1", 0, 1)]),
                media_type=MSGPACK,
                seconds_max=10.0,
            )
            (refused,) = decode_outcomes(answer.body)
            assert isinstance(refused, Failed)
            assert refused.code == "too_many_positions"
            await asking.commit(Commit(consumer="reader-5", offset=1))  # who is there goes on
            await asking.delete_position("consumer=reader-6")
            await asking.commit(Commit(consumer="new", offset=1))
            assert await asking.of("consumer=new") == (1, 0)

    asyncio.run(test())
