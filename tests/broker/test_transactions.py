"""Stage, decide, publish and discard over HTTP, and what brokers settle by themselves."""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.primary import QUICK, Brokers, Primary, wait_until
from talweg.broker.leaders import Leaders
from talweg.broker.partition import Partition
from talweg.errors import (
    BadRequest,
    CorruptBatch,
    Forbidden,
    NotLeader,
    OutOfSequence,
    StageDecided,
    StageExpired,
    StageNotFound,
    StorageError,
    TransactionForgotten,
    Unavailable,
)
from talweg.http import HttpResponse
from talweg.protocol.batches import FRAMES
from talweg.protocol.bundles import Taken
from talweg.protocol.control import PartitionAssignment, Peer
from talweg.protocol.transactions import (
    ANSWER_MS,
    STAGE_MIN,
    Complete,
    Decide,
    Decided,
    DecisionAnswer,
    Expire,
    Expired,
    Published,
    Staged,
    StageRef,
)
from talweg.records import Batch, Codec, Kind, encode_frame, encode_values, frames

FIRST, SECOND, THIRD = STAGE_MIN + 1, STAGE_MIN + 2, STAGE_MIN + 3
LINES = "/v1/topics/lines/partitions/0"
DECISIONS = "/v1/topics/__transactions/partitions/0/decisions"
SWEEPING = msgspec.structs.replace(QUICK, stage_expiry_seconds=0.4)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def batch(number: int, *values: bytes, stage: int = FIRST) -> bytes:
    return encode_values(values, timestamp=1_000, codec=Codec.NONE, producer_id=stage, sequence=number)


def reference(stage: int = FIRST, topic: str = "lines", partition: int = 0) -> StageRef:
    return StageRef(topic=topic, partition=partition, stage=stage)


