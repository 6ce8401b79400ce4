"""What becomes of a group when one of its brokers finds its files other than it left them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from replication.hosts import Hosts, batch, wait_until
from talweg.errors import DamagedLog
from talweg.raft import Configuration
from talweg.replication import Group
from talweg.storage import SegmentStores
from talweg.testing.disk import SimulatedFiles

VOTERS = Configuration.of([1, 2, 3])


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def flip(path: Path, *positions: int) -> None:
    content = bytearray(path.read_bytes())
    for position in positions:
        content[position] ^= 1
    path.write_bytes(content)


def lose(path: Path) -> None:
    path.unlink()


def rot(path: Path) -> None:
    flip(path, 2, 4096 + 2)


def has_recovered(group: Group) -> bool:
    return group.stopped is None and not group.replica.raft.recovering


@pytest.mark.parametrize("harm", [lose, rot])
def test_a_replica_whose_hard_state_is_lost_recovers_while_the_leader_stays(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            for number in range(5):
                await leader.append([batch(b"%d" % number)])
            await hosts.wait_for_agreement()
            broker = next(number for number, group in hosts.groups().items() if not group.leads)
            await hosts.stop(broker)
            harm(tmp_path / str(broker) / "topic-0" / "state")
            host = await hosts.start(broker)
            term = leader.term
            group = await host.open_group("topic-0", 7, VOTERS)
            await leader.append([batch(b"more")])
            await wait_until(lambda: has_recovered(group) and group.replica.high_watermark == 6)
            assert leader.leads
            assert leader.term == term
            await hosts.stop(broker)
            host = await hosts.start(broker)
            group = await host.open_group("topic-0", 7, VOTERS)
            assert not group.replica.raft.recovering, "and that is over"

    run(test())


def test_a_leader_whose_snapshot_has_rotted_gives_way_and_recovers_from_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            broker = leader.replica.raft.replica
            absent = next(iter({1, 2, 3} - {broker}))
            await hosts.stop(absent)
            for _ in range(30):
                await leader.append([batch(b"x" * 500)])
            leader.replica.snapshot_now()
            await leader.append([batch(b"last")])
            await wait_until(leader.replica.store.snapshots)
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: leader.replica.raft.log.start_index > 0)
            (path,) = (tmp_path / str(broker) / "topic-0").glob("*.snapshot")
            flip(path, 30)
            host = await hosts.start(absent)  # which needs that snapshot
            back = await host.open_group("topic-0", 7, VOTERS)
            await wait_until(lambda: back.replica.high_watermark == 31)
            await wait_until(lambda: has_recovered(leader) and leader.replica.high_watermark == 31)
            successor = await hosts.wait_for_leader()
            await successor.append([batch(b"after")])
            await hosts.wait_for_agreement()

    run(test())


def test_a_snapshot_that_has_rotted_is_not_cut_at_and_is_not_started_from(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            for count in (1, 2):
                await leader.append([batch(b"x" * 500)])
                leader.replica.snapshot_now()
                await leader.append([batch(b"y" * 500)])
                await wait_until(lambda marks=count: len(leader.replica.store.snapshots()) == marks)  # type: ignore[misc]
            older, newer = sorted((tmp_path / "1" / "topic-0").glob("*.snapshot"))
            flip(newer, 30)
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: len(leader.replica.store.snapshots()) == 1)
            await leader.append([batch(b"z")])
            assert leader.replica.start_offset == 0, "nothing was dropped"
            await hosts.stop(1)
            await hosts.start(1)
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            assert leader.replica.high_watermark == 5
            await leader.retain(bytes_max=0, before_timestamp=None)
            await wait_until(lambda: leader.replica.raft.log.start_index == int(older.stem))

    run(test())


def test_a_leader_that_cannot_read_its_log_gives_way_and_recovers_from_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        disks = {broker: SimulatedFiles() for broker in (1, 2, 3)}
        async with Hosts(tmp_path, stores=lambda broker: SegmentStores(disks[broker])) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            for number in range(50):
                await leader.append([batch(Random(number).randbytes(2_000), b"")])
            await hosts.wait_for_agreement()
            disk = disks[leader.replica.raft.replica]
            path = f"topic-0/{1:020}.log"
            disk.spoil(path, 50_000)
            with pytest.raises(DamagedLog):
                await leader.read(50, 1_000)
            await wait_until(lambda: has_recovered(leader) and leader.replica.high_watermark == 100)
            assert not disk.is_spoilt(path)
            await (await hosts.wait_for_leader()).append([batch(b"after")])
            await hosts.wait_for_agreement()

    run(test())


def test_a_group_that_recovers_is_opened_again_whatever_went_wrong_the_first_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            await leader.append([batch(b"a")])
            await hosts.wait_for_agreement()
            host = hosts.hosts[leader.replica.raft.replica]
            open_replica = host._open_replica
            failures = [MemoryError()]

            async def failing(*arguments: Any, **options: Any) -> Any:
                if failures:
                    raise failures.pop()
                return await open_replica(*arguments, **options)

            host._open_replica = failing  # type: ignore[method-assign]
            leader.replica.on_damage(DamagedLog("as if"))
            await wait_until(lambda: not failures and leader.stopped is None)
            await (await hosts.wait_for_leader()).append([batch(b"b")])

    run(test())
