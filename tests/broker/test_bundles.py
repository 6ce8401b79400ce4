"""Single messages in bundles: each is written, taken or refused for itself."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.primary import QUICK, Brokers, wait_until
from records.samples import empties
from talweg.broker.waiting import within
from talweg.errors import BadRequest, Undecided
from talweg.protocol.bundles import (
    MSGPACK,
    Append,
    AskEnd,
    AskEnds,
    Empty,
    Ends,
    Failed,
    Moved,
    Outcome,
    StartAt,
    Started,
    Take,
    Taken,
    Written,
    decode_outcomes,
    encode,
)
from talweg.records import MESSAGES_MAX, Codec, encode_values


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def ask(
    brokers: Brokers, number: int, name: str, parts: Sequence[msgspec.Struct] | AskEnds
) -> list[Outcome]:
    response = await brokers.client.request(
        brokers.running[number].endpoint,
        "POST",
        f"/bundle/{name}",
        encode(parts),
        media_type=MSGPACK,
        seconds_max=10.0,
    )
    return decode_outcomes(response.body)


def one(value: bytes, producer_id: int = -1, sequence: int = -1) -> bytes:
    return encode_values([value], timestamp=5, codec=Codec.NONE, producer_id=producer_id, sequence=sequence)


def value_of(outcome: Outcome) -> bytes | None:
    assert isinstance(outcome, Taken), outcome
    return outcome.value


async def fill(brokers: Brokers, leader: int, *values: bytes) -> None:
    written = await ask(brokers, leader, "append", [Append(10, one(value)) for value in values])
    assert all(isinstance(each, Written) for each in written)


def test_each_append_has_its_own_outcome(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            appends = [
                Append(10, one(b"a", producer_id=3, sequence=0)),
                Append(99, one(b"b")),
                Append(10, b"bad"),
            ]
            first, stranger, bad = await ask(brokers, leader, "append", appends)
            assert first == Written(0)
            assert isinstance(stranger, Failed)
            assert stranger.code == "group_not_found"
            assert isinstance(bad, Failed)
            assert bad.code == "incomplete_batch"
            assert await ask(brokers, leader, "append", appends[:1]) == [Written(0)]
            (refused,) = await ask(brokers, (leader + 1) % 3, "append", appends[:1])
            assert isinstance(refused, Failed)
            assert (refused.code, refused.leader) == ("not_leader", leader)

    run(test())


def test_takes_follow_the_position_and_end_empty(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            await fill(brokers, leader, b"a", b"b")
            (first,) = await ask(brokers, leader, "take", [Take(10, "#1", 0, 11)])
            assert isinstance(first, Taken)
            assert (first.value, first.offset, first.producer_id, first.timestamp) == (b"a", 0, -1, 5)
            assert await ask(brokers, leader, "take", [Take(10, "#1", 0, 12)]) == [Moved(1)]
            assert value_of((await ask(brokers, leader, "take", [Take(10, "#1", None, 13)]))[0]) == b"b"
            assert await ask(brokers, leader, "take", [Take(10, "#1", 2, 14)]) == [Empty(2)]
            assert value_of((await ask(brokers, leader, "take", [Take(10, "#2", 0, 15)]))[0]) == b"a"

    run(test())


def test_takes_read_ahead_only_what_there_is_memory_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            leader = await brokers.topic()
            values = [b"%d " % number + bytes(2 << 20) for number in range(6)]
            frames = [encode_values([value], timestamp=5, codec=Codec.ZSTD) for value in values]
            assert sum(map(len, frames)) < 64 << 10
            written = await ask(brokers, leader, "append", [Append(10, frame) for frame in frames])
            assert written == [Written(offset) for offset in range(6)]
            decoded = brokers.running[leader].hosting._decoded
            for number, value in enumerate(values):
                (taken,) = await ask(brokers, leader, "take", [Take(10, "#1", number, number + 1)])
                assert value_of(taken) == value
                if number == 0:
                    assert decoded.find(10, 0) is not None
                    assert decoded.bytes_ < 5 << 20  # all of them would be 12 MiB

    run(test())


def test_of_a_bundle_that_becomes_too_long_the_first_ones_are_written(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            leader = await brokers.topic()
            bomb = encode_values([bytes(30 << 20)], timestamp=5, codec=Codec.ZSTD)
            # The second one is for nobody, and has been decompressed all the same.
            appends = [Append(10, bomb), Append(99, bomb), Append(10, bomb), Append(10, one(b"small"))]
            outcomes = await ask(brokers, leader, "append", appends)
            codes = [each.code if isinstance(each, Failed) else type(each) for each in outcomes]
            assert codes == [Written, "group_not_found", "batch_too_large", Written]

    run(test())


def test_a_single_batch_of_too_many_messages_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            leader = await brokers.topic()
            (refused,) = await ask(brokers, leader, "append", [Append(10, empties(MESSAGES_MAX + 1))])
            assert isinstance(refused, Failed)
            assert refused.code == "batch_too_large"

    run(test())


def test_takes_of_one_consumer_at_once_never_give_a_message_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            await fill(brokers, leader, *(b"%d" % number for number in range(20)))
            takes = [[Take(10, "#1", None, token)] for token in range(1, 26)]
            found = await asyncio.gather(*(ask(brokers, leader, "take", take) for take in takes))
            values = [outcome.value for (outcome,) in found if isinstance(outcome, Taken)]
            assert sorted(map(bytes, filter(None, values))) == sorted(b"%d" % number for number in range(20))
            assert sum(isinstance(outcome, Empty) for (outcome,) in found) == 5

    run(test())


def test_the_same_take_is_answered_alike_by_this_leader_and_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic(leader=0)
            await fill(brokers, leader, b"a", b"b")
            take = [Take(10, "#1", 0, 77)]
            first = await ask(brokers, leader, "take", take)
            assert await ask(brokers, leader, "take", take) == first
            wish = brokers.primary.wishes[10]
            brokers.primary.wish(msgspec.structs.replace(wish, leader=1))
            await wait_until(lambda: brokers.running[1].hosting.partitions[10].group.replica.serves)
            assert await ask(brokers, 1, "take", take) == first
            assert value_of((await ask(brokers, 1, "take", [Take(10, "#1", 1, 78)]))[0]) == b"b"
            assert await ask(brokers, 1, "take", take) == [Moved(2)]

    run(test())


def test_a_take_asked_for_again_is_in_doubt_when_the_first_one_gave_up_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        # One that gives up leading late: whoever waits is told by its own time limit.
        settings = msgspec.structs.replace(QUICK, tick_seconds=1.0)
        async with Brokers(tmp_path, 3, settings) as brokers:
            leader = await brokers.topic(leader=0)
            await fill(brokers, leader, b"a")
            for follower in set(brokers.running) - {leader}:
                await brokers.stop(follower)
            partition = brokers.running[leader].hosting.group(10)
            first = asyncio.create_task(within(0.1, partition.take("#1", None, 77)))
            await wait_until(lambda: "#1" in partition._takes)
            again = asyncio.create_task(partition.take("#1", None, 77))
            for take in (first, again):  # no majority has the position
                with pytest.raises(Undecided):
                    await take

    run(test())


def test_a_take_asked_for_again_after_retention_dropped_its_message_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            leader = await brokers.topic(retention_bytes=0)
            replica = brokers.running[leader].hosting.partitions[10].group.replica
            await fill(brokers, leader, b"a")
            take = [Take(10, "#1", 0, 77)]
            assert value_of((await ask(brokers, leader, "take", take))[0]) == b"a"
            while replica.start_offset < 2:
                await fill(brokers, leader, b"x" * 50_000)
            assert await ask(brokers, leader, "take", take) == [Moved(replica.start_offset)]
            (outcome,) = await ask(brokers, leader, "take", [Take(10, "#1", None, 77)])
            assert outcome == Empty(replica.start_offset) or value_of(outcome) == b"x" * 50_000

    run(test())


def test_ends_are_told_with_positions_and_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            await fill(brokers, leader, b"a", b"b")
            await ask(brokers, leader, "take", [Take(10, "#1", None, 5)])
            asked = AskEnds([AskEnd(10, "#1"), AskEnd(10), AskEnd(98)])
            told = await ask(brokers, leader, "ends", asked)
            assert told[:2] == [Ends(0, 2, 1), Ends(0, 2, 0)]
            assert isinstance(told[2], Failed)
            waiting = asyncio.create_task(ask(brokers, leader, "ends", AskEnds([AskEnd(10, None, 2)], 8000)))
            group = brokers.running[leader].hosting.partitions[10].group
            await wait_until(lambda: bool(group._readers))
            await fill(brokers, leader, b"c")
            assert await waiting == [Ends(0, 3, 0)]

    run(test())


def test_where_a_consumer_starts_is_settled_when_it_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            await fill(brokers, leader, b"a", b"b")
            starts = [StartAt(10, "#1", "latest"), StartAt(10, "#2", "earliest"), StartAt(10, "#3", 5)]
            assert await ask(brokers, leader, "start", starts) == [Started(2), Started(0), Started(0)]
            await fill(brokers, leader, b"c")
            assert value_of((await ask(brokers, leader, "take", [Take(10, "#1", None, 9)]))[0]) == b"c"

    run(test())


def test_a_bundle_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            for body in (b"", b"\xc1", encode([1, 2])):
                with pytest.raises(BadRequest):
                    await brokers.client.request(
                        brokers.running[0].endpoint,
                        "POST",
                        "/bundle/take",
                        body,
                        media_type=MSGPACK,
                        seconds_max=5.0,
                    )

    run(test())
