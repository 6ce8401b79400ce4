"""Brokers as a whole: they register, carry what they are told, and keep it."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.primary import QUICK, Brokers, wait_until
from talweg.broker import Broker
from talweg.broker.directory import FORMAT, IDENTITY_NAME, DataDirectory, Identity
from talweg.errors import GroupNotFound, InvalidSetting, NewerFormat, StorageError, Unavailable
from talweg.protocol.control import BrokerFace, GroupAnswer, PartitionAssignment
from talweg.records import encode_values


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_broker_registers_itself_and_says_who_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            face = await brokers.client.call(
                brokers.running[0].endpoint, "GET", "/", BrokerFace, seconds_max=5.0
            )
            assert face.role == "broker"
            assert face.healthy
            assert face.broker_id == 0
            assert face.incarnation in brokers.primary.peers
            assert brokers.primary.peers[face.incarnation].peer_endpoint == face.peer_endpoint

    run(test())


def test_a_restarted_broker_is_the_same_and_serves_without_a_primary(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic()
            partition = brokers.running[0].hosting.partition("lines", 0)
            appended = await partition.start("a", "latest")
            assert appended == 0
            await wait_until(lambda: brokers.running[0].directory.carried.assignments != ())
            await brokers.stop(0)
            await brokers.primary.server.stop()
            broker = Broker(
                msgspec.structs.replace(
                    QUICK, data=str(tmp_path / "broker-0"), managers=("http://127.0.0.1:1",)
                )
            )
            await broker.start()
            brokers.running[0] = broker
            await wait_until(lambda: broker.broker_id == 0)
            assert await brokers.leader() == 0

    run(test())


def test_hearts_beat_while_many_replicas_are_opened(tmp_path: Path) -> None:
    many = 400

    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            for group in range(many):
                brokers.primary.wish(
                    PartitionAssignment(
                        topic="t", partition=group, group=group, voters=(0,), partitions=many, replication=1
                    )
                )
            heartbeats = brokers.primary.heartbeats
            await wait_until(lambda: 0 in heartbeats)
            await wait_until(lambda: 0 < len(heartbeats[0].carries) < many)
            await wait_until(lambda: len(heartbeats[0].carries) == many)
            await wait_until(lambda: heartbeats[0].version == brokers.primary.version)
            assert await brokers.leader(many - 1) == 0

    run(test())


def test_a_wiped_directory_is_another_broker(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path / "a"), DataDirectory(tmp_path / "b")
    assert first.identity.incarnation != second.identity.incarnation
    first.close()
    again = DataDirectory(tmp_path / "a")
    assert again.identity == first.identity


def test_a_directory_is_for_one_broker_at_a_time(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with pytest.raises(InvalidSetting, match="in use by another broker"):
        DataDirectory(tmp_path)
    directory.close()
    DataDirectory(tmp_path).close()


def test_a_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / IDENTITY_NAME).write_bytes(msgspec.json.encode(Identity(FORMAT + 1, "x")))
    with pytest.raises(NewerFormat, match="newer Talweg"):
        DataDirectory(tmp_path)


@pytest.mark.parametrize("content", [b"something else", b'{"format": 1, "incarnation": "\xff"}'])
def test_a_directory_that_is_no_brokers_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / IDENTITY_NAME).write_bytes(content)
    with pytest.raises(StorageError, match="cannot be read"):
        DataDirectory(tmp_path)


def test_a_broker_that_is_forgotten_registers_again_and_keeps_its_number(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic()
            brokers.primary.forgotten.add(0)
            await wait_until(lambda: brokers.primary.registrations == 2)
            beats = brokers.primary.heartbeats
            beats.clear()
            await wait_until(lambda: 0 in beats)
            assert beats[0].carries == (10,)

    run(test())


def test_a_broker_that_is_called_by_another_number_asks_with_pauses_and_complains_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic()
            primary = brokers.primary
            (peer,) = primary.peers.values()
            primary.peers = {"another": peer}  # it has lost its metadata, and given the number to another
            primary.forgotten.add(0)
            before, began = primary.registrations, time.monotonic()
            await wait_until(lambda: primary.registrations >= before + 6)
            assert time.monotonic() - began > 4 * QUICK.heartbeat_seconds
            assert caplog.text.count("the managers call this broker 1") == 1

    run(test())


def test_only_what_was_removed_is_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic("kept", group=10)
            await brokers.topic("gone", group=20)
            hosting = brokers.running[0].hosting
            brokers.primary.wishes.clear()
            brokers.primary.removed.add(20)
            brokers.primary.version += 1
            await wait_until(lambda: 20 not in hosting.partitions)
            assert (await brokers.leader(10)) == 0
            with pytest.raises(GroupNotFound):
                hosting.partition("gone", 0)
            answer = await brokers.client.call(
                brokers.running[0].endpoint, "GET", "/groups/10", GroupAnswer, seconds_max=5.0
            )
            assert answer.assignment.topic == "kept"

    run(test())


def test_a_primary_of_the_past_is_not_heeded(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            brokers.primary.epoch = 5
            await brokers.topic(group=10)
            await wait_until(lambda: brokers.running[0].directory.carried.epoch == 5)
            brokers.primary.epoch = 4
            brokers.primary.removed.add(10)
            brokers.primary.heartbeats.clear()
            await wait_until(lambda: 0 in brokers.primary.heartbeats)
            brokers.primary.heartbeats.clear()
            await wait_until(lambda: 0 in brokers.primary.heartbeats)
            assert 10 in brokers.running[0].hosting.partitions

    run(test())


def test_before_it_is_registered_a_broker_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Broker(msgspec.structs.replace(QUICK, data=str(tmp_path), managers=("http://127.0.0.1:1",)))
        await broker.start()
        with pytest.raises(Unavailable, match="not registered"):
            _ = broker.hosting
        await broker.stop()

    run(test())


def test_the_broker_that_should_lead_does_and_hands_over_when_another_should(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            assert await brokers.topic(leader=2) == 2
            wish = brokers.primary.wishes[10]
            brokers.primary.wish(msgspec.structs.replace(wish, leader=1))
            await wait_until(lambda: brokers.running[1].hosting.partitions[10].group.replica.serves)
            assert not brokers.running[2].hosting.partitions[10].group.leads

    run(test())


@pytest.mark.parametrize("leader", [0, 2], ids=["leader stays", "leader leaves"])
def test_a_replica_moves_by_learner_catch_up_and_switch(leader: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 4) as brokers:
            first = (0, 1, 2)
            leads = await brokers.topic(voters=first, leader=leader)
            partition = brokers.running[leads].hosting.partition("lines", 0)
            await partition.start("someone", 0)
            wish = brokers.primary.wishes[10]
            steps = [((0, 1, 2), (3,)), ((0, 1, 2, 3), ()), ((0, 1, 3), ())]
            for voters, learners in steps:
                brokers.primary.wish(
                    msgspec.structs.replace(wish, voters=voters, learners=learners, leader=None)
                )

                def reported(voters: tuple[int, ...] = voters, learners: tuple[int, ...] = learners) -> bool:
                    leads = [r for b in brokers.primary.heartbeats.values() for r in b.leads]
                    caught_up = [r.caught_up == learners for r in leads]
                    return any(caught_up) and any((r.voters, r.learners) == (voters, learners) for r in leads)

                await wait_until(reported)
            raft = brokers.running[3].hosting.partitions[10].group.replica.raft
            await wait_until(lambda: raft.configuration.voters == (0, 1, 3))

    run(test())


def test_a_clean_stop_hands_leadership_over_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic(leader=0)
            running = brokers.running.items()
            others = [each.hosting.partitions[10].group for number, each in running if number != leader]
            term = brokers.running[leader].hosting.partitions[10].group.term  # others may not have heard yet
            stopping = asyncio.create_task(brokers.stop(leader))
            await wait_until(lambda: any(group.leads for group in others))
            await wait_until(lambda: len({group.term for group in others}) == 1)
            assert others[0].term == term + 1  # one election, and nobody waited for it
            await stopping

    run(test())


def test_a_database_has_its_own_settings_for_durability(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(
            QUICK, data=str(tmp_path), storage=f"sqlite:///{tmp_path}/log.db", durability="memory"
        )
        with pytest.raises(InvalidSetting, match="--durability"):
            await Broker(settings).start()
        files = msgspec.structs.replace(settings, storage=f"segments://{tmp_path}/log")
        broker = Broker(files)
        await broker.start()
        await broker.stop()

    run(test())


def test_messages_may_be_kept_in_a_database_or_nowhere(tmp_path: Path) -> None:
    async def test() -> None:
        for place, storage in enumerate((f"sqlite:///{tmp_path}/log.db", "memory://")):
            settings = msgspec.structs.replace(QUICK, storage=storage)
            async with Brokers(tmp_path / str(place), 1, settings) as brokers:
                assert await brokers.topic() == 0
                partition = brokers.running[0].hosting.partition("lines", 0)
                frame = encode_values([b"a"], timestamp=1)
                assert [each.first_offset for each in await partition.append([frame])] == [0]
                assert (await partition.read(0, 1000, 0)).high_watermark == 1

    run(test())


def test_a_broker_that_stops_sends_those_who_wait_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic()
            broker = brokers.running[0]
            path = "/v1/topics/lines/partitions/0/records?offset=0&wait_ms=30000"
            waiting = asyncio.create_task(
                brokers.client.request(broker.endpoint, "GET", path, seconds_max=40.0)
            )
            await wait_until(lambda: bool(broker.hosting.partitions[10].group._readers))
            async with asyncio.timeout(broker.settings.stop_seconds_max):
                await brokers.stop(0)
            assert (await waiting).status == 200

    run(test())


def test_a_new_leader_tells_the_primary_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, heartbeat_seconds=60.0)
        async with Brokers(tmp_path, 1, settings) as brokers:
            beats = brokers.primary.heartbeats
            await wait_until(lambda: 0 in beats)
            brokers.primary.wish(
                PartitionAssignment(
                    topic="lines", partition=0, group=10, voters=(0,), partitions=1, replication=1
                )
            )
            brokers.running[0].nudge()
            await wait_until(lambda: [report.group for report in beats[0].leads] == [10])

    run(test())


def test_what_could_not_be_opened_is_asked_for_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            await brokers.topic()
            await wait_until(lambda: brokers.running[0].directory.carried.version > 0)
            wish = brokers.primary.wishes[10]
            # A group of another incarnation in the same place, before the old one is removed.
            brokers.primary.wish(msgspec.structs.replace(wish, group=20))
            beats = brokers.primary.heartbeats
            await wait_until(lambda: beats[0].version == 0)
            assert 20 not in brokers.running[0].hosting.partitions
            brokers.primary.removed.add(10)
            del brokers.primary.wishes[10]
            assert await brokers.leader(20) == 0

    run(test())


@pytest.mark.parametrize("turns", range(5))
def test_a_nudge_in_the_moment_of_stopping_does_not_keep_it_from_stopping(tmp_path: Path, turns: int) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1, msgspec.structs.replace(QUICK, heartbeat_seconds=30.0)) as brokers:
            # Its next beat is far away: from here on it waits for a nudge.
            await wait_until(lambda: brokers.running[0].directory.carried.epoch == 1)
            beating = next(
                t for t in asyncio.all_tasks() if getattr(t.get_coro(), "__qualname__", "") == "Heart.run"
            )
            brokers.running[0].nudge()
            for _ in range(turns):
                await asyncio.sleep(0)
            beating.cancel()
            await asyncio.wait([beating], timeout=1.0)
            assert beating.cancelled()

    run(test())
