"""The cluster as clients see it: addresses, managers that go, leaders that are looked for."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from client.consuming import create, numbered, produce
from strangers import web_server
from talweg import Admin, Producer
from talweg.client.background import Background
from talweg.client.cluster import PAUSE_SECONDS, Cluster, Pause
from talweg.client.servers import read_servers
from talweg.errors import (
    GroupNotFound,
    InvalidSetting,
    NotLeader,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.protocol.batches import OffsetsAnswer
from talweg.protocol.plain import BrokerList
from talweg.testing.cluster import LocalCluster

Run = Callable[[Callable[[Cluster], Awaitable[object]]], object]


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    """Runs a function with a Cluster that was told of the primary alone."""

    def running(work: Callable[[Cluster], Awaitable[object]]) -> object:
        async def main() -> object:
            known = Cluster(cluster.url)
            try:
                return await work(known)
            finally:
                await known.close()

        return asyncio.run(main())

    return running


# Addresses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("host:8000", ("http://host:8000",)),
        ("http://host", ("http://host:80",)),
        (" http://a:1/ , b:2,, b:2", ("http://a:1", "http://b:2")),
        (["a:1", "http://b:2"], ("http://a:1", "http://b:2")),
        ("[::1]:8000", ("http://[::1]:8000",)),
    ],
)
def test_addresses_as_people_write_them(given: str | list[str], expected: tuple[str, ...]) -> None:
    assert read_servers(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        "",
        [],
        "ftp://a:1",
        "http://a:1/path",
        "a:port",
        "http://:1",
        "u@a:1",
        8000,
        [8000],
        b"a:1",
        ["a:1", None],
    ],
)
def test_what_is_no_address_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSetting, match="servers"):
        read_servers(given)


def test_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALWEG_URL", "there:9")
    assert read_servers(None) == ("http://there:9",)
    monkeypatch.delenv("TALWEG_URL")
    assert read_servers(None) == ("http://127.0.0.1:8000",)


# Managers


def test_managers_are_learned_of_when_those_known_are_gone(
    cluster: LocalCluster, topic: str, run: Run
) -> None:
    create(cluster, topic)

    async def work(known: Cluster) -> None:
        await known.topic(topic, seconds_max=10)
        cluster.kill(cluster.primary)
        known.forget_topic(topic)
        assert (await known.fresh_topic(topic, seconds_max=20)).topic == topic
        assert set(known.managers) == {cluster.endpoint(name) for name in cluster.managers}

    run(work)


def test_a_broker_leads_to_the_managers_that_it_knows(cluster: LocalCluster, topic: str) -> None:
    broker = cluster.endpoint(cluster.brokers[0])
    with Admin(broker, timeout=20) as admin:
        assert admin.create_topic(topic, 2) == 2
        assert {each.endpoint for each in admin.managers()} == {
            cluster.endpoint(name) for name in cluster.managers
        }
    with Producer(broker) as producer:
        producer.send(topic, b"found").result(20)


def test_a_server_of_somebody_else_is_passed_over(cluster: LocalCluster, topic: str) -> None:
    with web_server() as stranger, Admin([stranger, cluster.url], timeout=20) as admin:
        assert admin.create_topic(topic, 1) == 1
        assert topic in admin.topics()


def test_an_address_at_which_there_is_no_manager_is_said_at_once() -> None:
    with web_server() as stranger, Admin(stranger, timeout=600) as admin:
        for call in (admin.topics, lambda: admin.create_topic("t")):
            with pytest.raises(InvalidSetting, match=f"servers: http://{stranger} is no server of Talweg"):
                call()


def test_a_gateway_whose_managers_are_away_is_no_wrong_address() -> None:
    with (
        web_server(gateway=True) as address,
        Admin(address, timeout=3) as admin,
        pytest.raises(Unavailable, match="answered with 502"),
    ):
        admin.topics()


def test_no_attempt_is_made_that_would_have_less_time_than_the_pause_before_it() -> None:
    async def work() -> None:
        known = Cluster("127.0.0.1:1")
        told = Unavailable("the one before knows better")
        try:
            with pytest.raises(Unavailable) as raised:
                await Pause(known, 0.99 * PAUSE_SECONDS).wait(told)
            assert raised.value is told
            await Pause(known, 30 * PAUSE_SECONDS).wait(told)
        finally:
            await known.close()

    asyncio.run(work())


def test_a_manager_that_stands_still_costs_its_deadline_once(cluster: LocalCluster) -> None:
    async def work() -> None:
        known = Cluster([cluster.endpoint(name) for name in cluster.managers])
        try:
            cluster.pause(cluster.primary)
            # Less than one manager may take: the first is given up, and put last.
            with pytest.raises(Unavailable):
                await known.ask_manager("GET", "/admin/brokers", BrokerList, seconds_max=0.5)
            found = await known.ask_manager("GET", "/admin/brokers", BrokerList, seconds_max=2)
            assert len(found.brokers) == 3
        finally:
            cluster.resume(cluster.primary)
            await known.close()

    asyncio.run(work())


def test_what_may_have_been_done_is_not_asked_again(unanswering: str) -> None:
    async def work() -> None:
        known = Cluster(unanswering)
        try:
            with pytest.raises(Unavailable):
                await known.ask_manager("POST", "/topics", BrokerList, seconds_max=5, repeatable=False)
        finally:
            await known.close()

    asyncio.run(work())


@pytest.fixture
def unanswering() -> Iterator[str]:
    """A server that takes one request, and hangs up."""
    background = Background("unanswering")
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1 << 16))
        writer.close()

    server = background.run(asyncio.start_server(serve, "127.0.0.1", 0))
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    background.loop.call_soon_threadsafe(server.close)
    background.close()
    assert len(asked) == 1


def test_nobody_there_is_said_when_time_is_up() -> None:
    async def work() -> None:
        known = Cluster("127.0.0.1:1")
        try:
            with pytest.raises(Unreachable):
                await known.all_topics(seconds_max=0.2)
        finally:
            await known.close()

    asyncio.run(work())


# Leaders


def test_a_wrong_leader_is_corrected_by_what_it_says(cluster: LocalCluster, topic: str, run: Run) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(1))

    async def work(known: Cluster) -> None:
        await known.topic(topic, seconds_max=10)
        right = known.leader(topic, 0)
        for wrong in set(known.endpoints.values()) - {right}:
            known._leaders[topic, 0] = wrong
            await known.ask_leader(topic, 0, "GET", "/records?offset=0", seconds_max=10)
            assert known.leader(topic, 0) == right

    run(work)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_leader_that_goes_is_looked_for(cluster: LocalCluster, topic: str, run: Run, fault: str) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(1))
    leader = cluster.wait_for_leader(topic, 0)

    async def work(known: Cluster) -> None:
        await known.topic(topic, seconds_max=10)
        getattr(cluster, fault)(leader)
        answer = await known.ask_leader(
            topic, 0, "GET", "/records?offset=0", seconds_max=20, attempt_seconds_max=0.5
        )
        assert answer.status == 200
        assert known.leader(topic, 0) != cluster.endpoint(leader)

    run(work)


def test_a_leader_is_found_while_no_manager_answers(cluster: LocalCluster, topic: str, run: Run) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(1))
    leader = cluster.wait_for_leader(topic, 0)

    async def work(known: Cluster) -> None:
        await known.topic(topic, seconds_max=10)
        cluster.kill(*cluster.managers, leader)
        answer = await known.ask_leader(topic, 0, "GET", "/records?offset=0", seconds_max=25)
        assert answer.status == 200

    run(work)


def test_topics_and_partitions_that_are_not_there_are_named(
    cluster: LocalCluster, topic: str, run: Run
) -> None:
    async def work(known: Cluster) -> None:
        with pytest.raises(TopicNotFound, match=topic):
            await known.topic(topic, seconds_max=10)
        with pytest.raises(TopicNotFound, match=topic):
            await known.ask_leader(topic, 0, "GET", "/records?offset=0", seconds_max=10)
        create(cluster, topic, 2)
        await known.topic(topic, seconds_max=10)
        with pytest.raises(PartitionNotFound, match="no partition 2"):
            await known.ask_leader(topic, 2, "GET", "/records?offset=0", seconds_max=10)

    run(work)


async def brokers_have_dropped(known: Cluster, topic: str) -> None:
    path = f"/v1/topics/{topic}/offsets?at=earliest"
    for endpoint in known.endpoints.values():
        with suppress(GroupNotFound):
            while True:
                await known.ask_server(endpoint, path, OffsetsAnswer)


def test_a_topic_that_was_only_listed_is_missed_when_it_is_deleted(
    cluster: LocalCluster, topic: str, run: Run
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(1))

    async def work(known: Cluster) -> None:
        assert topic in {each.topic for each in await known.all_topics(seconds_max=10)}
        with cluster.ask() as manager:
            manager.delete(f"/topics/{topic}")
        await brokers_have_dropped(known, topic)
        with pytest.raises(TopicNotFound, match=topic):
            await known.ask_leader(topic, 0, "GET", "/records?offset=0", seconds_max=10)

    run(work)


def test_brokers_answer_for_what_they_lead(cluster: LocalCluster, topic: str, run: Run) -> None:
    create(cluster, topic, 3)
    for partition in range(3):
        produce(cluster, topic, numbered(1), partition)

    async def work(known: Cluster) -> None:
        await known.topic(topic, seconds_max=10)
        path = f"/v1/topics/{topic}/offsets?at=latest"
        answers = [await known.ask_server(each, path, OffsetsAnswer) for each in known.endpoints.values()]
        assert sorted(number for answer in answers for number in answer.offsets) == [0, 1, 2]
        with pytest.raises(GroupNotFound):
            await known.ask_server(
                next(iter(known.endpoints.values())), "/v1/topics/no/offsets", OffsetsAnswer
            )

    run(work)


def test_two_that_name_each_other_are_not_asked_for_ever() -> None:
    async def work() -> None:
        known = Cluster("127.0.0.1:1")
        try:
            known._leaders["t", 0] = "http://a:1"
            asked: list[str] = []

            async def request(endpoint: str, *_: object, **__: object) -> None:
                asked.append(endpoint)
                other = "http://b:1" if endpoint == "http://a:1" else "http://a:1"
                raise NotLeader("not I", 1, other)

            known._http.request = request  # type: ignore[assignment,method-assign]
            with pytest.raises(NotLeader):
                await known.ask_leader("t", 0, "GET", "/", seconds_max=0.01)
            assert len(asked) < 10
        finally:
            await known.close()

    asyncio.run(work())
