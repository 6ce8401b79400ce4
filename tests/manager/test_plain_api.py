"""The plain API on a whole cluster, as people use it."""

import asyncio
import base64
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from manager.clusters import until
from manager.conftest import Standing
from talweg.errors import (
    BadRequest,
    BadTopicName,
    BodyTooLarge,
    BrokerNotFound,
    ConsumerNotFound,
    Forbidden,
    NoMessage,
    NowhereToMove,
    OutOfSequence,
    PartitionNotFound,
    ProducerNotFound,
    TooFewBrokers,
    TooManyPartitions,
    TopicExists,
    TopicNotFound,
)
from talweg.records import encode_values


class Client:
    """A topic with a producer and a consumer of it."""

    def __init__(self, standing: Standing, topic: str, **consumer: Any) -> None:
        self.standing = standing
        self.topic = topic
        self.producer_id = standing.post("/producer/register", topic=topic)["producer_id"]
        self.consumer_id = self.another_consumer(**consumer)

    def another_consumer(self, **consumer: Any) -> int:
        registered = self.standing.post("/consumer/register", topic=self.topic, **consumer)
        return int(registered["consumer_id"])

    def produce(self, message: str, **more: Any) -> tuple[int, int]:
        answer = self.standing.post(
            "/producer/produce", topic=self.topic, producer_id=self.producer_id, message=message, **more
        )
        return answer["partition"], answer["offset"]

    def consume(self, **more: Any) -> Any:
        query = {"topic": self.topic, "consumer_id": self.consumer_id} | more
        return self.standing.get("/consumer/consume", **query)

    def consume_all(self, **more: Any) -> list[str]:
        read = []
        while True:
            try:
                read.append(self.consume(**more)["message"])
            except NoMessage:
                return read

    def size(self, **more: Any) -> Any:
        return self.standing.get("/size", topic=self.topic, consumer_id=self.consumer_id, **more)


def test_a_topic_is_created_with_the_defaults_and_is_usable_at_once(standing: Standing) -> None:
    created = standing.post("/topics", name="created")
    assert created["status"] == "success"
    assert created["partitions"] == 4
    partitions = standing.get("/topics/created/partitions")["partitions"]
    assert [p["id"] for p in partitions] == [0, 1, 2, 3]
    assert all(p["size"] == 0 and p["leader"] in p["replicas"] for p in partitions)
    assert all(len(set(p["replicas"])) == 3 for p in partitions)
    assert sorted(p["replicas"][0] for p in partitions)[::3] in ([0, 2], [0, 1], [0, 2])
    assert "created" in standing.get("/topics")["topics"]


def test_topics_that_cannot_be_are_refused(standing: Standing) -> None:
    standing.post("/topics", name="taken", partitions=1, replication=1)
    with pytest.raises(TopicExists):
        standing.post("/topics", name="taken")
    for name in ("", ".", "..", "a/b", "__ours", "a b", "x" * 250, "\u0000"):
        with pytest.raises(BadTopicName):
            standing.post("/topics", name=name)
    with pytest.raises(TooFewBrokers):
        standing.post("/topics", name="wide", replication=4)
    with pytest.raises(TooManyPartitions):
        standing.post("/topics", name="many", partitions=4_001, replication=3)
    for wrong in ({"partitions": 0}, {"replication": 0}, {"partitions": "4"}, {"colour": "red"}):
        with pytest.raises(BadRequest):
            standing.post("/topics", name="wrong", **wrong)


def test_a_deleted_topic_is_gone_with_its_clients(standing: Standing) -> None:
    client = Client(standing, "deleted")
    client.produce("x")
    standing.run(standing.caller.delete(standing.primary, "/topics/deleted"))
    with pytest.raises(TopicNotFound, match="'deleted'"):
        standing.get("/topics/deleted/partitions")
    with pytest.raises(ProducerNotFound):
        client.produce("y")
    with pytest.raises(ConsumerNotFound):
        client.consume()
    with pytest.raises(TopicNotFound):
        standing.run(standing.caller.delete(standing.primary, "/topics/deleted"))
    again = Client(standing, "deleted")
    assert again.producer_id > client.producer_id
    assert again.consume_all() == []


def test_one_producer_and_one_consumer_see_messages_in_order(standing: Standing) -> None:
    client = Client(standing, "order")
    places = [client.produce(f"m{n}") for n in range(11)]
    assert [partition for partition, _ in places] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert client.size() == {
        "status": "success", "size": 11, "partitions": {"0": 3, "1": 3, "2": 3, "3": 2},
    }  # fmt: skip
    assert client.consume_all() == [f"m{n}" for n in range(11)]
    assert client.size()["size"] == 0
    client.produce("m11")
    first = client.consume()
    assert (first["message"], first["partition"], first["offset"]) == ("m11", 3, 2)
    assert first["producer_id"] == client.producer_id
    assert abs(first["timestamp"] / 1e6 - time.time()) < 60


