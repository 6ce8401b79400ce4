"""Whole clusters whose metadata is in a real database, or in a Redis Cluster whose masters fall over."""

import asyncio
from collections.abc import Iterator

import pytest

from manager.clusters import Client, Cluster, until
from manager.conftest import Play
from metadata.conftest import redis_url_of
from metadata.test_failover import Shard
from servers import MariadbServer, PostgresServer, RedisCluster
from talweg.errors import TalwegError
from talweg.metadata.redis import RedisMetadata


@pytest.fixture(params=["postgresql", "mariadb", "redis-cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "redis-cluster":
        yield redis_url_of(request.getfixturevalue("redis_cluster_url"), cluster=True)
        return
    server: PostgresServer | MariadbServer = request.getfixturevalue(f"{request.param}_server")
    name = server.create_database()
    yield server.database_url(name)
    server.drop_database(name)


def test_a_cluster_lives_on_any_store_and_a_stand_by_takes_over(play: Play, url: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.metadata = url
        first, stand_by = await cluster.manager(), await cluster.manager()
        reader = await cluster.manager(read_only=True)
        for number in range(3):
            await cluster.broker(f"broker-{number}")
        client = await cluster.client(partitions=3)
        for number in range(6):
            await client.produce(reader.endpoint, f"m{number}")
        assert [await client.consume(reader.endpoint) for _ in range(4)] == ["m0", "m1", "m2", "m3"]
        await cluster.stop_manager(first)
        await until(lambda: stand_by.is_primary, "the stand-by is the primary")
        await client.produce(stand_by.endpoint, "m6")
        assert await client.consume_all(stand_by.endpoint) == ["m4", "m5", "m6"]
        other = await cluster.client("other", partitions=2)
        assert (other.producer_id, other.consumer_id) > (client.producer_id, client.consumer_id)
        await until(lambda: _has_brokers(cluster), "brokers have found the new primary")

    play(scenario)


async def _has_brokers(cluster: Cluster) -> bool:
    return set((await cluster.statuses()).values()) == {"active"}


@pytest.fixture
def redis() -> Iterator[RedisCluster]:
    with RedisCluster() as started:
        yield started


def test_the_failover_of_a_redis_master_costs_no_message(play: Play, redis: RedisCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.metadata = redis_url_of(redis.url, cluster=True)
        manager = await cluster.start()
        client = await cluster.client(partitions=2)
        written = [f"m{number}" for number in range(10)]
        for message in written:
            await client.produce(manager.endpoint, message)
        with RedisMetadata(cluster.metadata) as store:
            shard = Shard(redis, store._keys[0])
        await asyncio.to_thread(shard.master.kill)
        for number in range(10, 20):  # no change of metadata is needed for these
            written.append(f"m{number}")
            await client.produce(manager.endpoint, written[-1])
        assert await client.consume_all(manager.endpoint) == written
        await until(lambda: _can_change(cluster), "the replica has become the master")
        await until(lambda: any(manager.is_primary for manager in cluster.managers), "there is a primary")
        again = await cluster.client_of("t")
        assert again.producer_id > client.producer_id
        assert await again.consume_all(manager.endpoint) == written

    play(scenario)


async def _can_change(cluster: Cluster) -> bool:
    try:
        client: Client = await cluster.client("changed", partitions=1)
    except (TalwegError, RuntimeError):  # the latter: there is no primary at the moment
        return False
    return client.topic == "changed"
