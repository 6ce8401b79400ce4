"""Transactions over real processes: kill -9 at every step, and every message is there once or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from cluster.conftest import QUICK
from talweg.client.cluster import Cluster
from talweg.errors import BadTopicName, Forbidden, StageDecided, StageExpired, TopicNotFound
from talweg.protocol.batches import FRAMES
from talweg.protocol.transactions import (
    STAGE_MIN,
    TRANSACTIONS,
    Complete,
    Decide,
    Decided,
    DecisionAnswer,
    Published,
    StageRef,
    TransactionsReady,
    decision_partition,
)
from talweg.records import Batch, encode_values, frames
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-transactions")

PARTITIONS = 3
ITEMS = 4  # batches of each stage
SECONDS_MAX = 40.0
STEPS = ("staging", "staged", "deciding", "decided", "publishing", "published")

Hook = Callable[[str], Awaitable[None]]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def nothing(_: str) -> None:
    """For a transaction that nobody disturbs."""


class Transaction:
    """One writer's: a stage in each partition of a topic."""

    def __init__(self, to: Cluster, topic: str, name: str) -> None:
        self.to, self.topic, self.name = to, topic, name
        random = Random()
        self.stages = [
            StageRef(topic=topic, partition=partition, stage=STAGE_MIN + random.getrandbits(62))
            for partition in range(PARTITIONS)
        ]

    def value(self, partition: int, number: int) -> bytes:
        return f"{self.name}:{partition}:{number}".encode()

    def values(self, partition: int) -> list[bytes]:
        return [self.value(partition, number) for number in range(ITEMS)]

    async def stage(self, number: int) -> None:
        await asyncio.gather(*(self._stage(place, number) for place in self.stages))

    async def _stage(self, place: StageRef, number: int) -> None:
        frame = encode_values(
            [self.value(place.partition, number)], timestamp=1, producer_id=place.stage, sequence=number
        )
        path = f"/stages/{place.stage}?transaction={quote(self.name, safe='')}"
        await self.to.ask_leader(
            self.topic, place.partition, "POST", path, frame, media_type=FRAMES, seconds_max=SECONDS_MAX
        )

    async def _ask_keeper(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        ready = await self.to.ask_manager(
            "POST", "/v1/transactions", TransactionsReady, seconds_max=SECONDS_MAX
        )
        partition = decision_partition(self.name, ready.partitions)
        await self.to.topic(TRANSACTIONS, seconds_max=SECONDS_MAX)
        encoded = None if body is None else msgspec.json.encode(body)
        response = await self.to.ask_leader(
            TRANSACTIONS, partition, method, path, encoded, seconds_max=SECONDS_MAX
        )
        return response.body

    async def decide(self) -> Decided:
        body = Decide(transaction=self.name, stages=self.stages)
        return msgspec.json.decode(await self._ask_keeper("POST", "/decisions", body), type=Decided)

    async def decision(self) -> DecisionAnswer:
        target = f"/decisions?transaction={quote(self.name, safe='')}"
        return msgspec.json.decode(await self._ask_keeper("GET", target), type=DecisionAnswer)

    async def complete(self) -> None:
        await self._ask_keeper("POST", "/decisions/complete", Complete(transactions=[self.name]))

    async def publish(self, place: StageRef) -> int:
        response = await self.to.ask_leader(
            self.topic, place.partition, "POST", f"/stages/{place.stage}/publish", seconds_max=SECONDS_MAX
        )
        return msgspec.json.decode(response.body, type=Published).count

    async def discard(self) -> None:
        for place in self.stages:
            await self.to.ask_leader(
                self.topic,
                place.partition,
                "POST",
                f"/stages/{place.stage}/discard",
                seconds_max=SECONDS_MAX,
            )

    async def has_expired(self) -> bool:
        try:
            await asyncio.gather(*(self._stage(place, 0) for place in self.stages))
        except StageExpired:
            return True
        return False

    async def run(self, at: Hook = nothing) -> None:
        """All of it. What `at` does to a step that ends in -ing, it does while the step is under way."""
        await self.stage(0)
        await asyncio.gather(at("staging"), self._stage_from(1))
        await at("staged")
        _, decided = await asyncio.gather(at("deciding"), self.decide())
        assert decided.ours
        await at("decided")
        _, *counts = await asyncio.gather(at("publishing"), *map(self.publish, self.stages))
        assert counts == [ITEMS] * PARTITIONS
        await at("published")
        for place in self.stages:
            assert await self.publish(place) == ITEMS, "the same answer again"
        await self.complete()

    async def _stage_from(self, first: int) -> None:
        for number in range(first, ITEMS):
            await self.stage(number)


async def read(to: Cluster, topic: str, partition: int) -> list[bytes]:
    """All that readers see; offsets have no gaps."""
    found: list[bytes] = []
    while True:
        response = await to.ask_leader(
            topic,
            partition,
            "GET",
            f"/records?offset={len(found)}&wait_ms=100",
            headers={"accept": FRAMES},
            seconds_max=SECONDS_MAX,
        )
        for header, frame in frames(response.body, bytes_max=1 << 26):
            assert header.first_offset == len(found)
            found += [value or b"" for value in Batch.from_frame(frame).values()]
        if len(found) == int({k.lower(): v for k, v in response.headers.items()}["talweg-high-watermark"]):
            return found


def make_topic(cluster: LocalCluster, topic: str) -> None:
    with cluster.ask() as manager:
        manager.post("/topics", name=topic, partitions=PARTITIONS)
        manager.post("/v1/transactions")


async def check(to: Cluster, topic: str, *published: Transaction) -> None:
    for partition in range(PARTITIONS):
        expected = [value for transaction in published for value in transaction.values(partition)]
        assert sorted(await read(to, topic, partition)) == sorted(expected)
        for transaction in published:
            ours = [v for v in await read(to, topic, partition) if v in transaction.values(partition)]
            assert ours == transaction.values(partition), "in their order"


@pytest.mark.parametrize("when", STEPS)
def test_a_leader_is_killed(cluster: LocalCluster, topic: str, when: str) -> None:
    make_topic(cluster, topic)

    async def test() -> None:
        to = Cluster(cluster.servers)
        try:
            transaction = Transaction(to, topic, f"{topic}/1")

            async def kill(step: str) -> None:
                if step == when:
                    victim = (topic, 0)
                    if step in ("deciding", "staged"):  # these concern whoever keeps decisions
                        victim = (TRANSACTIONS, decision_partition(transaction.name, 4))
                    await asyncio.to_thread(cluster.kill_leader, *victim)

            await transaction.run(kill)
            await check(to, topic, transaction)
            assert (await transaction.decision()).completed
        finally:
            await to.close()

    run(test())


@pytest.mark.parametrize("when", ["staged", "deciding", "publishing"])
def test_all_brokers_are_killed_at_once(cluster: LocalCluster, topic: str, when: str) -> None:
    make_topic(cluster, topic)

    async def test() -> None:
        to = Cluster(cluster.servers)
        try:
            transaction = Transaction(to, topic, f"{topic}/1")

            async def kill(step: str) -> None:
                if step == when:
                    await asyncio.to_thread(cluster.kill, *cluster.brokers)
                    await asyncio.to_thread(cluster.restart, *cluster.brokers)

            await transaction.run(kill)
            await check(to, topic, transaction)
        finally:
            await to.close()

    run(test())


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_leader_is_killed_around_a_discard(cluster: LocalCluster, topic: str, when: str) -> None:
    make_topic(cluster, topic)

    async def test() -> None:
        to = Cluster(cluster.servers)
        try:
            given_up = Transaction(to, topic, f"{topic} given up")
            kept = Transaction(to, topic, f"{topic} kept")
            await given_up.stage(0)
            if when == "before":
                await asyncio.to_thread(cluster.kill_leader, topic, 0)
            discarding = asyncio.create_task(given_up.discard())
            if when == "during":
                await asyncio.to_thread(cluster.kill_leader, topic, 0)
            await discarding
            if when == "after":
                await asyncio.to_thread(cluster.kill_leader, topic, 0)
            await kept.run()
            await given_up.discard()
            with pytest.raises(StageExpired):
                await given_up.decide()
            with pytest.raises(StageExpired):
                await given_up.publish(given_up.stages[0])
            with pytest.raises(StageDecided):
                await kept.discard()
            await check(to, topic, kept)
        finally:
            await to.close()

    run(test())


def test_plain_clients_see_messages_without_a_producer_and_none_that_are_staged(
    cluster: LocalCluster, topic: str
) -> None:
    make_topic(cluster, topic)

    async def test() -> None:
        to = Cluster(cluster.servers)
        try:
            await Transaction(to, topic, f"{topic} staged only").stage(0)
            await Transaction(to, topic, "whole").run()
        finally:
            await to.close()

    run(test())
    with cluster.ask() as manager:
        consumer = manager.post("/consumer/register", topic=topic)["consumer_id"]
        size = manager.get("/size", topic=topic, consumer_id=consumer)["size"]
        assert size == PARTITIONS * ITEMS
        for _ in range(size):
            message = manager.get("/consumer/consume", topic=topic, consumer_id=consumer)
            assert message["message"].startswith("whole:")
            assert message["producer_id"] is None


def test_the_internal_topic_is_nobodys_but_ours(cluster: LocalCluster, topic: str) -> None:
    make_topic(cluster, topic)
    for name in cluster.managers:
        with cluster.ask(name) as manager:
            assert manager.post("/v1/transactions")["partitions"] == 4
            assert TRANSACTIONS not in manager.get("/topics")["topics"]
            listed = manager.get("/v1/metadata")["topics"]
            assert TRANSACTIONS not in [each["topic"] for each in listed]
            (shown,) = manager.get("/v1/metadata", topics=TRANSACTIONS)["topics"]
            assert len(shown["partitions"]) == 4
            with pytest.raises(BadTopicName):
                manager.post("/topics", name=TRANSACTIONS)
            with pytest.raises(BadTopicName):
                manager.post("/producer/register", topic=TRANSACTIONS)
            with pytest.raises(TopicNotFound):
                manager.post("/consumer/register", topic=TRANSACTIONS)
            with pytest.raises(Forbidden):
                manager.delete(f"/topics/{TRANSACTIONS}")


# What brokers settle by themselves


@pytest.fixture(scope="module")
def sweeping_cluster() -> Iterator[LocalCluster]:
    settings = QUICK | {"broker": QUICK["broker"] | {"--stage-expiry": "1s"}}
    with LocalCluster(settings=settings, readers=0) as cluster:
        yield cluster


def test_who_decided_never_comes_back_and_all_of_it_is_published(
    sweeping_cluster: LocalCluster, topic: str
) -> None:
    cluster = sweeping_cluster
    make_topic(cluster, topic)

    async def test() -> None:
        to = Cluster(cluster.servers)
        try:
            decided, undecided = Transaction(to, topic, "decided"), Transaction(to, topic, "undecided")
            await undecided.stage(0)
            await decided.stage(0)
            await decided._stage_from(1)
            await decided.decide()
            await decided.publish(decided.stages[1])
            await asyncio.to_thread(cluster.kill_leader, topic, 0)
            async with asyncio.timeout(SECONDS_MAX):
                while not (await decided.decision()).completed:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.1)
            await check(to, topic, decided)
            async with asyncio.timeout(SECONDS_MAX):
                while not await undecided.has_expired():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.2)
            with pytest.raises(StageExpired):
                await undecided.decide()
            await check(to, topic, decided)
        finally:
            await to.close()

    run(test())