def test_each_consumer_sees_every_message(standing: Standing) -> None:
    client = Client(standing, "everyone")
    other = client.another_consumer()
    for n in range(5):
        client.produce(str(n))
    assert client.consume_all() == client.consume_all(consumer_id=other) == list("01234")


def test_either_manager_goes_on_where_the_other_stopped(standing: Standing) -> None:
    client = Client(standing, "either")
    for n in range(12):
        client.produce(str(n))
    endpoints = [standing.primary, standing.read_only, standing.read_only]
    read = [
        standing.run(
            standing.caller.get(
                endpoints[n % 3], "/consumer/consume", topic="either", consumer_id=client.consumer_id
            )
        )["message"]
        for n in range(12)
    ]
    assert read == [str(n) for n in range(12)]


def test_partitions_with_nothing_left_are_passed_over(standing: Standing) -> None:
    client = Client(standing, "passed")
    for n in range(3):
        client.produce(str(n), partition=2)
    client.produce("last", partition=0)
    assert client.consume_all() == ["last", "0", "1", "2"]


def test_a_partition_may_be_named(standing: Standing) -> None:
    client = Client(standing, "named")
    for n in range(8):
        client.produce(str(n))
    assert client.size(partition=1) == {"status": "success", "size": 2}
    assert client.consume(partition=1)["message"] == "1"
    assert client.consume(partition=1)["message"] == "5"
    with pytest.raises(NoMessage):
        client.consume(partition=1)
    assert client.consume_all() == ["0", "2", "3", "4", "6", "7"]
    for call in (client.consume, client.size, lambda partition: client.produce("x", partition=partition)):
        with pytest.raises(PartitionNotFound):
            call(partition=4)


def test_a_consumer_of_one_partition_sees_only_that_one(standing: Standing) -> None:
    client = Client(standing, "single", partition=3)
    for n in range(8):
        client.produce(str(n))
    assert client.size() == {"status": "success", "size": 2, "partitions": {"3": 2}}
    with pytest.raises(PartitionNotFound):
        client.consume(partition=0)
    assert client.consume_all() == ["3", "7"]
    with pytest.raises(PartitionNotFound):
        client.another_consumer(partition=4)
    with pytest.raises(TopicNotFound):
        standing.post("/consumer/register", topic="nowhere")


def test_a_key_goes_to_one_partition(standing: Standing) -> None:
    client = Client(standing, "keys")
    places = {key: {client.produce("x", key=key)[0] for _ in range(3)} for key in "abcdefgh"}
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(set.union(*places.values())) > 1


def test_a_message_sent_again_with_its_sequence_is_written_once(standing: Standing) -> None:
    client = Client(standing, "again")
    places = [client.produce(f"m{n}", sequence=n) for n in range(6)]
    assert [partition for partition, _ in places] == [0, 1, 2, 3, 0, 1]
    assert client.produce("m4", sequence=4) == places[4]
    assert client.produce("m5", sequence=5) == places[5]
    assert client.consume_all() == [f"m{n}" for n in range(6)]
    client.produce("x", sequence=400)
    with pytest.raises(OutOfSequence):
        client.produce("y", sequence=80, partition=0)


def test_a_consumer_may_begin_with_what_comes_from_now_on(standing: Standing) -> None:
    client = Client(standing, "latest")
    for n in range(5):
        client.produce(f"before {n}")
    latest = client.another_consumer(start="latest")
    client.produce("after")
    assert client.consume_all(consumer_id=latest) == ["after"]
    assert client.consume_all()[-1] == "after"


def test_a_consumer_may_begin_at_a_moment(standing: Standing) -> None:
    client = Client(standing, "moment")
    client.produce("before")
    moment_us = time.time_ns() // 1000 + 1  # later than the message, whose timestamp is of before its answer
    while time.time_ns() // 1000 < moment_us:
        pass
    for n in range(4):
        client.produce(f"after {n}")
    by_number = client.another_consumer(start=moment_us)
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment_us // 10**6))}.{moment_us % 10**6:06}Z"
    by_text = client.another_consumer(start=text)
    assert sorted(client.consume_all(consumer_id=by_number)) == [f"after {n}" for n in range(4)]
    assert sorted(client.consume_all(consumer_id=by_text)) == [f"after {n}" for n in range(4)]
    for wrong in ("yesterday", "", -1):
        with pytest.raises(BadRequest):
            client.another_consumer(start=wrong)


