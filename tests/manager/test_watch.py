"""The watch over brokers: who lives, who is drained, what is rebuilt elsewhere, what was forgotten."""

import asyncio
import sqlite3
from typing import Any

import pytest

from manager.clusters import Cluster, until
from manager.conftest import Play
from manager.fake_broker import FakeBroker
from talweg.errors import BrokerNotFound, TooFewBrokers, TopicExists


async def messages_in(cluster: Cluster, topic: str, count: int) -> Any:
    client = await cluster.client(topic, partitions=4, replication=3)
    for n in range(count):
        await client.produce(cluster.primary, f"m{n}")
    return client


async def carriers(cluster: Cluster, topic: str) -> set[int]:
    return {broker for p in await cluster.partitions(topic) for broker in p["replicas"]}


def test_a_broker_that_is_silent_is_inactive_and_comes_back_by_itself(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=2)
        number = cluster.brokers["broker-1"].broker_id
        await cluster.stop_broker("broker-1")

        async def is_inactive() -> bool:
            return await cluster.statuses() == {0: "active", number: "inactive"}

        await until(is_inactive)
        with pytest.raises(TooFewBrokers):
            await cluster.caller.post(cluster.primary, "/topics", name="two", replication=2)
        await cluster.caller.post(cluster.primary, "/topics", name="one", replication=1)
        assert await carriers(cluster, "one") == {0}
        again = await cluster.broker("broker-1")
        assert again.broker_id == number

        async def is_active() -> bool:
            return set((await cluster.statuses()).values()) == {"active"}

        await until(is_active)
        await cluster.caller.post(cluster.primary, "/topics", name="two", replication=2)

    play(scenario)


