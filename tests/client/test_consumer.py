"""Consumers on a real cluster: everything they can be asked, and both of them alike."""

import gc
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client.consuming import CONSUMERS, TIMESTAMP, create, numbered, produce, taken
from talweg.client.consumer import Consumer
from talweg.client.message import Message
from talweg.errors import (
    BadRequest,
    InvalidSetting,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

Make = Callable[..., Any]


@pytest.fixture(params=CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def consume(request: pytest.FixtureRequest, servers: list[str]) -> Make:
    """Makes a consumer of the cluster."""
    kind = request.param

    def make(*topics: str, **settings: Any) -> Any:
        return kind(*topics, **{"servers": servers, "fetch_wait_ms": 200, **settings})

    return make


def test_messages_come_as_they_were_sent(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(
        cluster,
        topic,
        [b"a", None, "\u00e4".encode()],
        keys=[b"k", None, b""],
        timestamps=[TIMESTAMP, TIMESTAMP + 1, TIMESTAMP + 2],
        headers=[[("h", b"1"), ("h", None)], [], [("x", b"")]],
    )
    with consume(topic) as consumer:
        assert list(consumer.read_to_end()) == [
            Message(topic, 0, 0, TIMESTAMP, b"k", b"a", (("h", b"1"), ("h", None))),
            Message(topic, 0, 1, TIMESTAMP + 1, None, None, ()),
            Message(topic, 0, 2, TIMESTAMP + 2, b"", "\u00e4".encode(), (("x", b""),)),
        ]
        consumer.seek(topic, 0, 2)
        (last,) = consumer.read_to_end()
    assert last.text == "\u00e4"
    assert last.time == datetime(2023, 11, 14, 22, 13, 20, 2, UTC)


def test_reading_to_the_end_leaves_what_comes_later(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 3)
    for partition in range(3):
        produce(cluster, topic, numbered(2500), partition)
    with consume(topic) as consumer:
        reading = consumer.read_to_end()
        first = next(reading)
        produce(cluster, topic, [b"later"], 1)
        everything = [first, *reading]
        assert len(everything) == 7500
        assert [message.value for message in everything if message.partition == 1] == numbered(2500)
        assert [message.value for message in consumer.read_to_end()] == [b"later"]
        assert list(consumer.read_to_end()) == []


def test_a_loop_that_is_left_goes_on_in_the_next(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(10))
    with consume(topic) as consumer:
        for message in consumer:
            if message.offset == 3:
                break
        assert consumer.position(topic, 0) == 4
        assert next(iter(consumer)).offset == 4
        batch = consumer.poll_batch(timeout=10)
        assert (batch.first_offset, batch.next_offset) == (5, 10)
        assert batch.values() == numbered(5, 5)
        assert [message.offset for message in batch.messages()] == [5, 6, 7, 8, 9]
        assert consumer.position(topic, 0) == 10


def test_a_batch_becomes_arrow(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 2)
    produce(cluster, topic, numbered(2000), 1)
    with consume(topic, partitions=[1]) as consumer:
        assert consumer.assignment == ((topic, 1),)
        batch = consumer.poll_batch(timeout=10)
        assert len(batch) == 2000
        columns = batch.to_arrow()
        assert columns.schema.names == ["offset", "timestamp", "key", "value", "headers"]
        assert columns.column("value").to_pylist() == numbered(2000)
        assert columns.column("offset").to_pylist() == list(range(2000))
        some = batch.to_arrow(["partition", "value", "topic"])
        assert some.schema.names == ["partition", "value", "topic"]
        assert set(some.column("topic").to_pylist()) == {topic}
        assert set(some.column("partition").to_pylist()) == {1}
        with pytest.raises(BadRequest, match="'colour' is unknown"):
            batch.to_arrow(["colour"])


def test_small_batches_come_together_and_large_ones_are_cut(
    cluster: LocalCluster, topic: str, consume: Make
) -> None:
    create(cluster, topic)
    for number in range(20):
        produce(cluster, topic, numbered(1, number))

    def first() -> Any:
        with consume(topic) as consumer:
            return consumer.poll_batch(timeout=10)

    # What the others made durable is acknowledged, and read by itself until the leader's disk has it, too.
    wait_until(lambda: len(first()) == 20, "all of them in one batch", 20)
    assert first().to_arrow(["value"]).column(0).to_pylist() == numbered(20)
    with consume(topic, max_poll_records=7) as consumer:
        batches = [consumer.poll_batch(timeout=10) for _ in range(3)]
        assert [len(batch) for batch in batches] == [7, 7, 6]
        assert [value for batch in batches for value in batch.values()] == numbered(20)
        assert batches[1].to_arrow(["offset"]).column(0).to_pylist() == list(range(7, 14))


def test_nothing_comes_after_the_timeout(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    with consume(topic) as consumer:
        assert consumer.poll_batch(timeout=0) is None
        assert consumer.poll_batch(timeout=0.05) is None
        assert list(consumer.messages(timeout=0.05)) == []


def test_what_is_sent_while_one_waits_comes_at_once(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    with consume(topic, fetch_wait_ms=20_000) as consumer:
        sending = threading.Timer(0.2, produce, (cluster, topic, [b"news"]))
        sending.start()
        assert [message.value for message in taken(consumer, 1)] == [b"news"]
        sending.join()


def test_the_latest_are_those_sent_after_it_was_made(
    cluster: LocalCluster, topic: str, consume: Make
) -> None:
    create(cluster, topic, 2)
    for partition in range(2):
        produce(cluster, topic, [b"before"], partition)
    with consume(topic, auto_offset_reset="latest") as consumer:
        produce(cluster, topic, [b"after"], 1)
        (message,) = taken(consumer, 1)
        assert (message.value, message.partition) == (b"after", 1)
        assert consumer.poll_batch(timeout=0.1) is None


def test_topics_and_partitions_take_turns(cluster: LocalCluster, topic: str, consume: Make) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        create(cluster, name, 2)
        for partition in range(2):
            for number in range(3):
                produce(cluster, name, numbered(1000, 1000 * number), partition)
    with consume(topic, other, partitions={other: [1]}) as consumer:
        assert consumer.assignment == ((topic, 0), (topic, 1), (other, 1))
        assert sum(consumer.lag().values()) == 9000
        places: list[tuple[str, int]] = []
        # All of it is read ahead; else who comes first is not for us to say.
        wait_until(lambda: sum(consumer.buffered().values()) == 9000, "all to be read ahead", 30)
        while len(places) < 9:
            batch = consumer.poll_batch(timeout=10)
            places.append((batch.topic, batch.partition))
        assert {*places[:3]} == {*places[3:6]} == {*places[6:]} == {(topic, 0), (topic, 1), (other, 1)}


def test_what_was_read_ahead_is_counted(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 2)
    for partition in range(2):
        produce(cluster, topic, numbered(10), partition)
    with consume(topic, max_poll_records=4) as consumer:
        wait_until(lambda: sum(consumer.buffered().values()) == 20, "all to be read ahead", 30)
        (first,) = taken(consumer, 1)  # the others that came with it are in hand, and not handed out
        other = 1 - first.partition
        assert consumer.buffered() == {(topic, first.partition): 9, (topic, other): 10}
        consumer.poll_batch(timeout=10)
        consumer.seek(topic, other, "latest")
        assert consumer.buffered() == {(topic, first.partition): 6, (topic, other): 0}


def test_seek_by_each_kind(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    seconds = [TIMESTAMP + 1_000_000 * number for number in range(10)]
    produce(cluster, topic, numbered(5), timestamps=seconds[:5])
    produce(cluster, topic, numbered(5, 5), timestamps=seconds[5:])
    begun = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=TIMESTAMP)
    with consume(topic) as consumer:
        for where, expected in [
            (7, 7),
            ("earliest", 0),
            (begun + timedelta(seconds=2.5), 3),
            (begun + timedelta(seconds=8), 8),
            ((begun + timedelta(seconds=6)).isoformat(), 6),
            (begun + timedelta(days=1), 10),
            (begun - timedelta(days=1), 0),
            ("latest", 10),
        ]:
            consumer.seek(topic, 0, where)
            assert consumer.position(topic, 0) == expected
            assert [message.offset for message in consumer.read_to_end()] == list(range(expected, 10))
        consumer.seek_all(9)
        assert consumer.lag() == {(topic, 0): 1}


def test_seek_inside_a_loop_takes_effect_at_once(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(100))
    with consume(topic) as consumer:
        seen = []
        for message in consumer:
            seen.append(message.offset)
            if len(seen) == 3:
                consumer.seek(topic, 0, 98)
            if message.offset == 99:
                break
        assert seen == [0, 1, 2, 98, 99]


@pytest.mark.parametrize(
    "where",
    [-1, "yesterday", "2026-01-31T12:00", 1.5, True],
    ids=["negative", "word", "naive", "float", "bool"],
)
def test_places_that_are_none_are_refused(
    cluster: LocalCluster, topic: str, servers: list[str], where: Any
) -> None:
    create(cluster, topic)
    with Consumer(topic, servers=servers) as consumer, pytest.raises(BadRequest):
        consumer.seek(topic, 0, where)


def test_seek_to_what_is_not_there_names_what_is(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with consume(topic) as consumer:
        with pytest.raises(OffsetOutOfRange, match="holds 0 to 3"):
            consumer.seek(topic, 0, 4)
        with pytest.raises(BadRequest, match="not read by this consumer"):
            consumer.seek(topic, 1, 0)
        assert len(list(consumer.read_to_end())) == 3


def test_a_paused_partition_waits(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 2)
    for partition in range(2):
        produce(cluster, topic, numbered(3), partition)
    with consume(topic) as consumer:
        consumer.pause(topic, 0)
        assert {message.partition for message in consumer.read_to_end()} == {1}
        assert consumer.poll_batch(timeout=0.1) is None
        consumer.resume(topic, 0)
        assert [message.partition for message in taken(consumer, 3)] == [0, 0, 0]


# Positions of groups


def test_a_group_goes_on_where_it_was(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 2)
    for partition in range(2):
        produce(cluster, topic, numbered(10), partition)
    with consume(topic, group="g", enable_auto_commit=False) as consumer:
        seen = [(message.partition, message.offset) for message in taken(consumer, 7)]
        assert consumer.committed(topic, 0) is None
        consumer.commit()
        assert sum(consumer.committed(topic, partition) for partition in range(2)) == 7
        taken(consumer, 5)  # and these are not committed
    with consume(topic, group="g", enable_auto_commit=False) as consumer:
        seen += [(message.partition, message.offset) for message in consumer.read_to_end()]
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(10)]
    with consume(topic, group="other") as consumer:
        assert len(list(consumer.read_to_end())) == 20


def test_a_clean_end_commits_and_an_exception_does_not_commit_its_message(
    cluster: LocalCluster, topic: str, consume: Make
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(10))
    with consume(topic, group="g") as consumer:
        taken(consumer, 3)
    with pytest.raises(ZeroDivisionError), consume(topic, group="g") as consumer:
        _divide_by_zero_at(consumer, 5)
    with consume(topic, group="g") as consumer:
        assert next(iter(consumer)).offset == 5


def _divide_by_zero_at(consumer: Any, offset: int) -> None:
    for message in consumer:
        assert message.offset >= 3
        assert 1 // (message.offset - offset) < 1


def test_automatic_commits_are_of_what_is_finished(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic, 2)
    produce(cluster, topic, numbered(10))
    with consume(topic, group="g", auto_commit_interval_ms=50) as consumer:
        messages = consumer.messages()
        for _ in range(4):
            next(messages)  # the fourth is being worked on
        wait_until(lambda: consumer.committed(topic, 0) == 3, "three to be committed", 10)
        produce(cluster, topic, numbered(1), 1)
        consumer.seek(topic, 1, "latest")
        wait_until(lambda: consumer.committed(topic, 1) == 1, "more to be committed after that", 10)
        assert consumer.committed(topic, 0) == 3
        batch = consumer.poll_batch(timeout=10)  # the rest
        wait_until(lambda: consumer.committed(topic, 0) == 4, "four to be committed", 10)
        assert batch.next_offset == 10
        assert consumer.poll_batch(timeout=0) is None  # asking for the next finishes with it
        wait_until(lambda: consumer.committed(topic, 0) == 10, "all to be committed", 10)


def test_a_group_may_be_sent_back(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(10))
    with consume(topic, group="g", enable_auto_commit=False) as consumer:
        taken(consumer, 8)
        consumer.commit()
        consumer.seek(topic, 0, 2)
        consumer.commit()
        assert consumer.committed(topic, 0) == 2


def test_a_group_goes_back_once_for_each_seek(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(10))
    with consume(topic, group="g", enable_auto_commit=False) as consumer:
        consumer.seek(topic, 0, 2)
        consumer.commit()
        with consume(topic, group="g") as other:
            taken(other, 8)
        taken(consumer, 1)
        consumer.commit()
        assert consumer.committed(topic, 0) == 10, "it was further by then"


def test_a_group_that_read_nothing_keeps_its_place(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with consume(topic, group="g", auto_offset_reset="latest"):
        pass
    produce(cluster, topic, numbered(2, 3))
    with consume(topic, group="g", auto_offset_reset="latest") as consumer:
        assert [message.offset for message in consumer.read_to_end()] == [3, 4]


def test_without_a_group_nothing_can_be_committed(cluster: LocalCluster, topic: str, consume: Make) -> None:
    create(cluster, topic)
    with consume(topic) as consumer:
        with pytest.raises(InvalidSetting, match="group"):
            consumer.commit()
        with pytest.raises(InvalidSetting, match="group"):
            consumer.committed(topic, 0)


def test_without_a_place_to_begin_it_says_so_and_can_be_told(
    cluster: LocalCluster, topic: str, consume: Make
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    with consume(topic, group="g", auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="auto_offset_reset"):
                consumer.poll_batch(timeout=10)
        assert consumer.position(topic, 0) is None
        consumer.seek(topic, 0, 1)
        assert [message.offset for message in consumer.read_to_end()] == [1, 2]


# What is wrong


def test_a_topic_that_is_not_there_is_named(cluster: LocalCluster, topic: str, consume: Make) -> None:
    with pytest.raises(TopicNotFound, match=f"{topic}.*create it first"):
        consume(topic)
    create(cluster, topic, 2)
    with pytest.raises(PartitionNotFound, match="no partition 2, only 0 to 1"):
        consume(topic, partitions=[1, 2])


@pytest.mark.parametrize(
    ("topics", "settings", "named"),
    [
        ((), {}, "topics"),
        ((["t", "u"],), {}, "topics"),
        ((b"t",), {}, "topics"),
        (("t",), {"auto_offset_reset": "newest"}, "auto_offset_reset"),
        (("t",), {"fetch_bytes": 0}, "fetch_bytes"),
        (("t",), {"max_poll_records": "many"}, "max_poll_records"),
        (("t", "u"), {"partitions": [0]}, "partitions"),
        (("t",), {"partitions": {"u": [0]}}, "partitions"),
        (("t",), {"partitions": []}, "partitions"),
        (("t",), {"partitions": 0}, "partitions"),
        (("t",), {"partitions": {"t": 0}}, "partitions"),
        (("t",), {"partitions": [-1]}, "partitions"),
        (("t",), {"group": "#1"}, "group"),
        (("t",), {"group": 1}, "group"),
        (("t",), {"servers": "ftp://x"}, "servers"),
    ],
)
@pytest.mark.parametrize("kind", CONSUMERS, ids=["Consumer", "AsyncConsumer"])
def test_a_setting_that_cannot_work_is_named(
    kind: Any, topics: tuple[str, ...], settings: dict[str, Any], named: str
) -> None:
    threads = threading.active_count()
    with pytest.raises((InvalidSetting, BadRequest), match=named):
        kind(*topics, **settings)
    assert threading.active_count() == threads


def test_nobody_at_the_address_is_said_in_time(unused_port: int) -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        Consumer("t", servers=f"127.0.0.1:{unused_port}", api_timeout_ms=300)
    assert time.monotonic() - begun < 5


def test_close_wakes_whoever_waits(cluster: LocalCluster, topic: str, servers: list[str]) -> None:
    create(cluster, topic)
    consumer = Consumer(topic, servers=servers, fetch_wait_ms=20_000)
    seen: list[Any] = []
    waiting = threading.Thread(target=lambda: seen.append(list(consumer)), daemon=True)
    waiting.start()
    consumer.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert seen == [[]]
    consumer.close()
    with pytest.raises(Unavailable, match="closed"):
        consumer.poll_batch()
    with pytest.raises(Unavailable, match="closed"):
        consumer.lag()


def test_one_that_nobody_can_close_any_more_ends_by_itself(
    cluster: LocalCluster, topic: str, servers: list[str]
) -> None:
    create(cluster, topic)
    produce(cluster, topic, numbered(3))
    threads = threading.active_count()

    def read_two_and_forget_it() -> None:
        for message in Consumer(topic, servers=servers, group="g"):
            if message.offset == 1:
                break
        gc.collect()

    with pytest.warns(ResourceWarning, match="a consumer was not closed"):
        read_two_and_forget_it()
    wait_until(lambda: threading.active_count() == threads, "its threads to end", 20)
    with Consumer(topic, servers=servers, group="g") as consumer:
        assert next(iter(consumer)).offset == 1, "what was at hand is given again"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_groups_lag_is_in_the_plain_api_too(cluster: LocalCluster, topic: str, servers: list[str]) -> None:
    create(cluster, topic, 2)
    produce(cluster, topic, numbered(5), 0)
    produce(cluster, topic, numbered(3), 1)
    with Consumer(topic, servers=servers, group="readers", partitions=[0]) as consumer:
        consumer.seek(topic, 0, 4)
        consumer.commit()
    with cluster.ask() as manager:
        assert manager.get(f"/size?topic={topic}&consumer=readers") == {
            "status": "success",
            "size": 4,
            "partitions": {"0": 1, "1": 3},
        }
        assert manager.get(f"/size?topic={topic}&consumer=readers&partition=0")["size"] == 1
        assert manager.get(f"/size?topic={topic}&consumer=nobody")["size"] == 8
        for wrong in ("", "&consumer=a&consumer_id=1", "&consumer=%231"):
            with pytest.raises(BadRequest, match="consumer"):
                manager.get(f"/size?topic={topic}{wrong}")
        with pytest.raises(TopicNotFound):
            manager.get("/size?topic=gone&consumer=readers")
        with pytest.raises(PartitionNotFound):
            manager.get(f"/size?topic={topic}&consumer=readers&partition=9")
