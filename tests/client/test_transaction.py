"""`with producer.transaction()`: messages over several partitions are all there, or none of them."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from crc32c import crc32c

from talweg import Consumer, Producer
from talweg.client.staging import Staging
from talweg.client.transactions import Transactions
from talweg.errors import StageExpired, Unavailable
from talweg.protocol.transactions import StageRef
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


@pytest.fixture
def producer(servers: list[str]) -> Iterator[Producer]:
    with Producer(servers, delivery_timeout_ms=30_000) as made:
        yield made


def create(cluster: LocalCluster, topic: str, partitions: int = 3) -> None:
    with cluster.ask() as manager:
        manager.post("/topics", name=topic, partitions=partitions)


def values(servers: list[str], *topics: str) -> list[bytes | None]:
    with Consumer(*topics, servers=servers) as consumer:
        return [message.value for message in consumer.read_to_end()]


def test_messages_of_a_transaction_appear_together(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    other = f"{topic}-other"
    create(cluster, topic)
    with producer.transaction() as transaction:
        transaction.send(topic, "keyed", key="k", headers={"a": b"1"}, timestamp=1_000_000)
        transaction.send(topic, b"placed", partition=2)
        transaction.send(other, b"elsewhere")  # made, as a producer would
        transaction.send_many(topic, [b"%d" % number for number in range(30_000)])
        assert values(servers, topic) == []
    with Consumer(topic, other, servers=servers) as consumer:
        found = list(consumer.read_to_end())
    assert len(found) == 30_003
    by_value = {message.value: message for message in found}
    assert by_value[b"keyed"].partition == crc32c(b"k") % 3
    assert (by_value[b"keyed"].key, by_value[b"keyed"].timestamp) == (b"k", 1_000_000)
    assert by_value[b"keyed"].headers == (("a", b"1"),)
    assert by_value[b"placed"].partition == 2
    assert by_value[b"elsewhere"].topic == other


def test_an_exception_drops_all_of_it(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    create(cluster, topic)
    with pytest.raises(LookupError), producer.transaction() as transaction:  # noqa: PT012 - that is the point
        transaction.send_many(topic, [b"x" * 1000] * 5000)
        raise LookupError
    producer.send(topic, b"after")
    producer.flush()
    assert values(servers, topic) == [b"after"]
    with pytest.raises(Unavailable, match="the transaction is over"):
        transaction.send(topic, b"late")


def test_the_order_within_a_partition_is_kept(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    create(cluster, topic, partitions=1)
    sent = [b"%d" % number + b"x" * 400 for number in range(12_000)]
    with producer.transaction() as transaction:
        for value in sent:
            transaction.send(topic, value, key=b"k")
    assert values(servers, topic) == sent


def test_an_empty_transaction_is_nothing(producer: Producer) -> None:
    with producer.transaction():
        pass


@pytest.mark.parametrize("partition", [0, 1])
def test_leaders_killed_meanwhile_cost_a_delay(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer, partition: int
) -> None:
    create(cluster, topic)
    sent = [b"%d" % number for number in range(2000)]
    with producer.transaction() as transaction:
        transaction.send_many(topic, sent[:1000], keys=sent[:1000])
        cluster.kill_leader(topic, partition)
        transaction.send_many(topic, sent[1000:], keys=sent[1000:])
        cluster.start_processes()
    assert sorted(values(servers, topic), key=lambda value: int(value or b"")) == sent


def test_a_commit_that_failed_may_be_done_again(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic)
    with Producer(servers, delivery_timeout_ms=2_000) as producer:
        transaction = producer.transaction()
        transaction.send_many(topic, [b"x"] * 300, keys=[b"%d" % number for number in range(300)])
        transaction._stage_drafts()
        transaction._staging.finish()
        cluster.kill(*cluster.brokers)
        with pytest.raises(Unavailable):
            transaction.commit()
        cluster.start_processes()
        cluster.wait_until_ready()
        wait_until(lambda: _commits(transaction), "it to be committed", 30)
    assert values(servers, topic) == [b"x"] * 300


def _commits(transaction: object) -> bool:
    try:
        transaction.commit()  # type: ignore[attr-defined]
    except Unavailable:
        return False
    return True


def test_what_could_not_be_staged_is_never_committed_in_part(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic, partitions=1)
    with Producer(servers, delivery_timeout_ms=1_000) as producer:
        transaction = producer.transaction()
        transaction.send_many(topic, [b"first"], partition=0)
        transaction._staging._seal((topic, 0))
        cluster.kill(*cluster.brokers)
        transaction.send_many(topic, [b"second"], partition=0)
        for _ in range(2):
            with pytest.raises(Unavailable):
                transaction.commit()
        cluster.start_processes()
        cluster.wait_until_ready()
        with pytest.raises(Unavailable):
            transaction.commit()
        transaction.abort()
    assert values(servers, topic) == []


def stage(producer: Producer, topic: str, transaction: str, text: bytes) -> list[StageRef]:
    """What an attempt has staged."""
    core = producer._core
    staging = Staging(core._background, core._cluster, transaction, seconds_max=30)
    staging.add(topic, pa.record_batch([pa.array([text], pa.binary())], names=["value"]))
    return staging.finish()


def test_the_first_decision_holds_and_what_came_second_is_dropped(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    create(cluster, topic)
    run, transactions = producer._core._background.run, Transactions(producer._core._cluster, seconds_max=30)
    first = stage(producer, topic, "series/1", b"first")
    second = stage(producer, topic, "series/1", b"second")
    assert run(transactions.finish("series/1", first))
    assert not run(transactions.finish("series/1", second))
    assert run(transactions.roll_forward("series/1"))
    assert values(servers, topic) == [b"first"]
    with pytest.raises(StageExpired):  # it was discarded, so nobody can publish it under another name
        run(transactions.finish("series/2", second))


@pytest.mark.parametrize("again", ["finish", "roll_forward"])
def test_a_decision_that_was_not_carried_out_is_carried_out_by_whoever_comes_next(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer, again: str
) -> None:
    create(cluster, topic)
    run, transactions = producer._core._background.run, Transactions(producer._core._cluster, seconds_max=30)
    name = f"{again}/1"
    assert not run(transactions.roll_forward(name))
    first = stage(producer, topic, name, b"first")
    second = stage(producer, topic, name, b"second")
    assert run(transactions.decide(name, first)).ours
    assert values(servers, topic) == []
    if again == "finish":
        assert not run(transactions.finish(name, second))
    else:
        assert run(transactions.roll_forward(name))
    assert values(servers, topic) == [b"first"]