def test_a_heartbeat_is_taken_however_small_the_requests_of_others_have_to_be(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        manager = await cluster.manager(body_bytes_max=1 << 10, message_bytes_max=1 << 10)
        broker = FakeBroker(manager.endpoint)
        await broker.start()
        try:
            await cluster.caller.post(cluster.primary, "/topics", name="t", partitions=100, replication=1)
            await until(lambda: len(broker.logs) == 100, "it carries them all")
            await broker.beat()  # of several kilobytes: each partition is named
        finally:
            await broker.stop()

    play(scenario)


def test_a_removed_broker_is_drained_first_and_loses_nothing(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=4)
        client = await messages_in(cluster, "t", 12)
        leaving = next(iter(await carriers(cluster, "t")))
        removing = await cluster.caller.post(cluster.primary, "/admin/broker/remove", broker_id=leaving)
        assert "drained" in removing["message"]
        produced = 12

        async def is_removed() -> bool:
            nonlocal produced
            await client.produce(cluster.primary, f"m{produced}")
            produced += 1
            return (await cluster.statuses())[leaving] == "removed"

        await until(is_removed)
        assert leaving not in await carriers(cluster, "t")
        assert all(len(p["replicas"]) == 3 for p in await cluster.partitions("t"))
        assert await client.consume_all(cluster.primary) == [f"m{n}" for n in range(produced)]
        with pytest.raises(BrokerNotFound):
            await cluster.caller.post(cluster.primary, "/admin/broker/activate", broker_id=leaving)
        broker = next(b for b in cluster.brokers.values() if b.broker_id == leaving)
        await until(lambda: not broker.hosting.partitions, "its logs are gone")

    play(scenario)


@pytest.mark.parametrize("deactivated", [False, True])
def test_a_broker_that_is_gone_for_long_is_replaced(play: Play, deactivated: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=4)
        client = await messages_in(cluster, "t", 8)
        carrying = await carriers(cluster, "t")
        name, gone = next((n, b.broker_id) for n, b in cluster.brokers.items() if b.broker_id in carrying)
        if deactivated:
            await cluster.caller.post(cluster.primary, "/admin/broker/deactivate", broker_id=gone)
        await cluster.stop_broker(name)

        async def is_rebuilt() -> bool:
            partitions = await cluster.partitions("t")
            return all(gone not in p["replicas"] and len(p["replicas"]) == 3 for p in partitions)

        await until(is_rebuilt)
        assert await client.consume_all(cluster.primary) == [f"m{n}" for n in range(8)]
        assert (await cluster.statuses())[gone] == ("deactivated" if deactivated else "inactive")

    play(scenario, replace_seconds=1.0)


def test_leaders_leave_a_deactivated_broker_and_come_back(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=3)
        client = await messages_in(cluster, "t", 4)
        await cluster.caller.post(cluster.primary, "/admin/broker/deactivate", broker_id=0)
        assert (await cluster.statuses())[0] == "deactivated"

        async def leads(broker: int) -> bool:
            return broker in {p["leader"] for p in await cluster.partitions("t")}

        async def leads_nothing() -> bool:
            return not await leads(0)

        await until(leads_nothing)
        await client.produce(cluster.primary, "m4")
        with pytest.raises(TooFewBrokers):
            await cluster.caller.post(cluster.primary, "/topics", name="another", replication=3)
        await cluster.caller.post(cluster.primary, "/admin/broker/activate", broker_id=0)
        await until(lambda: leads(0))
        assert await client.consume_all(cluster.primary) == [f"m{n}" for n in range(5)]

    play(scenario)


async def forget(cluster: Cluster) -> None:
    """The store has lost its last writes, and the manager is another."""
    manager = cluster.managers[0]
    port = int(manager.endpoint.rpartition(":")[2])
    await cluster.stop_manager(manager)
    with sqlite3.connect(cluster.metadata.removeprefix("sqlite:///")) as database:
        for table in ("topics", "assignments", "consumers", "producers"):
            database.execute(f"DELETE FROM talweg_{table}")
    database.close()
    await cluster.manager(port=port)


def test_a_topic_that_the_store_forgot_is_restored_from_what_brokers_know(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=1)
        created = {"partitions": 3, "replication": 1, "retention_ms": 10**9}
        client = await cluster.client("forgotten", **created)
        for n in range(7):
            await client.produce(cluster.primary, f"m{n}")
        deleted = await cluster.client("deleted", replication=1)
        await cluster.caller.delete(cluster.primary, f"/topics/{deleted.topic}")
        await forget(cluster)

        async def is_restored() -> bool:
            metadata = await cluster.caller.get(cluster.primary, "/v1/metadata")
            return [topic["topic"] for topic in metadata["topics"]] == ["forgotten"]

        await until(is_restored)
        reader = await cluster.client_of("forgotten")
        assert await reader.consume_all(cluster.primary) == [f"m{n}" for n in range(7)]

    play(scenario)


def test_who_creates_a_forgotten_topic_again_at_once_finds_the_old_one(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=3)
        client = await messages_in(cluster, "forgotten", 7)
        await forget(cluster)
        # As one does whose producer is not found. No broker has been heard of yet.
        registering = cluster.caller.post(cluster.primary, "/producer/register", topic="forgotten")
        creating = cluster.caller.post(cluster.primary, "/topics", name="forgotten")
        registered, created = await asyncio.gather(registering, creating, return_exceptions=True)
        assert isinstance(registered, dict), registered
        assert isinstance(created, TopicExists), created
        client.producer_id = registered["producer_id"]
        await client.produce(cluster.primary, "m7")
        reader = await cluster.client_of("forgotten")
        assert sorted(await reader.consume_all(cluster.primary)) == [f"m{n}" for n in range(8)]

    play(scenario)


def test_a_forgotten_topic_is_restored_once_another_of_its_name_is_deleted(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=1)
        client = await cluster.client("forgotten", replication=1)
        await client.produce(cluster.primary, "m0")
        await cluster.stop_broker("broker-0")
        await forget(cluster)
        await cluster.broker("broker-1")
        another = await cluster.client("forgotten", replication=1, partitions=1)
        await another.produce(cluster.primary, "another")
        await cluster.broker("broker-0")
        await until(lambda: "cannot be restored until" in caplog.text, "broker 0 was heard")
        await cluster.caller.delete(cluster.primary, "/topics/forgotten")

        async def is_restored() -> bool:
            metadata = await cluster.caller.get(cluster.primary, "/v1/metadata")
            return [len(topic["partitions"]) for topic in metadata["topics"]] == [4]

        await until(is_restored)
        reader = await cluster.client_of("forgotten")
        assert await reader.consume_all(cluster.primary) == ["m0"]

    play(scenario)


def test_clients_that_fall_silent_are_listed_as_inactive_and_lose_nothing(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=1)
        client = await cluster.client(replication=1)

        async def status() -> str:
            listed = await cluster.caller.get(cluster.primary, "/admin/consumers")
            return str(listed["consumers"][0]["status"])

        async def is_inactive() -> bool:
            return await status() == "inactive"

        await until(is_inactive)
        await client.produce(cluster.primary, "m0")
        assert await client.consume(cluster.primary) == "m0"
        await cluster.caller.post(cluster.primary, "/consumer/heartbeat", id=client.consumer_id)
        assert await status() == "active"
        reader = await cluster.manager(read_only=True)

        async def is_written_down() -> bool:
            listed = await cluster.caller.get(reader.endpoint, "/admin/consumers")
            consumer = listed["consumers"][0]
            await cluster.caller.post(reader.endpoint, "/consumer/heartbeat", id=client.consumer_id)
            return bool(consumer["status"] == "active")

        await until(is_written_down)

    play(scenario, client_seconds=1.5)
