"""Between clients and cluster stands a gateway that misbehaves on purpose: answers are lost, and messages are
dropped. The first must do no harm, and the second must be found out."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from myqueue import ApiHandler, Message, MyConsumer, MyProducer
from talweg.errors import Unavailable
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("myqueue")

FORWARD, LOSE, SWALLOW, DOUBLE = "forward", "lose", "swallow", "double"
JSON = {"content-type": "application/json"}
Decide = Callable[[str, bytes], str]  # what to do with a request, by its path with query and its body


class Gateway(ThreadingHTTPServer):
    """Sends requests on to a manager, unless `decide` says otherwise."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = endpoint.removeprefix("http://")
        self.decide: Decide = lambda *_: FORWARD
        self.broker = f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        assert isinstance(self.server, Gateway)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        decision = self.server.decide(self.path, body)
        if decision == SWALLOW:
            self._answer(200, b'{"status":"success","partition":0,"offset":0}')
            return
        connection = http.client.HTTPConnection(self.server.behind, timeout=30)
        if decision == DOUBLE:
            # Without its sequence, so that it is taken for another one.
            again = {name: value for name, value in json.loads(body).items() if name != "sequence"}
            connection.request(self.command, self.path, json.dumps(again), JSON)
            connection.getresponse().read()
        connection.request(self.command, self.path, body or None, JSON)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if decision == LOSE:
            self.close_connection = True
        else:
            self._answer(response.status, content)

    do_POST = do_GET  # noqa: N815 - as the base calls it

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base has it
        pass


@pytest.fixture
def gateway(cluster: LocalCluster) -> Iterator[Gateway]:
    with Gateway(cluster.endpoint(cluster.primary)) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def every(count: int, path: str, decision: str) -> Decide:
    """Decides so for each `count`th request to a path."""
    seen = [0]

    def decide(target: str, _: bytes) -> str:
        if not target.startswith(path):
            return FORWARD
        seen[0] += 1
        return decision if seen[0] % count == 0 else FORWARD

    return decide


def test_a_produce_whose_answer_was_lost_is_written_once(
    gateway: Gateway, api: ApiHandler, broker: str, topic: str
) -> None:
    with MyProducer(topic, gateway.broker) as producer:
        gateway.decide = every(2, "/producer/produce", LOSE)
        places = [producer.produce(topic, str(number)) for number in range(12)]
    assert len(set(places)) == 12
    assert sum(partition.size or 0 for partition in api.list_partitions(topic)) == 12
    with MyConsumer(topic, broker, start="earliest") as consumer:
        read = [message.text for message in consumer.messages(idle_seconds=0.3)]
    assert read == [str(number) for number in range(12)]


def test_without_a_sequence_a_lost_answer_is_an_error(gateway: Gateway, topic: str) -> None:
    with ApiHandler(gateway.broker) as api:
        producer = api.register_producer(topic)
        gateway.decide = every(1, "/producer/produce", LOSE)
        with pytest.raises(Unavailable):
            api.produce(topic, producer, "x")


def test_a_thread_that_waits_does_not_hold_up_one_that_does_not(
    gateway: Gateway, broker: str, topic: str
) -> None:
    waits = threading.Event()  # a request of the one that waits is under way

    def watch(target: str, _: bytes) -> str:
        if target.startswith("/consumer/consume") and "wait" in target:
            waits.set()
        return FORWARD

    with MyProducer(topic, broker) as producer, MyConsumer(topic, gateway.broker) as consumer:
        gateway.decide = watch
        found: list[Message | None] = []
        waiter = threading.Thread(target=lambda: found.append(consumer.consume(topic, wait_seconds=60)))
        waiter.start()
        assert waits.wait(20)
        for seconds in (0, 0.1):
            assert consumer.consume(topic, wait_seconds=seconds) is None
        assert waiter.is_alive()
        for number in range(3):
            producer.produce(topic, str(number))
        read = {message.text for message in consumer.messages(idle_seconds=0.5)}
        waiter.join(30)
        assert read | {message.text for message in found if message} == {"0", "1", "2"}
        assert len(read) == 2, "each comes once"


def test_threads_that_wait_have_turns(broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        with ThreadPoolExecutor(4) as pool:
            reading = [pool.submit(consumer.consume, topic, wait_seconds=60) for _ in range(4)]
            for number in range(4):
                producer.produce(topic, str(number))
            read = [future.result() for future in reading]
        assert sorted(message.text or "" for message in read if message) == ["0", "1", "2", "3"]


def test_a_consume_whose_answer_was_lost_loses_no_message(gateway: Gateway, broker: str, topic: str) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, gateway.broker) as consumer:
        sent = [str(number) for number in range(13)]
        for text in sent:
            producer.produce(topic, text)
        # The first, before anything of any partition is known; every other one; and so the last.
        gateway.decide = every(2, "/consumer/consume", LOSE)
        gateway.decide("/consumer/consume", b"")
        read = [message.text for message in consumer.messages(idle_seconds=0.3)]
        assert sorted(read, key=lambda text: int(text or 0)) == sent
        gateway.decide = lambda *_: FORWARD
        assert consumer.consume() is None
        assert consumer.size() == 0


