"""`with producer.transaction()`: messages over several partitions are all there, or none of them."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from client import consuming
from client.producing import FACES, closing
from talweg import AsyncProducer, Consumer, Producer
from talweg.client.async_transaction import AsyncTransaction
from talweg.client.staging import Staging
from talweg.client.transaction import Transaction
from talweg.client.transactions import Transactions
from talweg.errors import BadRequest, Closed, PartitionNotFound, StageExpired, Unavailable, Undecided
from talweg.protocol.transactions import DECISION_STAGES_MAX, STAGE_MIN, StageRef
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until


@pytest.fixture
def producer(servers: list[str]) -> Iterator[Producer]:
    with Producer(servers, delivery_timeout_ms=30_000) as made:
        yield made


@pytest.fixture(params=FACES)
def either(request: pytest.FixtureRequest, servers: list[str]) -> Iterator[Any]:
    """Both producers, called in the same way."""
    with closing(FACES[request.param](servers, delivery_timeout_ms=30_000)) as made:
        yield made


create = partial(consuming.create, partitions=3)


def values(servers: list[str], *topics: str) -> list[bytes | None]:
    with Consumer(*topics, servers=servers) as consumer:
        return [message.value for message in consumer.read_to_end()]


def test_messages_of_a_transaction_appear_together(
    cluster: LocalCluster, servers: list[str], topic: str, either: Any
) -> None:
    other = f"{topic}-other"
    create(cluster, topic)
    with either.transaction() as transaction:
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
    cluster: LocalCluster, servers: list[str], topic: str, either: Any
) -> None:
    create(cluster, topic)
    with pytest.raises(LookupError), either.transaction() as transaction:  # noqa: PT012 - that is the point
        transaction.send_many(topic, [b"x" * 1000] * 5000)
        raise LookupError
    either.send(topic, b"after")
    either.flush()
    assert values(servers, topic) == [b"after"]
    with pytest.raises(Closed, match="the transaction is over"):
        transaction.send(topic, b"late")


def test_the_order_within_a_partition_is_kept(
    cluster: LocalCluster, servers: list[str], topic: str, either: Any
) -> None:
    create(cluster, topic, partitions=1)
    sent = [b"%d" % number + b"x" * 400 for number in range(12_000)]
    with either.transaction() as transaction:
        for value in sent:
            transaction.send(topic, value, key=b"k")
    assert values(servers, topic) == sent


def test_an_empty_transaction_is_nothing(either: Any) -> None:
    with either.transaction() as transaction:
        pass
    assert transaction.decided is False


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
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    create(cluster, topic)
    with producer.transaction() as before:  # so that there is a topic for decisions
        before.send(f"{topic}-before", b"x")
    with Producer(servers, delivery_timeout_ms=2_000) as hasty:
        transaction = hasty.transaction()
        transaction.send_many(topic, [b"x"] * 300, keys=[b"%d" % number for number in range(300)])
        hasty._core._background.run(staged(transaction._core))
        pause_brokers(cluster)
        with pytest.raises(Undecided, match="may have been decided on or not"):
            transaction.commit()
        assert known(transaction) is None
        with pytest.raises(Unavailable, match="is over"):  # it would not be in the decision
            transaction.send(topic, b"more")
        cluster.heal()
        wait_until(lambda: _commits(transaction), "it to be committed", 30)
        assert known(transaction) is True
    assert values(servers, topic) == [b"x"] * 300


def pause_brokers(cluster: LocalCluster) -> None:
    """All of them: what they are asked now, they may do later."""
    for name in cluster.brokers:
        cluster.pause(name)


def known(transaction: Transaction) -> bool | None:
    return transaction.decided


async def staged(transaction: AsyncTransaction) -> None:
    """Everything that was added is at the leaders, and more may be."""
    await transaction.stage()
    await transaction._staging.finish()


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
        producer._core._background.run(staged(transaction._core))
        pause_brokers(cluster)
        transaction.send_many(topic, [b"second"], partition=0)
        for _ in range(2):
            with pytest.raises(Closed, match=r"could not be sent.*begin another one"):
                transaction.commit()
        cluster.heal()
        with pytest.raises(Closed):  # else whoever repeats what is retriable repeats it for ever
            transaction.commit()
        transaction.abort()
    assert values(servers, topic) == []


def stage(producer: Producer, topic: str, transaction: str, text: bytes) -> list[StageRef]:
    """What an attempt has staged."""
    core = producer._core
    staging = Staging(core._cluster, transaction, seconds_max=30)
    core._background.run(
        staging.add(topic, pa.record_batch([pa.array([text], pa.binary())], names=["value"]))
    )
    return core._background.run(staging.finish())


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


def test_a_decision_stays_open_while_one_of_its_topics_is_not_there(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    # The metadata store may have forgotten it, and it comes back: completed, its messages would be discarded.
    other = f"{topic}-other"
    create(cluster, topic)
    create(cluster, other)
    run, transactions = producer._core._background.run, Transactions(producer._core._cluster, seconds_max=30)
    name = f"{topic}/1"
    staged = stage(producer, topic, name, b"here") + stage(producer, other, name, b"there")
    assert run(transactions.decide(name, staged)).ours
    with cluster.ask() as manager:
        manager.delete(f"/topics/{other}")
    assert run(transactions.roll_forward(name))
    assert values(servers, topic) == [b"here"]
    assert not run(transactions.decision(name)).completed


def test_more_stages_than_can_be_decided_on_are_told_with_a_remedy(producer: Producer) -> None:
    run, transactions = producer._core._background.run, Transactions(producer._core._cluster, seconds_max=30)
    stages = [StageRef(topic="t", partition=0, stage=STAGE_MIN + n) for n in range(DECISION_STAGES_MAX + 1)]
    with pytest.raises(BadRequest, match=r"50001 stages.*fewer tasks"):
        run(transactions.finish("many", stages))


# In an event loop


def test_a_cancellation_inside_the_block_drops_all_of_it(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic)

    async def work() -> None:
        async with AsyncProducer(servers) as producer:
            transaction = producer.transaction()
            is_staged = asyncio.Event()

            async def block() -> None:
                async with transaction:
                    await transaction.send_many(topic, [b"x"] * 100, keys=[b"%d" % key for key in range(100)])
                    await staged(transaction)
                    is_staged.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(block())
            await is_staged.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transaction.decided is False
            with pytest.raises(StageExpired):  # they are not merely left: nobody can decide on them any more
                await transaction._transactions.decide(transaction.name, transaction._staging.stages)
            with pytest.raises(Unavailable, match="is over"):
                await transaction.commit()

    asyncio.run(work())
    assert values(servers, topic) == []


def test_a_leader_killed_between_staging_and_deciding_costs_a_delay(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic)
    sent = [b"%d" % number for number in range(1000)]

    async def work() -> None:
        async with AsyncProducer(servers) as producer, producer.transaction() as transaction:
            await transaction.send_many(topic, sent, keys=sent)
            await staged(transaction)
            cluster.kill_leader(topic)

    asyncio.run(work())
    cluster.start_processes()
    assert sorted(values(servers, topic), key=lambda value: int(value or b"")) == sent


def test_transactions_may_follow_each_other_and_be_under_way_at_once(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic)

    async def work() -> None:
        async with AsyncProducer(servers) as producer:

            async def one(name: str, *, fails: bool = False) -> None:
                async with producer.transaction() as transaction:
                    for number in range(10):
                        await transaction.send(topic, f"{name} {number}")
                    await staged(transaction)
                    if fails:
                        raise LookupError

            await one("first")
            await one("second")
            outcomes = await asyncio.gather(
                one("third"), one("never", fails=True), one("fourth"), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [type(None), LookupError, type(None)]

    asyncio.run(work())
    expected = {f"{name} {n}".encode() for name in ("first", "second", "third", "fourth") for n in range(10)}
    found = values(servers, topic)
    assert len(found) == 40
    assert {*found} == expected


def test_tasks_may_share_a_transaction(cluster: LocalCluster, servers: list[str], topic: str) -> None:
    create(cluster, topic)
    value = b"x" * 100_000  # a dozen fill what waits, so most of these have something to wait for

    async def work() -> None:
        async with AsyncProducer(servers) as producer, producer.transaction() as transaction:
            await asyncio.gather(*(transaction.send(topic, b"%d " % number + value) for number in range(100)))

    asyncio.run(work())
    found = [int((value or b"").split()[0]) for value in values(servers, topic)]
    assert sorted(found) == list(range(100))


def test_a_message_without_a_place_fails_all_of_it(
    cluster: LocalCluster, servers: list[str], topic: str, either: Any
) -> None:
    create(cluster, topic)
    transaction = either.transaction()
    transaction.send(topic, b"good")
    transaction.send(topic, b"bad", partition=3)
    for _ in range(2):
        with pytest.raises(PartitionNotFound, match="partitions 0 to 2"):
            transaction.commit()
    transaction.abort()
    assert values(servers, topic) == []


def test_a_producer_that_is_closed_ends_its_transactions(
    cluster: LocalCluster, servers: list[str], topic: str, producer: Producer
) -> None:
    create(cluster, topic)
    transaction = producer.transaction()
    transaction.send_many(topic, [b"x"] * 10)
    producer.close()
    for attempt in (transaction.commit, producer.transaction):
        with pytest.raises(Unavailable, match="closed"):
            attempt()
    transaction.abort()
    assert values(servers, topic) == []


def test_an_asynchronous_producer_that_is_closed_ends_its_transactions(
    cluster: LocalCluster, servers: list[str], topic: str
) -> None:
    create(cluster, topic)

    async def work() -> None:
        producer = AsyncProducer(servers)
        transaction = producer.transaction()
        await transaction.send_many(topic, [b"x" * 1000] * 5_000)
        await producer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(Unavailable, match="closed"):
            await transaction.commit()
        with pytest.raises(Unavailable, match="closed"):
            await transaction.send(topic, b"x")
        with pytest.raises(Unavailable, match="closed"):
            producer.transaction()

    asyncio.run(work())
    assert values(servers, topic) == []