def test_a_consumer_may_wait_for_a_message(standing: Standing) -> None:
    client = Client(standing, "waiting")

    async def wait_and_produce() -> Any:
        query = {"topic": "waiting", "consumer_id": client.consumer_id, "wait_ms": 20_000}
        waiting = [
            asyncio.create_task(
                standing.caller.get(endpoint, "/consumer/consume", **(query | {"consumer_id": consumer}))
            )
            for endpoint, consumer in (
                (standing.primary, client.consumer_id),
                (standing.read_only, other),
            )
        ]
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in waiting)
        await standing.caller.post(
            standing.primary,
            "/producer/produce",
            topic="waiting",
            producer_id=client.producer_id,
            message="here",
            partition=2,
        )
        return await asyncio.gather(*waiting)

    other = client.another_consumer(partition=2)
    began = time.monotonic()
    assert [answer["message"] for answer in standing.run(wait_and_produce())] == ["here", "here"]
    assert time.monotonic() - began < 10
    with pytest.raises(NoMessage):
        client.consume(wait_ms=50)


def test_who_hangs_up_while_waiting_is_given_nothing(standing: Standing) -> None:
    client = Client(standing, "hung-up")

    async def under_way() -> int:
        metrics = await standing.caller.client.request(standing.read_only, "GET", "/metrics", seconds_max=10)
        line = next(x for x in metrics.body.decode().splitlines() if x.startswith("talweg_http_requests_u"))
        return int(float(line.split()[1])) - 1  # without this one

    async def nobody_waits() -> bool:
        return not await under_way()

    async def wait_and_hang_up() -> None:
        where = urlsplit(standing.read_only)
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        query = f"topic=hung-up&consumer_id={client.consumer_id}&wait_ms=25000"
        writer.write(f"GET /consumer/consume?{query} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await until(under_way, "it waits")
        writer.close()
        async with asyncio.timeout(15):
            await until(nobody_waits)

    standing.run(wait_and_hang_up())
    client.produce("for whoever asks next")
    assert client.consume()["message"] == "for whoever asks next"


def test_a_message_that_is_no_text_comes_in_base64(standing: Standing) -> None:
    client = Client(standing, "bytes")
    partition = standing.get("/topics/bytes/partitions")["partitions"][0]
    brokers = {b["id"]: b["endpoint"] for b in standing.get("/admin/brokers")["brokers"]}
    standing.run(
        standing.caller.client.request(
            brokers[partition["leader"]],
            "POST",
            "/v1/topics/bytes/partitions/0/records",
            encode_values([b"\xff\x00"], timestamp=5),
            media_type="application/vnd.talweg.frames",
            seconds_max=10.0,
        )
    )
    read = client.consume()
    assert read["message"] is None
    assert base64.b64decode(read["message_base64"]) == b"\xff\x00"
    assert read["producer_id"] is None
    assert read["timestamp"] == 5


def test_a_client_of_another_topic_is_not_found(standing: Standing) -> None:
    client, other = Client(standing, "mine"), Client(standing, "yours")
    with pytest.raises(ProducerNotFound, match="'mine'"):
        standing.post("/producer/produce", topic="mine", producer_id=other.producer_id, message="x")
    with pytest.raises(ProducerNotFound):
        standing.post("/producer/produce", topic="mine", producer_id=10**9, message="x")
    with pytest.raises(ConsumerNotFound, match="'mine'"):
        client.consume(consumer_id=other.consumer_id)
    with pytest.raises(ConsumerNotFound):
        standing.get("/size", topic="mine", consumer_id=10**9)


def test_a_message_over_the_limit_is_refused(standing: Standing) -> None:
    client = Client(standing, "large")
    client.produce("x" * (1 << 20))
    with pytest.raises(BodyTooLarge):
        client.produce("x" * ((1 << 20) + 1))
    assert client.size()["size"] == 1


def test_clients_are_listed_with_their_last_heartbeat(standing: Standing) -> None:
    client = Client(standing, "listed")
    registered = {p["id"]: p for p in standing.get("/admin/producers")["producers"]}[client.producer_id]
    assert (registered["topic"], registered["status"]) == ("listed", "active")
    standing.post("/producer/heartbeat", id=client.producer_id)
    standing.post("/consumer/heartbeat", id=client.consumer_id)
    heard = {p["id"]: p for p in standing.get("/admin/producers")["producers"]}[client.producer_id]
    assert heard["last_heartbeat"] > registered["last_heartbeat"]
    consumers = {c["id"] for c in standing.get("/admin/consumers")["consumers"]}
    assert client.consumer_id in consumers
    with pytest.raises(ProducerNotFound):
        standing.post("/producer/heartbeat", id=10**9)
    with pytest.raises(ConsumerNotFound):
        standing.post("/consumer/heartbeat", id=10**9)


def test_brokers_are_listed_and_leaders_are_spread(standing: Standing) -> None:
    standing.post("/topics", name="spread", partitions=6)
    brokers = standing.get("/admin/brokers")["brokers"]
    assert [broker["id"] for broker in brokers] == [0, 1, 2]
    assert {broker["status"] for broker in brokers} == {"active"}
    assert all(broker["partitions"] >= 6 for broker in brokers)
    assert sum(broker["leaders"] for broker in brokers) > 0
    leaders = [p["replicas"][0] for p in standing.get("/topics/spread/partitions")["partitions"]]
    assert {leaders.count(broker) for broker in range(3)} == {2}


def test_only_brokers_at_allowed_addresses_are_added(standing: Standing) -> None:
    with pytest.raises(Forbidden):
        standing.post("/admin/broker/add", endpoint="http://192.0.2.1:80")
    for endpoint in (
        "http://127.0.0.1:1",
        standing.primary,
        "ftp://127.0.0.1:80",
        "nonsense",
        "http://a b:1",
    ):
        with pytest.raises(BadRequest):
            standing.post("/admin/broker/add", endpoint=endpoint)
    known = standing.get("/admin/brokers")["brokers"][0]
    for endpoint in (known["endpoint"], f"{known['endpoint']}/"):
        assert standing.post("/admin/broker/add", endpoint=endpoint)["broker_id"] == known["id"]
    for wrong in (
        {"incarnation": "another"},
        {"peer_endpoint": "127.0.0.1:1"},
        {"peer_endpoint": "nonsense"},
    ):
        with pytest.raises(BadRequest):
            standing.post("/admin/broker/add", endpoint=known["endpoint"], **wrong)
    assert standing.get("/admin/brokers")["brokers"][0]["endpoint"] == known["endpoint"]


def test_a_broker_whose_partitions_have_nowhere_to_go_is_not_removed(standing: Standing) -> None:
    standing.post("/topics", name="full")
    with pytest.raises(NowhereToMove):
        standing.post("/admin/broker/remove", broker_id=0)
    for call in ("remove", "activate", "deactivate"):
        with pytest.raises(BrokerNotFound):
            standing.post(f"/admin/broker/{call}", broker_id=99)


def test_a_manager_says_who_it_is(standing: Standing) -> None:
    face = standing.get("/")
    assert (face["role"], face["healthy"]) == ("primary", True)
    read_only = standing.run(standing.caller.get(standing.read_only, "/"))
    assert (read_only["role"], read_only["primary"]) == ("read-only", standing.primary)


def test_clients_find_leaders_and_their_terms(standing: Standing) -> None:
    standing.post("/topics", name="found", partitions=2)
    for endpoint in (standing.primary, standing.read_only):
        metadata = standing.run(standing.caller.get(endpoint, "/v1/metadata", topics="found"))
        assert [topic["topic"] for topic in metadata["topics"]] == ["found"]
        assert {broker["id"] for broker in metadata["brokers"]} == {0, 1, 2}
        partitions = metadata["topics"][0]["partitions"]
        assert all(p["leader"] in p["replicas"] for p in partitions)
    with pytest.raises(TopicNotFound):
        standing.get("/v1/metadata", topics="nowhere")


def test_writes_through_a_read_only_manager_reach_the_primary(standing: Standing) -> None:
    caller, endpoint = standing.caller, standing.read_only

    async def write() -> None:
        await caller.post(endpoint, "/topics", name="through", partitions=2)
        producer = (await caller.post(endpoint, "/producer/register", topic="through"))["producer_id"]
        consumer = (await caller.post(endpoint, "/consumer/register", topic="through"))["consumer_id"]
        for n in range(3):
            await caller.post(
                endpoint, "/producer/produce", topic="through", producer_id=producer, message=str(n)
            )
        read = [
            (await caller.get(endpoint, "/consumer/consume", topic="through", consumer_id=consumer))[
                "message"
            ]
            for _ in range(3)
        ]
        assert read == ["0", "1", "2"]
        await caller.post(endpoint, "/producer/heartbeat", id=producer)
        with pytest.raises(TopicExists):
            await caller.post(endpoint, "/topics", name="through")
        await caller.delete(endpoint, "/topics/through")

    standing.run(write())
