"""MyProducer, MyConsumer and ApiHandler, by their names and as they are described."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import myqueue
from myqueue import ApiHandler, Message, MyConsumer, MyProducer
from myqueue.managers import read_addresses
from strangers import web_server
from talweg.errors import (
    ConsumerNotFound,
    InvalidSetting,
    NoMessage,
    PartitionNotFound,
    ProducerNotFound,
    TopicExists,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("myqueue")


def texts(consumer: MyConsumer, count: int) -> list[str | None]:
    found: list[str | None] = []
    while len(found) < count:
        message = consumer.consume(wait_seconds=10)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message.text)
    return found


def test_the_public_names_are_there() -> None:
    assert {"MyProducer", "MyConsumer", "ApiHandler"} <= set(myqueue.__all__)


def test_the_import_is_light() -> None:
    heavy = "pyarrow numpy msgspec uvicorn uvloop rich typer asyncio"
    script = f"import sys, myqueue; print([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_produced_is_consumed(broker: str, topic: str) -> None:
    with MyProducer([topic], broker) as producer, MyConsumer([topic], broker) as consumer:
        produced = producer.produce(topic, "INFO grüße\n\ttab")
        message = consumer.consume(topic, wait_seconds=10)
        assert isinstance(message, Message)
        assert message.text == "INFO grüße\n\ttab"
        assert message.value == message.text.encode()
        assert (message.topic, message.partition, message.offset) == (topic, *produced)
        assert message.producer_id == producer.producer_ids[topic]
        assert consumer.consume(topic) is None


def test_a_broker_leads_to_the_managers_that_it_knows(cluster: LocalCluster, topic: str) -> None:
    address = cluster.endpoint("broker-1").removeprefix("http://")
    with MyProducer(topic, address) as producer, MyConsumer(topic, address, start="earliest") as consumer:
        producer.produce(topic, "found")
        assert texts(consumer, 1) == ["found"]


def test_a_server_of_somebody_else_is_passed_over(broker: str, topic: str) -> None:
    with web_server() as stranger, ApiHandler(f"{stranger},{broker}") as api:
        api.create_topic(topic)
        assert topic in api.list_topics()


def test_an_address_at_which_there_is_no_manager_is_said_at_once(topic: str) -> None:
    with web_server() as stranger, ApiHandler(stranger, timeout=600) as api:
        for call in (api.list_topics, lambda: api.create_topic(topic)):
            with pytest.raises(InvalidSetting, match=f"broker: {stranger} is no server of Talweg"):
                call()


def test_a_gateway_whose_managers_are_away_is_no_wrong_address() -> None:
    with (
        web_server(gateway=True) as address,
        ApiHandler(address, timeout=0.5) as api,
        pytest.raises(Unavailable, match="answered with 502"),
    ):
        api.list_topics()


def test_a_consumer_begins_at_the_end_of_the_topic(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer:
        for number in range(6):
            producer.produce(topic, f"before {number}")
        with MyConsumer(topic, broker) as consumer, MyConsumer(topic, broker, start="earliest") as early:
            assert consumer.consume() is None
            producer.produce(topic, "after")
            assert texts(consumer, 1) == ["after"]
            assert texts(early, 7) == [f"before {number}" for number in range(6)] + ["after"]


def test_one_producer_and_one_consumer_see_the_order_of_sending_wherever_the_topic_stands(
    broker: str, topic: str
) -> None:
    for count in (3, 6):  # so that the second begins where partitions are unequal
        with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
            sent = [f"{count}: {number}" for number in range(count)]
            places = [producer.produce(topic, text).partition for text in sent]
            assert len(set(places)) == min(count, 4)
            assert texts(consumer, count) == sent


def test_every_consumer_is_given_every_message(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as one:
        other = MyConsumer(topic, broker)
        for number in range(5):
            producer.produce(topic, str(number))
        assert one.size() == other.size(topic) == 5
        assert texts(one, 5) == texts(other, 5)
        assert one.size() == 0
        other.close()


def test_a_topic_that_nobody_registered_for_is_refused(broker: str, topic: str) -> None:
    with pytest.raises(TopicNotFound, match=f"there is no topic {topic!r}"):
        MyConsumer(topic, broker)
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        with pytest.raises(ProducerNotFound, match="register"):
            producer.produce("another", "x")
        with pytest.raises(ConsumerNotFound, match="register"):
            consumer.consume("another")
        with pytest.raises(PartitionNotFound):
            producer.produce(topic, "x", partition=4)
        assert producer.register(topic) == producer.producer_ids[topic]
        producer.register(f"{topic}.more")
        producer.produce(f"{topic}.more", "x")
        assert producer.topics == (topic, f"{topic}.more")


def test_a_fork_is_refused_because_its_messages_would_be_taken_for_copies(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        child = os.fork()
        if child == 0:
            said = 0
            for use in (lambda: producer.produce(topic, "from the fork", partition=0), consumer.consume):
                try:
                    use()
                except RuntimeError as error:
                    said += "fork" in str(error)
            os._exit(said)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert producer.produce(topic, "from the parent", partition=0).offset == 0
        assert texts(consumer, 1) == ["from the parent"]


def test_one_partition_may_be_read_alone(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker, partition=2) as consumer:
        for partition in (0, 2, 3, 2):
            producer.produce(topic, f"in {partition}", partition=partition)
        assert texts(consumer, 2) == ["in 2", "in 2"]
        assert consumer.consume() is None


def test_a_key_has_one_partition_whoever_sends(api: ApiHandler, broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer:
        other = api.register_producer(topic)
        for key in ("a", "b", "schlüssel", ""):
            ours = {producer.produce(topic, "x", key=key).partition for _ in range(2)}
            assert ours == {api.produce(topic, other, "x", key=key).partition}


def test_several_topics_are_consumed_in_turn(broker: str, topic: str) -> None:
    names = [f"{topic}.{number}" for number in range(3)]
    with MyProducer(names, broker) as producer, MyConsumer(names, broker) as consumer:
        for name in names:
            for number in range(4):
                producer.produce(name, f"{name} {number}")
        found = list(consumer.messages(idle_seconds=0.5))
        assert Counter(message.topic for message in found) == dict.fromkeys(names, 4)
        for name in names:
            assert [m.text for m in found if m.topic == name] == [f"{name} {n}" for n in range(4)]


def test_a_wait_ends_when_a_message_comes(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.consume, topic, wait_seconds=60)
            producer.produce(topic, "at last")
            message = waiting.result(timeout=20)
        assert message is not None
        assert message.text == "at last"


def test_a_consumer_that_is_closed_ends_its_iteration(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        seen: list[Message] = []
        reading = threading.Thread(target=lambda: seen.extend(consumer))
        reading.start()
        producer.produce(topic, "x")
        wait_until(lambda: consumer.size() == 0, "it to be read", 20)
        consumer.close()
        reading.join(20)
        assert not reading.is_alive()
        assert [message.text for message in seen] == ["x"]
        with pytest.raises(RuntimeError, match="closed"):
            consumer.consume()


def test_many_threads_share_a_producer_and_a_consumer(broker: str, topic: str) -> None:
    threads, each = 16, 20
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:

        def send(thread: int) -> None:
            for number in range(each):
                producer.produce(topic, f"{thread}:{number}", key=f"{thread}" if thread % 2 else None)

        def read(_: int) -> list[str | None]:
            return texts(consumer, threads * each // 4)

        with ThreadPoolExecutor(threads + 4) as pool:
            reading = [pool.submit(read, number) for number in range(4)]
            list(pool.map(send, range(threads)))
            came = [text for future in reading for text in future.result(timeout=60)]
        assert Counter(came) == Counter(f"{t}:{n}" for t in range(threads) for n in range(each))
        assert consumer.size() == 0


def test_clients_are_listed_as_active_until_they_are_closed(api: ApiHandler, broker: str, topic: str) -> None:
    def status(clients: list[dict[str, object]], number: int) -> object:
        return next((client["status"] for client in clients if client["id"] == number), None)

    producer = MyProducer(topic, broker, heartbeat_seconds=0.3)
    consumer = MyConsumer(topic, broker, heartbeat_seconds=0.3)
    producing, consuming = producer.producer_ids[topic], consumer.consumer_ids[topic]
    wait_until(lambda: status(api.list_consumers(), consuming) is not None, "the list to know it", 20)
    registered = time.monotonic()
    # Longer than one that is silent would be listed.
    while time.monotonic() - registered < 5:
        assert status(api.list_producers(), producing) == "active"
        assert status(api.list_consumers(), consuming) == "active"
        time.sleep(0.5)
    producer.close()
    consumer.close()
    wait_until(lambda: status(api.list_producers(), producing) == "inactive", "it to be inactive", 20)
    wait_until(lambda: status(api.list_consumers(), consuming) == "inactive", "it to be inactive", 20)


def test_a_client_that_is_forgotten_falls_silent(broker: str, topic: str) -> None:
    def beating() -> int:
        return sum(thread.name == "myqueue heartbeat" for thread in threading.enumerate())

    before = beating()
    producer = MyProducer(topic, broker, heartbeat_seconds=0.1)
    assert beating() == before + 1
    del producer
    wait_until(lambda: beating() == before, "its heartbeat to end", 20)


def test_the_handler_answers_every_call(api: ApiHandler, topic: str) -> None:
    assert api.create_topic(topic, partitions=2) == 2
    with pytest.raises(TopicExists):
        api.create_topic(topic)
    api.ensure_topic(topic)
    assert topic in api.list_topics()
    assert [partition.id for partition in api.list_partitions(topic)] == [0, 1]
    producer, consumer = api.register_producer(topic), api.register_consumer(topic)
    api.producer_heartbeat(producer)
    api.consumer_heartbeat(consumer)
    assert api.produce(topic, producer, "a", partition=1) == (1, 0)
    assert api.produce(topic, producer, "b", partition=0, sequence=0) == (0, 0)
    assert api.produce(topic, producer, "b", partition=0, sequence=0) == (0, 0)
    assert api.size(topic, consumer) == 2
    assert api.sizes(topic, consumer) == {0: 1, 1: 1}
    assert {api.consume(topic, consumer).text for _ in range(2)} == {"a", "b"}
    with pytest.raises(NoMessage):
        api.consume(topic, consumer)
    assert api.health()["healthy"]
    assert {each["status"] for each in api.list_brokers()} == {"active"}
    number = api.list_brokers()[0]["id"]
    api.deactivate_broker(number)
    wait_until(lambda: api.list_brokers()[0]["status"] == "deactivated", "it to be deactivated", 20)
    api.activate_broker(number)
    wait_until(lambda: api.list_brokers()[0]["status"] == "active", "it to be active", 20)
    api.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        api.delete_topic(topic)


def test_addresses_are_taken_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_addresses("a:1") == ("a:1",)
    assert read_addresses("http://a:1/, b:2,a:1") == ("a:1", "b:2")
    assert read_addresses(["http://a", "[::1]:3"]) == ("a:80", "[::1]:3")
    monkeypatch.setenv("TALWEG_URL", "http://c:9")
    assert read_addresses(None) == ("c:9",)
    monkeypatch.delenv("TALWEG_URL")
    assert read_addresses(None) == ("127.0.0.1:8000",)
    for wrong in ("https://a:1", "a:port", "http://a:1/path", "user@a:1", " ", "a:1,"):
        with pytest.raises(InvalidSetting, match="HOST:PORT"):
            read_addresses(wrong)


def test_an_address_where_nobody_listens_is_said_to_be_so() -> None:
    with ApiHandler("127.0.0.1:1", timeout=1) as api, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        api.list_topics()


def test_a_manager_that_is_gone_is_passed_over(cluster: LocalCluster, broker: str, topic: str) -> None:
    with MyProducer(topic, f"127.0.0.1:1,{broker}") as producer:
        assert producer.produce(topic, "x").offset == 0


def test_killed_managers_cost_a_delay_and_every_message_is_there_once(
    cluster: LocalCluster, broker: str, topic: str
) -> None:
    stop = threading.Event()
    acknowledged: list[list[str]] = [[] for _ in range(4)]
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:

        def send(thread: int) -> None:
            while not stop.is_set():
                text = f"{thread}:{len(acknowledged[thread])}"
                producer.produce(topic, text)
                acknowledged[thread].append(text)

        def wait_for_more() -> None:
            goals = [len(each) + 20 for each in acknowledged]
            done = lambda: all(len(e) >= g for e, g in zip(acknowledged, goals, strict=True))  # noqa: E731
            wait_until(done, "messages to be acknowledged", 40)

        came: list[str | None] = []

        def read() -> None:
            while not stop.is_set() or consumer.size():
                message = consumer.consume(wait_seconds=0.2)
                if message is not None:
                    came.append(message.text)

        with ThreadPoolExecutor(5) as pool:
            working = [pool.submit(send, number) for number in range(4)] + [pool.submit(read)]
            try:
                wait_for_more()
                for name in (cluster.primary, *cluster.readers, *cluster.standbys):
                    cluster.kill(name)
                    wait_for_more()
                    cluster.restart(name)
            finally:
                stop.set()
            for each in working:
                each.result(timeout=60)
    assert Counter(came) == Counter(text for thread in acknowledged for text in thread)


def test_at_the_deadline_the_reason_is_raised(cluster: LocalCluster, topic: str) -> None:
    with MyProducer(topic, cluster.endpoint(cluster.primary), timeout=1.5) as producer:
        producer.produce(topic, "x")
        cluster.kill(*cluster.managers)
        began_at = time.monotonic()
        with pytest.raises(Unavailable):
            producer.produce(topic, "y")
        assert time.monotonic() - began_at < 10
