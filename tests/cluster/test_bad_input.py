"""Bad input of every sort, on real processes: refused with a reason, nothing of it stored, nobody falls."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest

from cluster.clients import Seen, read_all
from cluster.conftest import QUICK
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-input")

TOPIC = "kept"


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[LocalCluster]:
    limits = {"--message-max": "64 KiB", "--body-max": "256 KiB"}
    settings = {"broker": QUICK["broker"] | {"--body-max": "256 KiB"}, "manager": QUICK["manager"] | limits}
    with LocalCluster(settings=settings, readers=1) as cluster:
        with cluster.ask() as manager:
            manager.post("/topics", name=TOPIC, partitions=2)
            producer = manager.post("/producer/register", topic=TOPIC)["producer_id"]
            consumer = manager.post("/consumer/register", topic=TOPIC)["consumer_id"]
            assert (producer, consumer) == (0, 0)
            manager.post("/producer/produce", topic=TOPIC, producer_id=0, message="p:0", partition=0)
        yield cluster


@pytest.fixture(params=["primary", "reader-1"])
def manager(request: pytest.FixtureRequest, module_cluster: LocalCluster) -> Iterator[Asker]:
    with module_cluster.ask(request.param) as asker:
        yield asker


def failure(answer: tuple[int, bytes]) -> tuple[int, str, str]:
    """Status, code and message. Every failure has them, and none has a trace."""
    status, content = answer
    body = json.loads(content)
    assert body["status"] == "failure"
    assert isinstance(body["retriable"], bool)
    assert "Traceback" not in body["message"]
    return status, body["code"], body["message"]


@pytest.fixture(autouse=True)
def nothing_is_stored(module_cluster: LocalCluster) -> Iterator[None]:
    yield
    endpoints = [module_cluster.url]
    assert read_all(endpoints, TOPIC) == [Seen(0, 0, "p:0")]
    with module_cluster.ask() as manager:
        assert manager.get("/topics")["topics"] == [TOPIC]
    assert all(process.running for process in module_cluster.processes.values())
    for process in module_cluster.processes.values():
        assert "Traceback" not in process.log.read_text()


PRODUCE = {"topic": TOPIC, "producer_id": 0, "message": "x"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"topic": "kept", "producer_id": 0, "message": "x"',
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"topic": "kept", "producer_id": 0, "message": "\\ud800"}',
        b"[" * 10_000,
    ],
)
def test_bad_json(manager: Asker, body: bytes) -> None:
    assert failure(manager.request("POST", "/producer/produce", body))[0] == 400


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"topic": 5}, "topic"),
        ({"topic": None}, "topic"),
        ({"producer_id": "0"}, "producer_id"),
        ({"producer_id": -1}, "producer_id"),
        ({"producer_id": 0.5}, "producer_id"),
        ({"producer_id": True}, "producer_id"),
        ({"producer_id": 1 << 70}, "producer_id"),
        ({"message": 5}, "message"),
        ({"message": ["x"]}, "message"),
        ({"message": {"a": 1}}, "message"),
        ({"partition": "0"}, "partition"),
        ({"partition": -1}, "partition"),
        ({"partition": [0]}, "partition"),
        ({"sequence": "1"}, "sequence"),
        ({"sequence": -1}, "sequence"),
        ({"surprise": 1}, "surprise"),
        ({"Message": "x"}, "Message"),
    ],
)
def test_wrong_types_and_unknown_fields_are_named(
    manager: Asker, change: dict[str, object], named: str
) -> None:
    body = json.dumps(PRODUCE | change).encode()
    status, _, message = failure(manager.request("POST", "/producer/produce", body))
    assert status == 400
    assert named in message


@pytest.mark.parametrize("missing", sorted(PRODUCE))
def test_a_missing_parameter_is_named(manager: Asker, missing: str) -> None:
    body = json.dumps({name: value for name, value in PRODUCE.items() if name != missing}).encode()
    status, _, message = failure(manager.request("POST", "/producer/produce", body))
    assert status == 400
    assert missing in message


@pytest.mark.parametrize(
    "query",
    [
        "",
        "topic=kept",
        "consumer_id=0",
        "topic=kept&consumer_id=x",
        "topic=kept&consumer_id=-1",
        "topic=kept&consumer_id=0&partition=one",
        "topic=kept&consumer_id=0&surprise=1",
        "topic=kept&consumer_id=0&wait_ms=-1",
        "topic=kept&consumer_id=0&consumer_id=1",
        "topic=kept&consumer_id=%00",
    ],
)
@pytest.mark.parametrize("path", ["/consumer/consume", "/size"])
def test_wrong_queries(manager: Asker, path: str, query: str) -> None:
    assert failure(manager.request("GET", f"{path}?{query}"))[0] == 400


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("POST", "/producer/produce", PRODUCE | {"topic": "gone"}, "producer_not_found"),
        ("POST", "/producer/produce", PRODUCE | {"producer_id": 777777}, "producer_not_found"),
        ("POST", "/producer/produce", PRODUCE | {"partition": 9}, "partition_not_found"),
        ("POST", "/consumer/register", {"topic": "gone"}, "topic_not_found"),
        ("POST", "/consumer/register", {"topic": TOPIC, "partition": 9}, "partition_not_found"),
        ("POST", "/producer/heartbeat", {"id": 777777}, "producer_not_found"),
        ("POST", "/consumer/heartbeat", {"id": 777777}, "consumer_not_found"),
        ("POST", "/admin/broker/remove", {"broker_id": 777777}, "broker_not_found"),
        ("POST", "/admin/broker/activate", {"broker_id": 777777}, "broker_not_found"),
        ("GET", "/consumer/consume?topic=kept&consumer_id=777777", None, "consumer_not_found"),
        ("GET", "/size?topic=kept&consumer_id=777777", None, "consumer_not_found"),
        ("GET", "/topics/gone/partitions", None, "topic_not_found"),
        ("DELETE", "/topics/gone", None, "topic_not_found"),
        ("GET", "/nothing/here", None, "path_not_found"),
    ],
)
def test_what_does_not_exist(
    manager: Asker, method: str, target: str, body: dict[str, object] | None, code: str
) -> None:
    content = None if body is None else json.dumps(body).encode()
    assert failure(manager.request(method, target, content))[:2] == (404, code)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/producer/produce"),
        ("POST", "/consumer/consume"),
        ("PUT", "/topics"),
        ("DELETE", "/topics"),
        ("PATCH", "/"),
        ("POST", "/size"),
        ("BREW", "/topics"),
    ],
)
def test_wrong_methods(manager: Asker, method: str, target: str) -> None:
    status, code, _ = failure(manager.request(method, target, b"{}" if method == "POST" else None))
    assert status in (400, 405)
    assert code in ("method_not_allowed", "bad_request")


BAD_NAMES = [
    "", ".", "..", "__ours", "a/b", "/", "a b", "a\nb", "a\0b", "\x7f", "näme", "a" * 250, "../../etc",
    "a\\b", "a?b", "a#b", "a%2fb", "\u202e", "\U0001f642",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_no_topic_can_have(manager: Asker, name: str) -> None:
    body = json.dumps({"name": name}).encode()
    assert failure(manager.request("POST", "/topics", body))[0] == 400
    body = json.dumps({"topic": name}).encode()
    assert failure(manager.request("POST", "/producer/register", body))[0] == 400
    status = failure(manager.request("GET", f"/topics/{quote(name, safe='')}/partitions"))[0]
    assert status in (400, 404)


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 0},
        {"partitions": -1},
        {"partitions": "4"},
        {"partitions": 1 << 40},
        {"replication": 0},
        {"replication": 1 << 40},
        {"surprise": 1},
    ],
)
def test_topics_that_cannot_be(manager: Asker, change: dict[str, object]) -> None:
    body = json.dumps({"name": "new"} | change).encode()
    status, code, _ = failure(manager.request("POST", "/topics", body))
    assert status in (400, 409, 503)
    assert status == 400 or code in ("too_many_partitions", "too_few_brokers")


def test_more_partitions_than_the_brokers_carry(manager: Asker) -> None:
    body = json.dumps({"name": "new", "partitions": 121}).encode()
    assert failure(manager.request("POST", "/topics", body))[:2] == (409, "too_many_partitions")


def test_a_topic_that_exists(manager: Asker) -> None:
    body = json.dumps({"name": TOPIC}).encode()
    assert failure(manager.request("POST", "/topics", body))[:2] == (409, "topic_exists")


@pytest.mark.parametrize("message_bytes", [64 * 1024 + 1, 300 * 1024, 3 << 20])
def test_bodies_over_the_limit(manager: Asker, message_bytes: int) -> None:
    body = json.dumps(PRODUCE | {"message": "x" * message_bytes}).encode()
    assert failure(manager.request("POST", "/producer/produce", body))[0] == 413


def test_a_body_of_another_media_type(manager: Asker) -> None:
    body = json.dumps(PRODUCE).encode()
    assert failure(manager.request("POST", "/producer/produce", body, "text/html"))[0] == 415


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "ftp://127.0.0.1:1", "http://127.0.0.1:1"])
def test_brokers_that_are_none(manager: Asker, endpoint: str) -> None:
    body = json.dumps({"endpoint": endpoint}).encode()
    assert failure(manager.request("POST", "/admin/broker/add", body))[0] == 400


def test_a_broker_at_an_address_that_is_not_allowed(manager: Asker) -> None:
    body = json.dumps({"endpoint": "http://192.0.2.1:80"}).encode()
    assert failure(manager.request("POST", "/admin/broker/add", body))[0] == 403


def test_a_manager_is_no_broker(manager: Asker, module_cluster: LocalCluster) -> None:
    body = json.dumps({"endpoint": module_cluster.url}).encode()
    assert failure(manager.request("POST", "/admin/broker/add", body))[0] == 400


@pytest.mark.parametrize("name", ["primary", "broker-1"])
@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"\0" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http(module_cluster: LocalCluster, name: str, sent: bytes) -> None:
    where = urlsplit(module_cluster.endpoint(name))
    with socket.create_connection((where.hostname, where.port), 5) as raw:
        raw.settimeout(0.5)
        answer = b""
        try:
            raw.sendall(sent)
            answer = raw.recv(65536)
        except (TimeoutError, ConnectionError):
            pass
        assert b"Traceback" not in answer
        assert not answer.startswith(b"HTTP/1.1 5")


# The batch API, at brokers


def leader_of(cluster: LocalCluster, partition: int = 0) -> Asker:
    return cluster.ask(cluster.wait_for_leader(TOPIC, partition))


RECORDS = f"/v1/topics/{TOPIC}/partitions/0/records"


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("application/x-ndjson", b"{"),
        ("application/x-ndjson", b'{"value": 5}\n'),
        ("application/x-ndjson", b'{"nothing": "x"}\n'),
        ("application/vnd.apache.arrow.stream", b""),
        ("application/vnd.apache.arrow.stream", b"no arrow at all"),
        ("application/vnd.apache.arrow.stream", b"\xff\xff\xff\xff" + b"\0" * 60),
        ("application/vnd.talweg.frames", b"\0" * 200),
        ("text/plain", b"hello"),
    ],
)
def test_batches_that_are_none(module_cluster: LocalCluster, media_type: str, body: bytes) -> None:
    with leader_of(module_cluster) as broker:
        assert failure(broker.request("POST", RECORDS, body, media_type))[0] in (400, 415)


def test_a_batch_over_the_limit(module_cluster: LocalCluster) -> None:
    with leader_of(module_cluster) as broker:
        body = b'{"value": "' + b"x" * 400_000 + b'"}\n'
        assert failure(broker.request("POST", RECORDS, body, "application/x-ndjson"))[0] == 413


@pytest.mark.parametrize(
    ("target", "statuses"),
    [
        (f"{RECORDS}?offset=-1", (400,)),
        (f"{RECORDS}?offset=x", (400,)),
        (f"{RECORDS}?offset=99", (416,)),
        (f"{RECORDS}?offset=0&max_bytes=-1", (400,)),
        (f"/v1/topics/{TOPIC}/partitions/99/records?offset=0", (404,)),
        ("/v1/topics/gone/partitions/0/records?offset=0", (404,)),
        ("/v1/topics/..%2f..%2fetc/partitions/0/records?offset=0", (400, 404)),
    ],
)
def test_reads_that_cannot_be(module_cluster: LocalCluster, target: str, statuses: tuple[int, ...]) -> None:
    with leader_of(module_cluster) as broker:
        assert failure(broker.request("GET", target))[0] in statuses
