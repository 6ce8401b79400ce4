"""What a producer accepts arrives: all of it, in order, where it belongs, as it was. For both producers."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from client.producing import FACES, AsyncFace, closing, read_topic, values_of
from talweg.client.async_producer import AsyncProducer
from talweg.client.delivery import Delivery, Sent, SentRun, wait_for
from talweg.client.gathering import SHARED
from talweg.client.producer import Producer
from talweg.errors import (
    BadRequest,
    BadTopicName,
    BatchTooLarge,
    Closed,
    CorruptBatch,
    InvalidSetting,
    Overloaded,
    PartitionNotFound,
)
from talweg.testing.cluster import LocalCluster


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


@pytest.fixture
def producer(face: Any, servers: list[str]) -> Iterator[Any]:
    with closing(face(servers)) as made:
        yield made


def test_single_messages_arrive_where_their_deliveries_say(
    producer: Any, servers: list[str], topic: str
) -> None:
    deliveries = [producer.send(topic, b"message %d" % number) for number in range(500)]
    producer.flush()
    assert all(delivery.done() and delivery.exception() is None for delivery in deliveries)
    log = read_topic(servers, topic)
    for number, delivery in enumerate(deliveries):
        sent = delivery.result()
        message = log[sent.partition][sent.offset]
        assert message.value == b"message %d" % number
        assert (sent.topic, sent.timestamp) == (topic, message.timestamp)
    assert sum(map(len, log)) == 500


def test_messages_keep_their_order_in_a_partition(producer: Any, servers: list[str], topic: str) -> None:
    for number in range(3000):
        producer.send(topic, b"%d" % number, partition=number % 2)
    producer.flush()
    log = read_topic(servers, topic)
    assert [values_of(partition) for partition in log] == [
        [b"%d" % number for number in range(0, 3000, 2)],
        [b"%d" % number for number in range(1, 3000, 2)],
        [],
        [],
    ]


def test_everything_about_a_message_arrives(producer: Any, servers: list[str], topic: str) -> None:
    began_us = time.time_ns() // 1000
    producer.send(topic, b"plain", partition=0)
    producer.send(topic, "t\u00e9xt", key="k\u00e9y", partition=0, headers={"a": "1", "b": None})
    producer.send(topic, None, key=b"\xff", partition=0, timestamp=123)
    producer.send(topic, bytearray(b"array"), partition=0, headers=[("a", b"\xff"), ("a", b"2")])
    producer.send(topic, memoryview(b"view"), partition=0, timestamp=datetime(1970, 1, 2, tzinfo=UTC))
    producer.flush()
    plain, text, none, array, view = read_topic(servers, topic)[0]
    assert (plain.value, plain.key, plain.headers) == (b"plain", None, ())
    assert began_us <= plain.timestamp <= time.time_ns() // 1000
    assert (text.value, text.key) == ("t\u00e9xt".encode(), "k\u00e9y".encode())
    assert text.headers == (("a", b"1"), ("b", None))
    assert (none.value, none.key, none.timestamp) == (None, b"\xff", 123)
    assert (array.value, array.headers) == (b"array", (("a", b"\xff"), ("a", b"2")))
    assert (view.value, view.timestamp) == (b"view", 86_400_000_000)


def test_keys_go_where_managers_put_them(
    producer: Any, cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    keys = [f"key-{number}" for number in range(40)]
    for key in keys:
        producer.send(topic, key, key=key)
    producer.send_many(topic, keys, keys=keys)
    producer.send_many(topic, keys * 3, keys=keys * 3)
    producer.flush()
    with cluster.ask() as manager:
        producer_id = manager.post("/producer/register", topic=topic)["producer_id"]
        for key in keys:
            manager.post("/producer/produce", topic=topic, producer_id=producer_id, message=key, key=key)
    log = read_topic(servers, topic)
    for partition, messages in enumerate(log):
        assert {crc32c(message.key or b"") % 4 for message in messages} <= {partition}
    by_key = [values_of(messages).count(key.encode()) for key in keys for messages in log]
    assert sorted(by_key) == [0] * 120 + [6] * 40


def test_messages_without_a_key_go_to_every_partition_in_whole_batches(
    face: Any, servers: list[str], topic: str
) -> None:
    with closing(face(servers, batch_bytes=10_000, linger_ms=5_000)) as producer:
        for number in range(4000):
            producer.send(topic, b"%0100d" % number)
    log = read_topic(servers, topic)
    assert all(len(messages) > 200 for messages in log)
    turns = sum(
        one.value is not None and other.value is not None and int(other.value) != int(one.value) + 1
        for messages in log
        for one, other in pairwise(messages)
    )
    assert turns < 100, "a batch stays together"


def test_many_at_once_arrive_in_order(producer: Any, servers: list[str], topic: str) -> None:
    few = producer.send_many(topic, ["first", b"second", None], partition=1)
    many = producer.send_many(topic, [b"%d" % n for n in range(20_000)], partition=1)
    timed = producer.send_many(topic, [b"t"] * 100, partition=1, timestamps=[5] * 99 + [None])
    assert [len(each) for each in (few, many, timed)] == [3, 20_000, 100]
    producer.flush()
    assert few.done()
    assert few.exception() is None
    messages = read_topic(servers, topic)[1]
    assert values_of(messages[:3]) == [b"first", b"second", None]
    assert values_of(messages[3:20_003]) == [b"%d" % n for n in range(20_000)]
    assert [message.timestamp for message in messages[20_003:20_102]] == [5] * 99
    assert messages[20_102].timestamp > 5
    assert sum(run.count for run in many.result()) == 20_000
    assert many.result()[0].offset == 3


def test_moments_of_many_may_be_datetimes(producer: Any, servers: list[str], topic: str) -> None:
    tokyo = timezone(timedelta(hours=9))
    moments = [datetime(2026, 1, 31, 12, tzinfo=zone) for zone in (UTC, tokyo)]
    producer.send_many(topic, [b"a", b"b", b"c"], partition=0, timestamps=[*moments, None])
    producer.flush()
    found = read_topic(servers, topic)[0]
    assert [message.timestamp for message in found[:2]] == [each.timestamp() * 1e6 for each in moments]
    assert found[2].timestamp > found[0].timestamp


def test_many_at_once_without_a_partition_are_where_the_result_says(
    face: Any, servers: list[str], topic: str
) -> None:
    with closing(face(servers, batch_bytes=50_000)) as producer:
        values = [b"%0100d" % number for number in range(5000)]
        sent = producer.send_many(topic, iter(values))
        producer.flush()
    log = read_topic(servers, topic)
    found = [
        message.value
        for run in sent.result()
        for message in log[run.partition][run.offset : run.offset + run.count]
    ]
    assert found == values
    assert {run.partition for run in sent.result()} == {0, 1, 2, 3}


def test_arrow_arrives_as_it_was(producer: Any, servers: list[str], topic: str) -> None:
    table = pa.table(
        {
            "value": pa.chunked_array([["a", "b"], ["c", None]], pa.string()),
            "timestamp": pa.array([1, 2, 3, 4], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("h", b"1")], [], None, [("h", b"4")]], pa.map_(pa.string(), pa.binary())),
            "key": pa.array(["k", None, "k", "k"]).dictionary_encode(),
        }
    )
    producer.send_arrow(topic, table, partition=2)
    producer.send_arrow(topic, table.slice(1, 1).to_batches()[0], partition=2)
    producer.send_arrow(topic, table.slice(0, 0), partition=2)
    producer.flush()
    messages = read_topic(servers, topic)[2]
    assert values_of(messages) == [b"a", b"b", b"c", None, b"b"]
    assert [message.timestamp for message in messages] == [1, 2, 3, 4, 2]
    assert [message.key for message in messages] == [b"k", None, b"k", b"k", None]
    assert [message.headers for message in messages] == [(("h", b"1"),), (), (), (("h", b"4"),), ()]


def test_arrow_with_keys_goes_where_they_belong(producer: Any, servers: list[str], topic: str) -> None:
    keys = [None if number % 7 == 0 else f"{number % 50}" for number in range(1000)]
    values = [f"{number}" for number in range(1000)]
    sent = producer.send_arrow(topic, pa.table({"value": values, "key": keys}))
    producer.flush()
    assert sum(run.count for run in sent.result()) == 1000
    log = read_topic(servers, topic)
    for partition, messages in enumerate(log):
        keyed = [message for message in messages if message.key is not None]
        assert {crc32c(message.key or b"") % 4 for message in keyed} <= {partition}
        numbers = [int(message.value or b"") for message in keyed]
        assert numbers == sorted(numbers)
    assert sorted(int(value or b"") for messages in log for value in values_of(messages)) == [*range(1000)]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_every_compression_is_understood(servers: list[str], topic: str, compression: str) -> None:
    with Producer(servers, compression=compression) as producer:
        producer.send_many(topic, [b"x" * 100] * 5000, partition=0)
        producer.send(topic, b"y", partition=0)
    assert values_of(read_topic(servers, topic)[0]) == [b"x" * 100] * 5000 + [b"y"]


def test_ways_of_sending_keep_their_order_together(producer: Any, servers: list[str], topic: str) -> None:
    for number in range(0, 3000, 300):
        producer.send(topic, b"%d" % number, partition=0)
        producer.send_many(topic, [b"%d" % n for n in range(number + 1, number + 101)], partition=0)
        producer.send_arrow(
            topic, pa.table({"value": [f"{n}" for n in range(number + 101, number + 200)]}), partition=0
        )
        for each in range(number + 200, number + 300):
            producer.send(topic, b"%d" % each, partition=0, key=b"k" if each % 50 == 0 else None)
    producer.flush()
    assert values_of(read_topic(servers, topic)[0]) == [b"%d" % number for number in range(3000)]


def test_threads_share_a_producer_and_each_keeps_its_order(servers: list[str], topic: str) -> None:
    told: list[list[Delivery]] = [[] for _ in range(4)]
    with Producer(servers, linger_ms=1, batch_bytes=20_000) as producer:

        def work(thread: int) -> None:
            for number in range(5000):
                told[thread].append(producer.send(topic, b"%d %d" % (thread, number)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    log = read_topic(servers, topic)
    assert sum(map(len, log)) == 20_000
    for thread, deliveries in enumerate(told):
        for number, delivery in enumerate(deliveries):
            sent = delivery.result()
            assert sent.offset is not None
            assert log[sent.partition][sent.offset].value == b"%d %d" % (thread, number)
    for messages in log:
        for thread in range(4):
            numbers = [int(v[2:]) for v in values_of(messages) if v is not None and v[:1] == b"%d" % thread]
            assert numbers == sorted(numbers)


def test_when_a_second_thread_comes_the_first_takes_the_lock_as_well(servers: list[str], topic: str) -> None:
    with Producer(servers, linger_ms=60_000) as producer:
        first = producer.send(topic, b"first")
        gathering = producer._gathering
        batch = gathering.hot[topic]
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(producer.send, topic, b"second").result()
        assert batch.sealed, "the first thread may be about to add to it"
        assert (gathering.owner, gathering.hot, list(gathering.shared)) == (SHARED, {}, [topic])
        third = producer.send(topic, b"third")
        producer.flush()
        places = {
            (sent.partition, sent.offset) for sent in (each.result() for each in (first, second, third))
        }
        assert len(places) == 3


class Meddling(list[bytes | None]):
    """The messages of a batch which is sealed at the very moment at which one is added."""

    def __init__(self, before: Callable[[], object] | None, after: Callable[[], object] | None) -> None:
        super().__init__()
        self._before, self._after = before, after

    def append(self, element: bytes | None) -> None:
        if self._before is not None:
            self._before()
        super().append(element)
        if self._after is not None:
            self._after()


@pytest.mark.parametrize("when", ["just before", "just after", "long before", "and delivered after"])
def test_a_message_added_while_its_batch_is_sealed_is_sent_once(
    servers: list[str], topic: str, when: str
) -> None:
    with Producer(servers, linger_ms=60_000) as producer:
        producer.send(topic, b"first")
        gathering = producer._gathering
        batch = gathering.hot[topic]
        seal, sending = partial(gathering.seal, batch), producer._core.sending

        def deliver() -> None:
            wait_for(sending.seal_all(), 30)

        batch.values = {
            "just before": Meddling(seal, None),
            "just after": Meddling(None, seal),
            "long before": Meddling(deliver, None),
            "and delivered after": Meddling(None, deliver),
        }[when]
        list.append(batch.values, b"first")
        second = producer.send(topic, b"second")
        third = producer.send(topic, b"third")
        producer.flush()
        log = read_topic(servers, topic)
        assert sorted(value or b"" for each in log for value in values_of(each)) == [
            b"first",
            b"second",
            b"third",
        ]
        for delivery, value in ((second, b"second"), (third, b"third")):
            sent = delivery.result()
            assert sent.offset is not None
            assert log[sent.partition][sent.offset].value == value


def test_a_batch_that_stays_open_gets_timestamps_that_keep_up(servers: list[str], topic: str) -> None:
    with Producer(servers, linger_ms=60_000) as producer:
        producer.send(topic, b"first", partition=0)
        time.sleep(0.1)  # what passes is what is measured
        between_us = time.time_ns() // 1000
        time.sleep(0.1)
        last = producer.send(topic, b"last", partition=0)
        producer.flush()
    first_message, last_message = read_topic(servers, topic)[0]
    assert first_message.timestamp < between_us < last_message.timestamp
    assert last.result().timestamp == last_message.timestamp


def test_a_delivery_is_a_future(servers: list[str], topic: str) -> None:
    with Producer(servers, linger_ms=60_000) as producer:
        called: list[Sent | SentRun] = []
        delivery = producer.send(topic, b"a")
        many = producer.send_many(topic, [b"b"] * 10)
        delivery.add_done_callback(lambda done: called.append(done.result()))
        many.add_done_callback(lambda done: called.extend(done.result()))
        assert not delivery.done()
        assert not many.done()
        with pytest.raises(TimeoutError, match="1 messages"):
            delivery.result(timeout=0.01)
        with pytest.raises(TimeoutError):
            many.exception(timeout=0)
        with pytest.raises(TimeoutError):
            producer.flush(timeout=0)
        producer.flush()
        assert called == [delivery.result(), *many.result()]
        delivery.add_done_callback(lambda done: called.append(done.result()))
        assert called[-1] == delivery.result()

        async def await_it() -> Any:
            return await delivery, await many

        assert asyncio.run(await_it()) == (delivery.result(), many.result())


def test_a_delivery_is_awaited_in_the_loop_that_brings_it(servers: list[str], topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(servers) as producer:
            deliveries = [await producer.send(topic, b"%d" % number) for number in range(10)]
            with pytest.raises(asyncio.InvalidStateError, match="await"):
                deliveries[0].result()
            sent = await asyncio.gather(*deliveries)
            assert sent == [delivery.result() for delivery in deliveries]

    asyncio.run(main())


def test_a_callback_that_fails_harms_nobody(
    servers: list[str], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(servers, linger_ms=1000) as producer:
        delivery = producer.send(topic, b"a")
        delivery.add_done_callback(lambda done: 1 / 0)
        delivery.add_done_callback(lambda done: producer.send("another-" + topic, b"b"))
        producer.flush()
        assert delivery.result().offset == 0
        producer.send(topic, b"c")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ZeroDivisionError,
        Overloaded,
    ]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": 1}, TypeError, "value: expected bytes, str or None, not int"),
    ({"value": b"", "key": 1.5}, TypeError, "key: expected"),
    ({"value": b"", "partition": "0"}, TypeError, "partition: expected a number"),
    ({"value": b"", "partition": True}, TypeError, "partition"),
    ({"value": b"", "partition": 4}, PartitionNotFound, "has partitions 0 to 3"),
    ({"value": b"", "partition": -1}, PartitionNotFound, "partition -1"),
    ({"value": b"", "timestamp": 1.5}, TypeError, "timestamp: expected microseconds"),
    ({"value": b"", "timestamp": 1 << 63}, ValueError, "64 bits"),
    ({"value": b"", "timestamp": datetime(2026, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001
    ({"value": b"", "headers": "ab"}, TypeError, "headers: expected"),
    ({"value": b"", "headers": {"a": 1}}, TypeError, "header 'a'"),
    ({"value": b"", "headers": {"\udcff": b""}}, UnicodeEncodeError, "surrogates"),
    ({"value": b"", "headers": [("", b"")] * 10_001}, BatchTooLarge, "10001 headers, at most 10000"),
    ({"value": b"x" * 1001}, BatchTooLarge, "1001 bytes; message_bytes_max allows 1000"),
    ({"value": b"x" * 999, "headers": {"ab": None}}, BatchTooLarge, "message_bytes_max"),
    ({"value": b"", "topic": "no such name"}, BadTopicName, "no such name"),
    ({"value": b"", "topic": b"abc"}, TypeError, "topic: expected a str, not bytes"),
]
REFUSED_LISTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"values": b"abc"}, TypeError, "values: expected a list"),
    ({"values": [b"a", 1]}, TypeError, "values: expected bytes"),
    ({"values": [b"a"], "keys": [b"k", b"l"]}, ValueError, "2 keys for 1 values"),
    ({"values": [b"a"] * 100, "keys": [1] * 100}, TypeError, "keys"),
    ({"values": [b"a"], "timestamps": ["now"]}, TypeError, "timestamps"),
    ({"values": [b"a"], "timestamps": [1.5]}, TypeError, "timestamps: .* not double"),
    ({"values": [b"a"], "timestamps": [datetime(2026, 1, 1)]}, TypeError, "time zone"),  # noqa: DTZ001
    ({"values": [b"a"] * 100, "partition": "0"}, TypeError, "partition: expected a number, not str"),
    ({"values": [b"a"] * 99 + [b"a" * 1001]}, BatchTooLarge, "message_bytes_max"),
    ({"values": [b"a" * 1001]}, BatchTooLarge, "message_bytes_max"),
]


def test_what_cannot_be_sent_is_refused_at_once_and_whole(face: Any, servers: list[str], topic: str) -> None:
    with closing(face(servers, message_bytes_max=1000)) as producer:
        for arguments, error, said in REFUSED:
            with pytest.raises(error, match=said):
                producer.send(**{"topic": topic} | arguments)
        for arguments, error, said in REFUSED_LISTS:
            with pytest.raises(error, match=said):
                producer.send_many(topic, **arguments)
        producer.send(topic, b"x" * 1000, partition=0)
    assert [values_of(messages) for messages in read_topic(servers, topic)] == [[b"x" * 1000], [], [], []]


def test_arrow_that_cannot_be_sent_is_refused(producer: Any, topic: str) -> None:
    with pytest.raises(TypeError, match="RecordBatch or Table, not list"):
        producer.send_arrow(topic, [b"a"])
    with pytest.raises(CorruptBatch, match="'value' is missing"):
        producer.send_arrow(topic, pa.table({"key": ["a"]}))
    with pytest.raises(BadRequest, match="'value' is int64"):
        producer.send_arrow(topic, pa.table({"value": [1]}))
    headers = pa.array([[("", b"")], [("", b"")] * 10_001], pa.map_(pa.string(), pa.binary()))
    with pytest.raises(BatchTooLarge, match="10001 headers, at most 10000"):
        producer.send_arrow(topic, pa.table({"value": ["a", "b"], "headers": headers}))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("acks", "some"),
        ("acks", True),
        ("acks", 2),
        ("linger_ms", -1),
        ("linger_ms", "5"),
        ("batch_bytes", 0),
        ("batch_bytes", 1.5),
        ("compression", "gzip"),
        ("buffer_bytes", 10),
        ("max_block_ms", -1),
        ("delivery_timeout_ms", 0),
        ("request_timeout_ms", None),
        ("message_bytes_max", 1 << 40),
        ("servers", "ftp://host"),
    ],
)
def test_a_setting_that_cannot_work_is_named(face: Any, setting: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=f"^{setting}: "):
        face(**{"servers": "127.0.0.1:1"} | {setting: value})


def test_a_setting_that_is_unknown_is_named_and_that_is_all_that_is_said(face: Any) -> None:
    with pytest.raises(TypeError, match="bootstrap_servers"):
        face(servers="127.0.0.1:1", bootstrap_servers="127.0.0.1:1")
    gc.collect()  # an error in __del__ would be told here


def test_acks_1_is_as_safe_as_all_and_acks_0_waits_for_nothing(
    face: Any, servers: list[str], topic: str
) -> None:
    with closing(face(servers, acks=1)) as producer:
        delivery = producer.send(topic, b"a", partition=0)
        producer.flush()
        assert delivery.result().offset == 0
    with closing(face(servers, acks=0, linger_ms=1000)) as producer:
        delivery = producer.send(topic, b"b", partition=0)
        many = producer.send_many(topic, [b"c"] * 100, partition=0)
        assert delivery.done()
        assert delivery.result().offset is None
        assert many.done()
        assert many.result()[0].offset is None
    assert values_of(read_topic(servers, topic)[0]) == [b"a", b"b"] + [b"c"] * 100


def test_a_closed_producer_says_so(face: Any, servers: list[str], topic: str) -> None:
    producer = face(servers)
    delivery = producer.send(topic, b"a")
    producer.close()
    assert delivery.done(), "closing delivers"
    assert delivery.exception() is None
    if face is not AsyncFace:
        with pytest.raises(Closed, match="closed") as refused:
            producer.send(topic, b"b")
        assert not refused.value.retriable
        with pytest.raises(Closed, match="closed"):
            producer.send_many(topic, [b"b"] * 100, keys=[b"k"] * 100)
        producer.close()


def test_an_error_inside_with_still_delivers_what_was_accepted(servers: list[str], topic: str) -> None:
    deliveries = []

    def fail() -> None:
        with Producer(servers, linger_ms=60_000) as producer:
            deliveries.append(producer.send(topic, b"a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert deliveries[0].result(0).offset == 0