def test_a_manager_that_stands_still_and_takes_a_message_later_loses_none(
    cluster: LocalCluster, api: ApiHandler, broker: str, topic: str
) -> None:
    with MyProducer(topic, broker) as producer, MyConsumer(topic, broker) as consumer:
        for number in range(4):
            producer.produce(topic, str(number))
        # What a request does that nobody waits for any more.
        assert api.consume(topic, consumer.consumer_ids[topic]).text == "0"
        first = consumer.consume()
        producer.produce(topic, "4")
        rest = [message.text for message in consumer.messages(idle_seconds=0.3)]
        assert first is not None
        assert sorted([first.text or "", *(text or "" for text in rest)]) == ["0", "1", "2", "3", "4"]


def test_topics_are_created_and_deleted_although_answers_are_lost(gateway: Gateway, topic: str) -> None:
    with ApiHandler(gateway.broker) as api:
        gateway.decide = every(2, "/topics", LOSE)
        gateway.decide("/topics", b"")
        assert api.create_topic(topic, partitions=3) == 3
        gateway.decide = every(2, f"/topics/{topic}", LOSE)
        gateway.decide(f"/topics/{topic}", b"")
        assert len(api.list_partitions(topic)) == 3


def test_lines_of_a_tag_go_out_together_and_the_next_tag_waits_for_them(
    gateway: Gateway, broker: str, topic: str, tmp_path: Path
) -> None:
    topics = [f"{topic}.{number}" for number in range(3)]
    together = threading.Barrier(3)  # each waits until all three of a tag are here
    arrived: list[str] = []

    def gather(target: str, body: bytes) -> str:
        if target == "/producer/produce":
            arrived.append(json.loads(body)["message"])
            together.wait(10)
        return FORWARD

    gateway.decide = gather
    lines = [f"00:00:00\t{tag}\tP1-{tag}\t{name}" for tag in range(4) for name in topics]
    (tmp_path / "producer_1.txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "myqueue.runproduce", "--id", "1", "--topics", *topics]
    done = subprocess.run(
        [*command, "--broker", gateway.broker, "--log_loc", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert arrived == [str(tag) for tag in range(4) for _ in topics]


def test_a_set_up_finds_out_that_a_message_was_dropped(gateway: Gateway, tmp_path: Path) -> None:
    dropped = threading.Event()

    def drop_one(target: str, _: bytes) -> str:
        if target != "/producer/produce" or dropped.is_set():
            return FORWARD
        dropped.set()
        return SWALLOW

    gateway.decide = drop_one
    command = [sys.executable, "-m", "myqueue.setups", "2P2C", "--lines", "4", "--broker", gateway.broker]
    began_at = time.monotonic()
    done = subprocess.run(
        [*command, "--idle-seconds", "3", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - began_at < 40
    summary = json.loads(done.stdout)
    assert sum(each["missing"] for each in summary["deliveries"]) == 2, "each of both consumers lacks it"
    named = [complaint for complaint in summary["complaints"] if "1 missing: '" in complaint]
    assert [complaint.partition(",")[0] for complaint in named] == ["consumer 1", "consumer 2"]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("myqueue-2P2C-*/consumer_1.txt")), "the logs are kept to be looked at"


def test_a_set_up_finds_out_that_a_message_is_there_twice(gateway: Gateway, tmp_path: Path) -> None:
    # The last one of a producer: what comes after the count is reached must be noticed, too.
    last = b"line 4 of producer 2"
    gateway.decide = lambda target, body: DOUBLE if "produce" in target and last in body else FORWARD
    command = [sys.executable, "-m", "myqueue.setups", "2P2C", "--lines", "4", "--broker", gateway.broker]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "more messages were written than the producers sent: 1 too many" in done.stderr


def test_a_set_up_finds_out_that_a_stranger_sends_too(
    cluster: LocalCluster, broker: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    with MyProducer("T1", broker) as stranger:

        def disturb() -> None:
            while not stop.is_set():
                stranger.produce("T1", "from a stranger")

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            command = [sys.executable, "-m", "myqueue.setups", "2P2C", "--broker", broker, "--lines", "4"]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=60,
                env={**os.environ, "TMPDIR": str(tmp_path)},
                check=False,
            )
        finally:
            stop.set()
            disturbing.join()
    assert done.returncode == 1
    assert "too many: 'from a stranger'" in done.stderr
