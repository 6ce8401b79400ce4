"""What a manager does when an answer is lost, leadership is elsewhere, or a look falls between messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from manager.clusters import Cluster, until
from manager.conftest import Play
from manager.fake_broker import DOWN, LOST, FakeBroker, Once
from talweg.errors import NotLeader, OutOfSequence, StorageError, StorageFull, Unavailable, Undecided
from talweg.protocol.bundles import Outcome, failed


@asynccontextmanager
async def fakes(cluster: Cluster, count: int = 1) -> AsyncIterator[list[FakeBroker]]:
    manager = await cluster.manager()
    brokers = [FakeBroker(manager.endpoint, f"fake-{n}") for n in range(count)]
    try:
        for broker in brokers:
            await broker.start()
        yield brokers
    finally:
        for broker in brokers:
            await broker.stop()


def kept(broker: FakeBroker) -> list[bytes]:
    return [value for log in broker.logs.values() for value, _ in log]


@pytest.mark.parametrize("outcome", [LOST, DOWN])
def test_a_message_without_a_sequence_whose_answer_is_lost_is_not_sent_again(
    play: Play, outcome: Outcome
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            broker.after = Once("append", outcome)
            with pytest.raises(Undecided):
                await client.produce(cluster.primary, "m0")
            assert kept(broker) == [b"m0"]

    play(scenario)


def test_a_message_with_a_sequence_is_sent_again_until_it_is_known_to_be_written(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            broker.after = Once("append", LOST, times=3)
            assert await client.produce(cluster.primary, "m0", sequence=0) == (0, 0)
            assert kept(broker) == [b"m0"]

    play(scenario)


def test_what_was_surely_not_done_is_tried_again(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            broker.before = Once("append", failed(NotLeader("not yet")), times=5)
            await client.produce(cluster.primary, "m0")
            assert kept(broker) == [b"m0"]

    play(scenario)


def test_the_word_of_a_leader_is_passed_on_and_its_mishaps_are_not(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            for error in (StorageFull("full"), OutOfSequence("too late")):
                broker.before = Once("append", failed(error))
                with pytest.raises(type(error)):
                    await client.produce(cluster.primary, "m0", sequence=1)
            broker.before = Once("append", failed(StorageError("a disk of ours")))
            with pytest.raises(Undecided):
                await client.produce(cluster.primary, "m0")
            broker.before = Once("take", failed(StorageError("a disk of ours")))
            await client.produce(cluster.primary, "m0")
            with pytest.raises(Unavailable):
                await client.consume(cluster.primary)

    play(scenario)


def test_a_hint_leads_to_the_leader(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster, 2) as brokers:
            client = await cluster.client(replication=2, partitions=1)
            await until(lambda: all(broker.logs for broker in brokers))
            follower, leader = brokers
            follower.leads = False

            def not_here(sort: str, part: Any) -> Outcome:
                return failed(NotLeader("not here", leader.broker_id))

            follower.before = not_here
            leader.term = 2
            for n in range(4):
                await client.produce(cluster.primary, f"m{n}")
            assert kept(leader) == [b"m0", b"m1", b"m2", b"m3"]
            assert kept(follower) == []

    play(scenario)


def test_a_take_whose_answer_is_lost_gives_the_same_message_again(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            for n in range(3):
                await client.produce(cluster.primary, f"m{n}")
            broker.after = Once("take", LOST, times=2)
            assert await client.consume_all(cluster.primary) == ["m0", "m1", "m2"]
            takes = [part for sort, parts in broker.bundles if sort == "take" for part in parts]
            assert takes[0] == takes[1] == takes[2]
            assert takes[3].token != takes[2].token

    play(scenario)


def test_a_take_that_nobody_answered_is_made_up_for_by_the_next_consume(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1)
            for n in range(3):
                await client.produce(cluster.primary, f"m{n}")
            broker.after = Once("take", LOST, times=1_000_000)
            with pytest.raises(Undecided):
                await client.consume(cluster.primary)
            broker.after = lambda sort, part: None
            assert await client.consume_all(cluster.primary) == ["m0", "m1", "m2"]

    play(scenario, request_seconds_max=0.5)


def test_what_comes_while_a_bundle_is_under_way_goes_together_in_the_next(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1, partitions=1)
            released = asyncio.Event()

            async def hold(sort: str) -> None:
                if sort == "append":
                    await released.wait()

            await client.produce(cluster.primary, "before")
            broker.bundles.clear()
            broker.hold = hold
            first = asyncio.create_task(client.produce(cluster.primary, "first"))
            await until(lambda: broker.bundles)
            rest = [asyncio.create_task(client.produce(cluster.primary, f"m{n}")) for n in range(20)]
            parts = cluster.managers[0]
            await until(lambda: waiting_in(parts, "/bundle/append") == 20)
            released.set()
            await asyncio.gather(first, *rest)
            sizes = [len(parts) for sort, parts in broker.bundles if sort == "append"]
            assert sizes == [1, 20]

    def waiting_in(manager: Any, path: str) -> int:
        return sum(len(lane._waiting) for (p, _), lane in manager._parts.router._lanes.items() if p == path)

    play(scenario)


def test_a_message_that_comes_between_two_looks_is_not_overtaken(play: Play) -> None:
    """The first partition is looked at, then one serial producer writes to it and to the second."""

    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster) as [broker]:
            client = await cluster.client(replication=1, partitions=2)
            await client.produce(cluster.primary, "m0")  # so that whose turn it is is known
            await client.produce(cluster.primary, "m1")
            assert await client.consume_all(cluster.primary) == ["m0", "m1"]
            first, second = sorted(broker.logs)
            looked = False

            def between(sort: str, part: Any) -> Outcome | None:
                nonlocal looked
                if sort == "ends" and part.group == second and not looked:
                    looked = True  # the first one was just found to be empty
                    broker.logs[first].append((b"m2", -1))
                    broker.logs[second].append((b"m3", -1))
                return None

            broker.before = between
            assert await client.consume_all(cluster.primary) == ["m2", "m3"]
            assert looked

    play(scenario)


def test_leadership_that_moves_ends_the_wait_for_a_broker_that_hangs(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster, 2) as brokers:
            client = await cluster.client(replication=2, partitions=1)
            await until(lambda: all(broker.logs for broker in brokers))
            hanging, other = brokers
            other.leads = False
            await until(lambda: leader_is(cluster, hanging))
            hang = asyncio.Event()

            async def hold(sort: str) -> None:
                await hang.wait()

            hanging.hold = hold
            produced = asyncio.create_task(client.produce(cluster.primary, "m0", sequence=0))
            await until(lambda: any(sort == "append" for sort, _ in hanging.bundles))
            hanging.leads = False
            other.leads, other.term = True, 2
            assert await asyncio.wait_for(produced, 5) == (0, 0)  # not the 30 seconds of a request
            assert kept(other) == [b"m0"]
            hang.set()

    async def leader_is(cluster: Cluster, broker: FakeBroker) -> bool:
        metadata = await cluster.caller.get(cluster.primary, "/v1/metadata")
        found = metadata["topics"][0]["partitions"][0]
        return bool(found["leader"] == broker.broker_id and found["term"])

    play(scenario, request_seconds_max=30.0)


def test_consumes_of_one_consumer_take_their_turns(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with fakes(cluster):
            client = await cluster.client(replication=1)
            for n in range(20):
                await client.produce(cluster.primary, f"m{n}")
            read = await asyncio.gather(*(client.consume(cluster.primary) for _ in range(20)))
            assert sorted(read) == sorted(f"m{n}" for n in range(20))

    play(scenario)
