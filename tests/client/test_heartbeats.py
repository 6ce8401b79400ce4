"""Producers of the library are heard of by managers while they live."""

import asyncio

from talweg.client.admin import Admin
from talweg.client.cluster import Cluster
from talweg.client.heartbeats import Heartbeats
from talweg.client.producer import Producer
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


def last_heard(admin: Admin, topic: str) -> int:
    (producer,) = (each for each in admin.producers() if each.topic == topic)
    assert producer.status == "active"
    return producer.last_heartbeat


def test_a_producer_is_heard_again_and_again(cluster: LocalCluster, servers: list[str], topic: str) -> None:
    with Admin(servers) as admin, Producer(servers) as producer:
        producer.send(topic, b"here").result(10)
        first = last_heard(admin, topic)
        wait_until(lambda: last_heard(admin, topic) > first, "a heartbeat", 30.0)


def test_a_producer_that_is_no_more_silences_nobody(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    with Admin(servers) as admin, Producer(servers) as producer:
        producer.send(topic, b"here").result(10)
        first = last_heard(admin, topic)
        (number,) = (each.id for each in admin.producers() if each.topic == topic)

        async def beat() -> None:
            known = Cluster(servers)
            heartbeats = Heartbeats(known, lambda: {10**9, number}, seconds=0.05)
            heartbeats.start()
            try:
                async with asyncio.timeout(20.0):
                    while await asyncio.to_thread(last_heard, admin, topic) == first:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            finally:
                await heartbeats.stop()
                await known.close()

        asyncio.run(beat())