class Transacting:
    """Requests to the leaders of the topic and of the decisions."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers

    @classmethod
    async def on(cls, brokers: Brokers, retention_bytes: int | None = None) -> "Transacting":
        await brokers.topic(retention_bytes=retention_bytes)
        await brokers.topic("__transactions", group=20, retention_bytes=retention_bytes)
        return cls(brokers)

    async def endpoint(self, group: int) -> str:
        return self.brokers.running[await self.brokers.leader(group)].endpoint

    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        group = 20 if path.startswith(DECISIONS) else 10
        return await self.brokers.client.request(
            await self.endpoint(group),
            method,
            path,
            body,
            media_type=FRAMES if group == 10 else "application/json",
            headers=headers or {},
            seconds_max=10.0,
        )

    async def stage(self, *items: bytes, stage: int = FIRST, transaction: str = "t") -> int:
        path = f"{LINES}/stages/{stage}?transaction={transaction}"
        response = await self.request("POST", path, b"".join(items))
        return msgspec.json.decode(response.body, type=Staged).items

    async def publish(self, stage: int = FIRST) -> tuple[int, int]:
        published = await self.publish_some(stage)
        assert published.complete, "nobody said that a part of it would do"
        return published.offset, published.count

    async def publish_some(self, stage: int = FIRST, **headers: str) -> Published:
        response = await self.request("POST", f"{LINES}/stages/{stage}/publish", headers=headers)
        return msgspec.json.decode(response.body, type=Published)

    async def discard(self, stage: int = FIRST) -> None:
        await self.request("POST", f"{LINES}/stages/{stage}/discard")

    async def decide(self, *stages: int, transaction: str = "t") -> Decided:
        body = Decide(transaction=transaction, stages=list(map(reference, stages)))
        response = await self.request("POST", DECISIONS, msgspec.json.encode(body))
        return msgspec.json.decode(response.body, type=Decided)

    async def decision(self, transaction: str = "t") -> DecisionAnswer:
        response = await self.request("GET", f"{DECISIONS}?transaction={transaction}")
        return msgspec.json.decode(response.body, type=DecisionAnswer)

    async def expire(self, *stages: int, transaction: str = "t") -> list[int]:
        body = Expire(transaction=transaction, stages=list(map(reference, stages)))
        response = await self.request("POST", f"{DECISIONS}/expire", msgspec.json.encode(body))
        return [each.stage for each in msgspec.json.decode(response.body, type=Expired).decided]

    async def complete(self, *transactions: str) -> None:
        body = msgspec.json.encode(Complete(transactions=list(transactions)))
        await self.request("POST", f"{DECISIONS}/complete", body)

    async def produce(self, *values: bytes) -> None:
        body = encode_values(values, timestamp=1_000, codec=Codec.NONE)
        await self.request("POST", f"{LINES}/records", body)

    async def values(self) -> list[bytes | None]:
        """Everything that a reader sees now."""
        found: list[bytes | None] = []
        while True:
            got = await self.brokers.client.request(
                await self.endpoint(10),
                "GET",
                f"{LINES}/records?offset={len(found)}",
                headers={"accept": FRAMES},
                seconds_max=10.0,
            )
            for header, frame in frames(got.body, bytes_max=1 << 26):
                assert header.first_offset == len(found), "offsets have no gaps"
                found += Batch.from_frame(frame).values()
            if len(found) == int({k.lower(): v for k, v in got.headers.items()}["talweg-high-watermark"]):
                return found

    async def staged(self) -> set[int]:
        broker = self.brokers.running[await self.brokers.leader()]
        return set(broker.hosting.partitions[10].group.replica.state.staging.stages)

    async def wait_until_nothing_is_staged(self) -> None:
        async with asyncio.timeout(20.0):
            while await self.staged():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.02)


def test_a_transaction_is_staged_decided_and_published(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            await at.produce(b"before")
            assert await at.stage(batch(0, b"a", b"b"), batch(1, b"c")) == 2
            assert await at.stage(batch(2, b"d")) == 3
            assert await at.values() == [b"before"], "nobody sees what is staged"
            assert not (await at.decision()).decided
            assert (await at.decide(FIRST)).ours
            assert (await at.decision()).stages == (reference(),)
            await at.produce(b"between")
            assert await at.publish() == (2, 4)
            assert await at.values() == [b"before", b"between", b"a", b"b", b"c", b"d"]
            await at.complete("t")
            assert (await at.decision()).completed

    run(test())


def test_everything_may_be_asked_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            for _ in range(2):
                assert await at.stage(batch(0, b"a"), batch(1, b"b")) == 2
            for _ in range(2):
                assert (await at.decide(FIRST)).ours
            for _ in range(2):
                assert await at.publish() == (0, 2)
            assert await at.stage(batch(1, b"b")) == 2
            for _ in range(2):
                await at.complete("t")
            assert (await at.decide(FIRST)).ours
            assert await at.values() == [b"a", b"b"]

    run(test())


def test_two_publish_at_the_same_moment_and_it_is_there_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            # More than a turn of publishing holds.
            items = [batch(number, b"%d" % number * 500_000) for number in range(20)]
            for item in items:
                await at.stage(item)
            outcomes = await asyncio.gather(*(at.publish() for _ in range(4)))
            assert set(outcomes) == {(0, 20)}
            assert await at.values() == [b"%d" % number * 500_000 for number in range(20)]

    run(test())


def test_publishing_answers_how_far_it_came_when_it_is_asked_to(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            at = await Transacting.on(brokers)
            await at.produce(b"before")
            for number in range(20):  # ten megabytes: a turn takes up to four
                await at.stage(batch(number, b"%d" % number * 250_000))
            answers = [await at.publish_some(**{ANSWER_MS: "0"})]
            while not answers[-1].complete:
                answers.append(await at.publish_some(**{ANSWER_MS: "0"}))
            counts = [answer.count for answer in answers]
            assert counts == sorted({*counts}), "each answer tells of something new"
            assert len(counts) > 1
            assert counts[-1] == 20
            assert {answer.offset for answer in answers} == {1}
            assert await at.publish_some(**{ANSWER_MS: "0"}) == answers[-1]
            assert (await at.values())[1:] == [b"%d" % number * 250_000 for number in range(20)]

    run(test())


def test_the_first_decision_holds(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"))
            await at.stage(batch(0, b"b", stage=SECOND), stage=SECOND)
            both = await asyncio.gather(at.decide(FIRST), at.decide(SECOND))
            assert both[0].stages == both[1].stages
            assert [each.ours for each in both].count(True) == 1

    run(test())


def test_who_is_not_the_leader_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            other = brokers.running[(await brokers.leader() + 1) % 3].endpoint
            for path in (f"{LINES}/stages/{FIRST}/publish", f"{LINES}/stages/{FIRST}/discard"):
                with pytest.raises(NotLeader):
                    await brokers.client.request(other, "POST", path, seconds_max=5.0)
            path = f"{LINES}/stages/{FIRST}?transaction=t"
            with pytest.raises(NotLeader):
                await brokers.client.request(
                    other, "POST", path, batch(0, b"a"), media_type=FRAMES, seconds_max=5.0
                )
            assert await at.values() == []

    run(test())


def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            at = await Transacting.on(brokers)
            with pytest.raises(StageNotFound):
                await at.publish()
            with pytest.raises(OutOfSequence):
                await at.stage(batch(1, b"a"))
            with pytest.raises(BadRequest):
                await at.stage(batch(0, b"a", stage=SECOND))
            with pytest.raises(BadRequest):
                await at.stage(encode_values([b"a"], timestamp=0))
            with pytest.raises(CorruptBatch):
                await at.stage(b"nonsense")
            with pytest.raises(CorruptBatch):
                await at.stage(encode_frame(Kind.DISCARD, b"\x90", producer_id=FIRST, sequence=0))
            with pytest.raises(BadRequest):
                await at.stage(batch(0, b"a"), transaction="x" * 256)
            with pytest.raises(BadRequest):
                await at.request("POST", f"{LINES}/stages/7?transaction=t", batch(0, b"a", stage=7))
            with pytest.raises(BadRequest):  # what is published goes through a stage
                await at.request("POST", f"{LINES}/records", batch(0, b"a"))
            with pytest.raises(Forbidden):
                await brokers.client.request(
                    await at.endpoint(20),
                    "POST",
                    "/v1/topics/__transactions/partitions/0/records",
                    encode_values([b"a"], timestamp=0),
                    media_type=FRAMES,
                    seconds_max=5.0,
                )
            assert await at.values() == []

    run(test())


def test_a_transaction_is_decided_on_in_its_own_partition(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic("__transactions", group=20, partitions=2)
            at = Transacting(brokers)
            refused = 0
            for number in range(20):
                try:
                    await at.decide(FIRST, transaction=f"t{number}")
                except BadRequest:
                    refused += 1
            assert 0 < refused < 20

    run(test())


def test_an_old_transaction_of_a_series_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            at = await Transacting.on(brokers)
            for number in range(20):
                await at.decide(FIRST + number, transaction=f"q/{number}")
                await at.complete(f"q/{number}")
            with pytest.raises(TransactionForgotten):
                await at.decide(FIRST, transaction="q/0")
            with pytest.raises(TransactionForgotten):
                await at.decision("q/0")
            assert (await at.decision("q/19")).completed

    run(test())


# Discard


def test_what_is_discarded_is_gone_and_cannot_be_decided_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"))
            for _ in range(2):
                await at.discard()
            await at.discard(SECOND)  # never staged: as good as discarded
            with pytest.raises(StageExpired):
                await at.publish()
            with pytest.raises(StageExpired):
                await at.stage(batch(1, b"b"))
            with pytest.raises(StageExpired):
                await at.decide(FIRST)
            assert await at.values() == []

    run(test())


def test_what_was_decided_on_cannot_be_discarded(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"))
            await at.decide(FIRST)
            with pytest.raises(StageDecided):
                await at.discard()
            assert await at.publish() == (0, 1)
            with pytest.raises(StageDecided):
                await at.discard()
            assert await at.values() == [b"a"]

    run(test())


# What brokers settle by themselves


def test_what_nobody_decides_on_is_discarded(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 3, SWEEPING) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"))
            await at.wait_until_nothing_is_staged()
            with pytest.raises(StageExpired):
                await at.decide(FIRST)
            with pytest.raises(StageExpired):
                await at.publish()
            assert await at.values() == []

    run(test())


def test_what_is_decided_on_and_nobody_publishes_is_published(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 3, SWEEPING) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"), batch(1, b"b"))
            await at.stage(batch(0, b"no", stage=SECOND), stage=SECOND)
            await at.decide(FIRST)
            await at.wait_until_nothing_is_staged()
            assert await at.values() == [b"a", b"b"]
            async with asyncio.timeout(20.0):
                while not (await at.decision()).completed:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.02)

    run(test())


def test_what_cannot_be_published_does_not_keep_the_rest_from_being_settled(tmp_path: Path) -> None:
    def unreadable(items: object) -> list[bytes]:
        raise StorageError("sectors that cannot be read")

    async def test() -> None:
        async with Brokers(tmp_path, 1, SWEEPING) as brokers:
            at = await Transacting.on(brokers)
            replica = brokers.running[0].hosting.partitions[10].group.replica
            readable = replica.read_staged
            replica.read_staged = unreadable  # type: ignore[method-assign]
            await at.stage(batch(0, b"a"))
            await at.stage(batch(0, b"no", stage=SECOND), stage=SECOND)  # of the same transaction
            await at.stage(batch(0, b"no", stage=THIRD), stage=THIRD, transaction="another")
            await at.decide(FIRST)
            await wait_until(lambda: set(replica.state.staging.stages) == {FIRST})
            replica.read_staged = readable  # type: ignore[method-assign]
            await at.wait_until_nothing_is_staged()
            assert await at.values() == [b"a"]

    run(test())


def test_replicas_that_do_not_answer_cost_a_broker_that_asks_its_time_limit_once() -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until whoever asks hangs up
        writer.close()

    async def test() -> None:
        primary = Primary()
        await primary.server.start()
        silent = await asyncio.start_server(silence, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        replicas = tuple(range(20))
        primary.peers = {str(n): Peer(id=n, endpoint=endpoint, peer_endpoint=endpoint) for n in replicas}
        primary.wish(
            PartitionAssignment(
                topic="lines", partition=0, group=10, voters=replicas, partitions=1, replication=20
            )
        )
        leaders = Leaders((primary.endpoint,), request_seconds_max=0.5)
        async with asyncio.timeout(5.0):
            with pytest.raises(Unavailable):
                await leaders.publish(reference())
        await leaders.close()
        silent.close()
        await primary.server.stop()

    run(test())


def test_a_stage_that_grows_does_not_expire(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, stage_expiry_seconds=2.0)
        async with Brokers(tmp_path, 1, settings) as brokers:
            at = await Transacting.on(brokers)
            loop = asyncio.get_running_loop()
            begun, number = loop.time(), 0
            while loop.time() - begun < 3.0:
                await at.stage(batch(number, b"%d" % number))
                number += 1
                await asyncio.sleep(0.1)
            assert (await at.decide(FIRST)).ours
            assert (await at.publish())[1] == number

    run(test())


def test_nothing_is_discarded_while_nobody_can_say_whether_it_was_decided_on(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(SWEEPING, request_seconds_max=0.3)
        async with Brokers(tmp_path, 1, settings) as brokers:
            await brokers.topic()
            at = Transacting(brokers)
            await at.stage(batch(0, b"a"))
            await asyncio.sleep(2.0)  # many looks; there is no event for what does not happen
            assert await at.staged() == {FIRST}
            await brokers.topic("__transactions", group=20)
            await at.wait_until_nothing_is_staged()

    run(test())


# Crashes, snapshots, retention


def test_what_is_staged_and_decided_survives_a_restart_of_everybody(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"), batch(1, b"b"))
            await at.stage(batch(0, b"c", stage=SECOND), stage=SECOND)
            await at.decide(FIRST)
            for number in range(3):
                await brokers.stop(number)
            for number in range(3):
                await brokers.start(number)
            assert (await at.decision()).stages == (reference(),)
            assert await at.publish() == (0, 2)
            assert await at.stage(batch(1, b"d", stage=SECOND), stage=SECOND) == 2
            assert await at.values() == [b"a", b"b"]

    run(test())


def test_retention_waits_for_what_is_staged(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            at = await Transacting.on(brokers, retention_bytes=0)
            replica = brokers.running[0].hosting.partitions[10].group.replica
            await at.produce(b"old" * 30_000)
            await wait_until(lambda: replica.start_offset == 1)
            await at.stage(batch(0, b"staged"))
            index = replica.state.staging.stages[FIRST].items[0].index
            for _ in range(5):
                await at.produce(b"new" * 30_000)
                await asyncio.sleep(0.2)  # looks of retention
            assert replica.raft.log.start_index < index
            assert await at.publish() == (6, 1)
            await at.produce(b"new" * 30_000)
            await wait_until(lambda: replica.raft.log.start_index > index)

    run(test())


def test_a_broker_that_catches_up_from_a_snapshot_knows_what_is_staged_and_decided(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 3, settings) as brokers:
            at = await Transacting.on(brokers, retention_bytes=0)
            leaders = {await brokers.leader(10), await brokers.leader(20)}
            away = next(number for number in range(3) if number not in leaders)
            await brokers.stop(away)
            await at.produce(b"x" * 90_000)
            await at.stage(batch(0, b"a"))
            await at.publish()
            for number in range(400):
                await at.decide(*range(FIRST, FIRST + 30), transaction=f"t{number}")
                await at.complete(f"t{number}")
            await at.produce(b"x" * 90_000)
            for group in (10, 20):
                leading = brokers.running[await brokers.leader(group)].hosting.partitions[group]
                await wait_until(partial(_was_cut, leading))
            await brokers.start(away)
            for group in (10, 20):
                leading = brokers.running[await brokers.leader(group)].hosting.partitions[group]
                following = brokers.running[away].hosting.partitions[group]
                await wait_until(partial(_are_alike, leading, following))
                assert _was_cut(following)

    run(test())


def _was_cut(partition: Partition) -> bool:
    return partition.group.replica.raft.log.start_index > 1


def _are_alike(one: Partition, other: Partition) -> bool:
    return one.group.replica.state.to_bytes() == other.group.replica.state.to_bytes()


def test_plain_consumers_are_told_of_no_producer(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            at = await Transacting.on(brokers)
            await at.stage(batch(0, b"a"))
            await at.publish()
            partition = brokers.running[0].hosting.partitions[10]
            taken = await partition.take("me", None, 1)
            assert isinstance(taken, Taken)
            assert (taken.value, taken.producer_id) == (b"a", -1)

    run(test())
