"""Many groups on three hosts, over real sockets and real files."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from replication.hosts import QUICK, WAIT_SECONDS, Hosts, batch, wait_until
from talweg.errors import (
    DamagedLog,
    GroupNotFound,
    NotLeader,
    Overloaded,
    StorageError,
    TalwegError,
    Undecided,
)
from talweg.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    FetchEntries,
    FetchSnapshot,
    Heartbeat,
    HeartbeatReply,
    Message,
    RequestVote,
    Settings,
    Snapshot,
)
from talweg.records import HEADER_BYTES, Batch
from talweg.replication import Appended, Group, Position, wire
from talweg.storage import LogStores, LogSummary, MemoryStores, SegmentStores, Write
from talweg.storage.memory import MemoryStore
from talweg.testing.disk import SimulatedFiles


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def values_on(group: Group) -> list[bytes | None]:
    replica, found = group.replica, []
    while len(found) < replica.high_watermark - replica.start_offset:
        for frame in replica.read_frames(replica.start_offset + len(found), 1 << 30):
            found += Batch.from_frame(frame).values()
    return found


async def append(group: Group, *values: bytes, **identity: int) -> Appended:
    (appended,) = await group.append([batch(*values, **identity)])
    return appended


def test_who_waits_for_a_majority_is_told_when_the_leader_gives_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await append(leader, b"a")
            for broker in [broker for broker, group in hosts.groups().items() if group is not leader]:
                await hosts.stop(broker)
            appending = asyncio.ensure_future(append(leader, b"b"))
            await wait_until(lambda: not leader.leads)
            await wait_until(appending.done)
            with pytest.raises(Undecided):
                await appending

    run(test())


def test_an_acknowledged_batch_is_on_every_replica_at_the_same_offsets(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            assert await append(leader, b"a", b"b") == Appended(0, 2)
            assert await append(leader, b"c") == Appended(2, 1)
            await hosts.wait_for_agreement()
            for group in hosts.groups().values():
                assert values_on(group) == [b"a", b"b", b"c"]
                assert group.replica.high_watermark == 3

    run(test())


def test_a_follower_refuses_and_names_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            follower = next(group for group in hosts.groups().values() if not group.leads)
            await wait_until(lambda: follower.leader is not None)
            with pytest.raises(NotLeader) as refused:
                await append(follower, b"a")
            assert refused.value.leader == leader.replica.raft.replica

    run(test())


def test_proposals_made_together_keep_their_order_and_share_a_write(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            number = leader.replica.raft._number
            answers = await asyncio.gather(*[append(leader, b"%d" % n) for n in range(200)])
            assert [answer.first_offset for answer in answers] == list(range(200))
            assert leader.replica.raft._number - number < 50
            assert values_on(leader) == [b"%d" % n for n in range(200)]

    run(test())


def test_the_group_goes_on_when_its_leader_dies_and_a_retry_writes_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            first = await append(leader, b"a", producer_id=1, sequence=0, epoch=0)
            await hosts.stop(leader.replica.raft.replica)
            successor = await hosts.wait_for_leader()
            assert successor.term > leader.term
            again = await append(successor, b"a", producer_id=1, sequence=0, epoch=0)
            assert again == Appended(first.first_offset, 1, duplicate=True)
            await append(successor, b"b", producer_id=1, sequence=1, epoch=0)
            assert values_on(successor) == [b"a", b"b"]

    run(test())


def test_a_broken_connection_starts_the_search_for_a_leader_before_the_timeout(tmp_path: Path) -> None:
    async def test() -> None:
        still = msgspec.structs.replace(QUICK, tick_seconds=3600.0)  # no time passes but what is told
        async with Hosts(tmp_path, settings=still) as hosts:
            await hosts.open_group()
            await wait_until(lambda: all(len(host.connected) == 2 for host in hosts.hosts.values()))
            hosts.groups()[1].campaign()
            await hosts.wait_for_leader()
            raft = hosts.groups()[2].replica.raft
            await wait_until(lambda: raft.leader == 1)
            assert raft.elapsed == 0
            await hosts.stop(1)
            await wait_until(lambda: raft.leader is None)
            assert raft.elapsed == raft.settings.election_ticks - 1

    run(test())


def test_a_host_that_was_stopped_finds_everything_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            for number in range(20):
                await append(leader, b"%d" % number, producer_id=1, sequence=number, epoch=0)
            await leader.commit_positions([Position("reader", 5)])
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            assert values_on(leader) == [b"%d" % number for number in range(20)]
            assert leader.replica.state.positions == {"reader": 5}
            assert (await append(leader, b"19", producer_id=1, sequence=19, epoch=0)).duplicate

    run(test())


def test_one_connection_for_a_pair_of_brokers_whatever_the_number_of_groups(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            packets: list[bytes] = []
            for incarnation in range(1, 41):
                await hosts.open_group(f"topic-{incarnation}", incarnation)
            for incarnation in range(1, 41):
                await hosts.wait_for_leader(incarnation)
            for broker, host in hosts.hosts.items():
                assert host.connected == {1, 2, 3} - {broker}
                assert len(host._links._accepted) == 2
            host = hosts.hosts[1]
            host._links._arrived = lambda peer, packet: (  # type: ignore[assignment]
                packets.append(bytes(packet)),
                host._packet_arrived(peer, packet),
            )

            def widest() -> bool:
                return any(
                    sum(isinstance(message, Heartbeat) for _, message in wire.read_packet(packet, 2, 1)) > 3
                    for packet in packets
                )

            await wait_until(widest)

    run(test())


def test_a_group_made_again_under_its_name_hears_nothing_of_its_former_self(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group(incarnation=7)
            leader = await hosts.wait_for_leader(7)
            await append(leader, b"old")
            for host in hosts.hosts.values():
                await host.close_group(7, delete=True)
            await hosts.open_group(incarnation=8)
            fresh = await hosts.wait_for_leader(8)
            host = hosts.hosts[fresh.replica.raft.replica]
            ghosts: list[Message] = [
                Heartbeat(source=2, target=1, term=1000, commit=50),
                HeartbeatReply(source=2, target=1, term=1000),
                Append(source=2, target=1, term=1000, prev_index=0, prev_term=0, entries=[], commit=50),
                AppendReply(source=2, target=1, term=1000, index=50),
                RequestVote(source=2, target=1, term=1000, last_index=50, last_term=999, transfer=True),
            ]
            for ghost in ghosts:
                host._packet_arrived(2, memoryview(b"".join(wire.packets([(7, ghost)])))[4:])
            await append(fresh, b"new")
            assert fresh.term < 1000
            assert values_on(fresh) == [b"new"]
            with pytest.raises(GroupNotFound):
                host.group(7)

    run(test())


def test_a_log_of_another_incarnation_is_not_opened(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            host = hosts.hosts[1]
            await host.open_group("topic-0", 7, Configuration.of([1]))
            await host.close_group(7)
            with pytest.raises(GroupNotFound):
                await host.open_group("topic-0", 8, Configuration.of([1]))

    run(test())


def test_a_group_of_one_leads_at_once_and_commits_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            assert await append(leader, b"a") == Appended(0, 1)
            await leader.confirm_leadership()

    run(test())


def test_leadership_is_handed_over_without_waiting_for_an_election_timeout(tmp_path: Path) -> None:
    async def test() -> None:
        slow = msgspec.structs.replace(QUICK, tick_seconds=0.2)
        async with Hosts(tmp_path, settings=slow) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await hosts.wait_for_agreement()
            started = asyncio.get_running_loop().time()
            await hosts.hosts[leader.replica.raft.replica].hand_over_leadership()
            # Not before the successor is known: whoever stops then leaves nobody without a leader.
            assert leader.leader not in (None, leader.replica.raft.replica)
            successor = await hosts.wait_for_leader()
            # An election timeout is ten ticks, two seconds, at the least.
            assert asyncio.get_running_loop().time() - started < 1.5
            await append(successor, b"a")

    run(test())


def test_a_leader_without_a_majority_pushes_back_and_its_memory_stays_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        raft = Settings(heartbeat_ticks=2, election_ticks=500, uncommitted_bytes_max=100_000)
        settings = msgspec.structs.replace(QUICK, raft=raft)
        async with Hosts(tmp_path, settings=settings) as hosts:
            await hosts.open_group()
            hosts.groups()[1].replica.raft.campaign()
            leader = await hosts.wait_for_leader()
            for broker in {1, 2, 3} - {leader.replica.raft.replica}:
                await hosts.stop(broker)
            outcomes: list[object] = []
            while not outcomes:  # those that wait for a majority answer nothing
                leader.append_with_callback([batch(b"x" * 1000)], outcomes.append)
                await asyncio.sleep(0)
            assert isinstance(outcomes[0], Overloaded)
            assert outcomes[0].retriable
            assert leader.replica.raft.log.tail_bytes < 110_000

    run(test())


def test_a_follower_that_was_away_catches_up_from_the_leaders_disk(tmp_path: Path) -> None:
    async def test() -> None:
        raft = Settings(heartbeat_ticks=2, election_ticks=10, tail_bytes_max=10_000, append_bytes_max=5_000)
        settings = msgspec.structs.replace(QUICK, raft=raft)
        async with Hosts(tmp_path, settings=settings) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            absent = next(iter({1, 2, 3} - {leader.replica.raft.replica}))
            await hosts.stop(absent)
            for _ in range(20):
                await leader.append([batch(b"x" * 1000) for _ in range(10)])
            assert leader.replica.raft.log.tail_bytes < 50_000
            host = await hosts.start(absent)
            back = await host.open_group("topic-0", 7, Configuration.of([1, 2, 3]))
            await wait_until(lambda: back.replica.high_watermark == 200)
            assert values_on(back) == values_on(leader)

    run(test())


def test_all_groups_together_keep_little_at_hand_for_a_broker_that_is_away(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, tails_bytes_max=20_000)
        async with Hosts(tmp_path, settings=settings) as hosts:
            await wait_until(lambda: all(len(host.connected) == 2 for host in hosts.hosts.values()))
            await hosts.stop(3)
            for incarnation in range(1, 5):
                await hosts.open_group(f"topic-{incarnation}", incarnation)
            leaders = [await hosts.wait_for_leader(incarnation) for incarnation in range(1, 5)]
            for leader in leaders:
                for _ in range(10):
                    await append(leader, Random(1).randbytes(2_000))
            rafts = [leader.replica.raft for leader in leaders]
            await wait_until(lambda: sum(raft.log.tail_bytes for raft in rafts) <= 20_000)
            host = await hosts.start(3)
            for incarnation in range(1, 5):
                await host.open_group(f"topic-{incarnation}", incarnation, Configuration.of([1, 2, 3]))
                await hosts.wait_for_agreement(incarnation)

    run(test())


def test_what_is_kept_at_hand_is_bounded_also_when_it_is_durable_long_after_it_came(tmp_path: Path) -> None:
    async def test() -> None:
        gate = threading.Event()
        settings = msgspec.structs.replace(
            QUICK, tails_bytes_max=20_000, raft=msgspec.structs.replace(QUICK.raft, write_ticks_max=1 << 30)
        )
        async with Hosts(tmp_path, count=5, settings=settings) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await hosts.wait_for_agreement()
            await hosts.stop(next(broker for broker, group in hosts.groups().items() if group is not leader))
            store, raft = leader.replica.store, leader.replica.raft
            write = store.write

            def write_when_told(each: Write) -> None:
                gate.wait(WAIT_SECONDS)
                write(each)

            store.write = write_when_told  # type: ignore[method-assign]
            try:
                await append(leader, Random(1).randbytes(30_000))  # the others are enough
                host = hosts.hosts[raft.replica]
                await wait_until(
                    lambda: raft.applied_index == raft.log.last_index and not host._tails_changed
                )
                assert raft.log.tail_bytes > 20_000 > raft.log.payload_bytes(1, raft.stable_index)
            finally:
                gate.set()
            await wait_until(lambda: raft.log.tail_bytes <= 20_000)  # though nothing else happens

    run(test())


def test_a_follower_below_the_logs_start_gets_the_state_and_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        def small_segments(broker: int) -> LogStores:
            return SegmentStores(disks[broker], segment_bytes=4096)

        disks = {broker: SimulatedFiles() for broker in (1, 2, 3)}
        async with Hosts(tmp_path, stores=small_segments) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            absent = next(iter({1, 2, 3} - {leader.replica.raft.replica}))
            await hosts.stop(absent)
            await leader.commit_positions([Position("reader", 3)])
            for number in range(30):
                await append(leader, b"x" * 500, producer_id=4, sequence=number, epoch=0)
            leader.replica.snapshot_now()
            await append(leader, b"last", producer_id=4, sequence=30, epoch=0)
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: leader.replica.raft.log.start_index > 0)
            host = await hosts.start(absent)
            back = await host.open_group("topic-0", 7, Configuration.of([1, 2, 3]))
            await wait_until(lambda: back.replica.high_watermark == 31)
            assert back.replica.raft.log.start_index == leader.replica.raft.log.start_index
            assert back.replica.state.to_bytes() == leader.replica.state.to_bytes()
            assert back.replica.state.positions == {"reader": 3}

    run(test())


def test_a_snapshot_that_no_packet_can_carry_is_told_once_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "PACKET_BYTES_MAX", 8_000)

    async def test() -> None:
        async with Hosts(tmp_path, stores=lambda _: MemoryStores()) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            absent = next(iter({1, 2, 3} - {leader.replica.raft.replica}))
            await hosts.stop(absent)
            for number in range(10):
                await leader.commit_positions([Position(f"reader {number} {'x' * 1_000}", 1)])
            leader.replica.snapshot_now()
            await append(leader, b"a")
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: leader.replica.raft.log.start_index > 0)
            read: list[object] = []
            fetch = leader.replica.fetch

            def reading(wanted: FetchEntries | FetchSnapshot) -> list[Entry] | Snapshot | None:
                read.append(wanted)
                return fetch(wanted)

            leader.replica.fetch = reading  # type: ignore[method-assign]
            host = await hosts.start(absent)
            await host.open_group("topic-0", 7, Configuration.of([1, 2, 3]), join=True)
            raft, asked = leader.replica.raft, list[int]()
            fetched_snapshot = raft.fetched_snapshot

            def noted(peer: int, snapshot: Snapshot | None) -> None:
                assert snapshot is None
                asked.append(peer)
                fetched_snapshot(peer, snapshot)

            raft.fetched_snapshot = noted  # type: ignore[method-assign]
            await wait_until(lambda: len(asked) > 5)
            assert len(read) == 1
            assert absent in hosts.hosts[raft.replica].connected

    run(test())
    assert caplog.text.count("which no packet can carry") == 1


def test_a_full_disk_refuses_writes_and_recovers_without_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        disks = {broker: SimulatedFiles() for broker in (1, 2, 3)}
        async with Hosts(tmp_path, stores=lambda broker: SegmentStores(disks[broker])) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await append(leader, b"before")
            await hosts.wait_for_agreement()
            disks[leader.replica.raft.replica].space_bytes = 0
            outcome = await _outcome(leader, b"during")
            if isinstance(outcome, TalwegError):
                assert outcome.retriable
            else:
                assert isinstance(outcome, Appended)  # both others have it on their disks: a majority
            await wait_until(lambda: not leader.leads)
            assert values_on(leader)[0] == b"before"  # reads go on
            successor = await hosts.wait_for_leader()
            await append(successor, b"after")
            disks[leader.replica.raft.replica].space_bytes = None
            await wait_until(lambda: values_on(leader) == values_on(successor))
            assert values_on(leader)[-1] == b"after"

    run(test())


@pytest.mark.parametrize("count", [1, 3])
def test_a_disk_that_the_logs_have_filled_is_freed_by_retention(tmp_path: Path, count: int) -> None:
    async def test() -> None:
        disks = {broker: SimulatedFiles(space_bytes=100_000) for broker in range(1, count + 1)}
        settings = msgspec.structs.replace(QUICK, snapshot_interval_bytes=10_000, disk_retry_seconds=0.05)

        def stores(broker: int) -> SegmentStores:
            return SegmentStores(disks[broker], segment_bytes=5_000)

        async with Hosts(tmp_path, count=count, settings=settings, stores=stores) as hosts:
            await hosts.open_group()
            await hosts.wait_for_leader()
            groups = list(hosts.groups().values())
            waiting = await asyncio.wait_for(_fill_disks(groups), WAIT_SECONDS)
            for group in groups:
                await group.retain(bytes_max=20_000, before_timestamp=None)
            await wait_until(lambda: not any(group.replica.raft.disk_failed for group in groups))
            assert all(group.replica.raft.log.start_index > 0 for group in groups)
            assert all(group.replica.start_offset > 0 for group in groups)
            await append(await hosts.wait_for_leader(), b"after")
            await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS)

    run(test())


async def _fill_disks(groups: list[Group]) -> list[asyncio.Future[object]]:
    """Append until a majority cannot write. What was appended, answered or not."""

    def is_full() -> bool:
        return sum(group.replica.raft.disk_failed for group in groups) > len(groups) // 2

    waiting: list[asyncio.Future[object]] = []
    while not is_full():
        leader = await wait_until(lambda: next((group for group in groups if group.leads), is_full()))
        if isinstance(leader, Group):
            appending = asyncio.ensure_future(_outcome(leader, bytes(1_000)))
            waiting.append(appending)
            await wait_until(partial(_either, appending.done, is_full))
    return waiting


def _either(one: Callable[[], bool], other: Callable[[], bool]) -> bool:
    return one() or other()


async def _outcome(group: Group, value: bytes) -> object:
    try:
        return await append(group, value)
    except TalwegError as error:
        return error


def damage(path: Path, share: float) -> None:
    """Change a byte of a file, so far into it."""
    (log,) = path.glob("*.log")
    content = bytearray(log.read_bytes())
    content[int(share * len(content))] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize("noticed_by", ["a reader", "a look by time", "a write"])
def test_a_leader_whose_log_is_damaged_gives_way_and_recovers_from_the_others(
    tmp_path: Path, noticed_by: str
) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            sent = [b"%d" % number + bytes(100) for number in range(20)]
            for value in sent:
                await append(leader, value)
            await hosts.wait_for_agreement()
            broker = leader.replica.raft.replica
            frame = len(batch(sent[0]))
            share = (HEADER_BYTES + 9 * frame + 20) / (HEADER_BYTES + 20 * frame)
            damage(tmp_path / str(broker) / "topic-0", share)  # in a header, where everybody looks
            if noticed_by == "a reader":
                with pytest.raises(DamagedLog):
                    values_on(leader)
            elif noticed_by == "a look by time":
                with pytest.raises(DamagedLog):
                    leader.replica.offset_at(2)
            else:
                with pytest.raises(DamagedLog):
                    leader.replica.store.read(1 + len(leader.replica.store.read(1, 1 << 20)), 1)
                with pytest.raises(Undecided):
                    await append(leader, b"perhaps")  # the others may have it
            await wait_until(lambda: not leader.leads)
            with pytest.raises(TalwegError):
                await append(leader, b"refused")
            await wait_until(lambda: len(hosts.hosts[broker].groups) == 1)
            successor = await hosts.wait_for_leader()
            await append(successor, b"more")
            await wait_until(lambda: not leader.replica.raft.recovering)
            await hosts.wait_for_agreement()
            assert values_on(leader) == values_on(successor)
            assert [value for value in values_on(leader) if value != b"perhaps"] == [*sent, b"more"]

    run(test())


def test_a_follower_whose_log_is_damaged_recovers_when_the_leader_goes(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            for number in range(20):
                await append(leader, b"%d" % number + bytes(100))
            await hosts.wait_for_agreement()
            follower = next(group for group in hosts.groups().values() if not group.leads)
            damage(tmp_path / str(follower.replica.raft.replica) / "topic-0", 0.3)
            with pytest.raises(DamagedLog):
                values_on(follower)
            await append(leader, b"more")
            await wait_until(lambda: follower.stopped is None and not follower.replica.raft.recovering)
            await hosts.wait_for_agreement()
            assert values_on(follower) == values_on(leader)

    run(test())


def test_a_group_that_stopped_can_still_be_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            await hosts.open_group()
            group = await hosts.wait_for_leader()
            group.replica.pump = lambda: 1 / 0  # type: ignore[method-assign, assignment]
            with pytest.raises(TalwegError):
                await append(group, b"a")
            host = hosts.hosts[1]
            assert host.groups == []
            await host.close_group(7, delete=True)
            assert not (tmp_path / "1" / "topic-0").exists()
            await host.open_group("topic-0", 8, Configuration.of([1]))
            assert await append(await hosts.wait_for_leader(8), b"b") == Appended(0, 1)

    run(test())


class Forgetful(MemoryStore):
    """As a database that is away for a moment: right after its head was cut it cannot say what it holds."""

    failures = 0

    def drop_head(self, index: int) -> None:
        if index > super().summary().start_index:
            self.failures = 2
        super().drop_head(index)

    def summary(self) -> LogSummary:
        if self.failures:
            self.failures -= 1
            raise StorageError("the database is away")
        return super().summary()


def test_a_store_that_is_away_after_its_head_was_cut_does_not_stop_the_group(tmp_path: Path) -> None:
    store = Forgetful(7)

    class Stores(MemoryStores):
        def open(self, group: str, incarnation: int) -> MemoryStore:
            return store

    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_interval_bytes=1, disk_retry_seconds=0.01)
        async with Hosts(tmp_path, count=1, settings=settings, stores=lambda _: Stores()) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await append(leader, b"a")
            await append(leader, b"b")
            await wait_until(lambda: len(store.snapshots()) > 1)
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: leader.replica.start_offset > 0)
            assert leader.replica.start_offset == store.summary().start_offset
            leader = await hosts.wait_for_leader()
            assert await append(leader, b"c") == Appended(2, 1)

    run(test())


def test_a_group_that_could_not_be_deleted_is_deleted_when_asked_again(tmp_path: Path) -> None:
    files = SimulatedFiles()

    async def test() -> None:
        async with Hosts(tmp_path, count=1, stores=lambda _: SegmentStores(files)) as hosts:
            await hosts.open_group()
            await append(await hosts.wait_for_leader(), b"a")
            host = hosts.hosts[1]
            files.fail_next("rename")
            with pytest.raises(StorageError):
                await host.close_group(7, delete=True)
            assert host.groups == []
            with pytest.raises(GroupNotFound):
                await host.open_group("topic-0", 8, Configuration.of([1]))
            await host.close_group(7, delete=True)
            await host.open_group("topic-0", 8, Configuration.of([1]))
            assert await append(await hosts.wait_for_leader(8), b"b") == Appended(0, 1)

    run(test())


def test_a_learner_is_fed_promoted_and_an_old_voter_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=4) as hosts:
            for broker in (1, 2, 3):
                await hosts.hosts[broker].open_group("topic-0", 7, Configuration.of([1, 2, 3]))
            newcomer = await hosts.hosts[4].open_group("topic-0", 7, Configuration.of([1, 2, 3]), join=True)
            leader = await hosts.wait_for_leader()
            await append(leader, b"a")
            leader_id = leader.replica.raft.replica
            victim = next(iter({1, 2, 3} - {leader_id}))
            raft = leader.replica.raft
            for configuration in (
                Configuration.of([1, 2, 3], [4]),
                Configuration.of([1, 2, 3, 4]),
                Configuration.of({1, 2, 3, 4} - {victim}),
            ):
                await wait_until(lambda target=configuration: leader.change(target) is None)  # type: ignore[misc]
                await wait_until(lambda: raft.configuration_history[-1][0] <= raft.commit_index)
            await append(leader, b"b")
            await wait_until(lambda: newcomer.replica.high_watermark == 2)
            assert newcomer.voters == tuple(sorted({1, 2, 3, 4} - {victim}))
            await wait_until(lambda: not newcomer.replica.raft.recovering)

    run(test())


def test_a_bug_in_one_group_stops_that_group_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group("a", 1)
            await hosts.open_group("b", 2)
            sick, well = await hosts.wait_for_leader(1), await hosts.wait_for_leader(2)
            waiting = asyncio.ensure_future(sick.append([batch(b"x")]))
            sick.replica.pump = lambda: 1 / 0  # type: ignore[method-assign,assignment]
            with pytest.raises(TalwegError):
                await waiting
            with pytest.raises(TalwegError, match="has stopped"):
                await append(sick, b"y")
            assert await append(well, b"x") == Appended(0, 1)
            assert caplog.text.count("group a stops") == 1

    run(test())


def test_a_stranger_who_speaks_something_else_is_hung_up_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64):
                reader, writer = await asyncio.open_connection("127.0.0.1", hosts._ports[1])
                writer.write(greeting)
                with_hello = await _read_to_end(reader)
                assert b"Talweg" in with_hello
                writer.close()

    async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(1000) + await reader.read(1000)
        except ConnectionResetError:
            return b"Talweg (and then it hung up)"

    run(test())


def test_a_reader_at_the_end_is_woken_by_the_next_commit_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await leader.wait_for_offset(0, 0.05)  # nothing there: the time passes
            waiting = asyncio.ensure_future(leader.wait_for_offset(1, 60))
            await append(leader, b"a")
            assert not waiting.done()
            await append(leader, b"b")
            await asyncio.wait_for(waiting, 5)
            assert leader.replica.high_watermark == 2
            assert leader.replica.serves

    run(test())
