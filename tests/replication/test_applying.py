"""A log from the disk is applied bit by bit; nothing is served meanwhile, and nobody is held up."""

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest

from replication.hosts import WAIT_SECONDS, Hosts, batch, wait_until
from storage.logs import LogMaker
from talweg.errors import StorageFull, TalwegError
from talweg.raft import Append, Configuration, Entry, HardState, Heartbeat
from talweg.records import Kind, stamp
from talweg.replication import host as host_module
from talweg.replication import replica as module
from talweg.replication.proposals import Appended, Outcome
from talweg.replication.replica import Replica
from talweg.storage import MemoryStores, Write
from talweg.testing import SimulatedNode

ENTRIES = 50


def frame(number: int) -> bytes:
    return batch(b"%d" % number, producer_id=7, epoch=0, sequence=number)


def leader_of_a_long_log(*, applied: bool) -> Replica:
    """Of a group of one, just elected; with `applied` it has also begun to apply."""
    store = MemoryStores().open("group", 1)
    entries = [
        Entry(number + 1, 1, Kind.RECORDS, stamp(frame(number), number + 1, 1, number))
        for number in range(ENTRIES)
    ]
    store.write(Write(entries=entries, hard_state=HardState(1, 1)))
    replica = Replica(1, store, Configuration.of([1]), election_timeout=lambda: 10)
    replica.raft.campaign()
    replica.pump()
    for _ in range(2 if applied else 1):  # the vote, and the no-op
        work(replica)
    return replica


def work(replica: Replica) -> None:
    """One job, and one pump."""
    if (job := replica.take_job()) is not None:
        job.write()
        job.finish()
        replica.job_done(job)
    replica.pump()


@pytest.fixture(autouse=True)
def small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_APPLY_BYTES", 3 * len(frame(0)))


def test_a_long_log_is_applied_in_many_pumps_and_reads_wait_for_all_of_it() -> None:
    replica = leader_of_a_long_log(applied=True)
    told: list[TalwegError | None] = []
    replica.confirm_leadership(told.append)
    pumps = 0
    while replica.has_more:
        assert told == []
        assert not replica.serves
        before = replica.raft.applied_index
        replica.pump()
        assert before < replica.raft.applied_index <= before + 6
        pumps += 1
    assert pumps > 5
    assert told == [None]
    assert (replica.serves, replica.high_watermark) == (True, ENTRIES)


@pytest.mark.parametrize("applied", [False, True])
def test_a_new_leader_reads_the_rest_of_its_log_before_it_takes_anything(applied: bool) -> None:
    replica = leader_of_a_long_log(applied=applied)
    last_index = replica.raft.log.last_index
    told: list[Outcome] = []
    replica.append([frame(ENTRIES - 1), frame(ENTRIES)], told.append)
    pumps = 0
    while replica.raft.log.last_index == last_index:
        assert replica.has_more
        replica.pump()
        pumps += 1
    assert pumps > 5
    assert told == []
    while replica.wants_pump:
        work(replica)
    assert replica.raft.log.last_index == last_index + 1
    assert told == [[Appended(ENTRIES - 1, 1, duplicate=True), Appended(ENTRIES, 1)]]


def test_what_waits_for_a_leader_that_reads_its_log_is_told_when_it_leads_no_more() -> None:
    replica = leader_of_a_long_log(applied=False)
    told: list[Outcome] = []
    replica.append([frame(ENTRIES)], told.append)
    replica.pump()
    replica.raft.become_follower(9, None)
    replica.pump()
    assert isinstance(told[0], TalwegError)
    assert not replica.has_more or replica.raft.applied_index < replica.raft.commit_index


def append_of(entries: list[Entry], *, term: int, prev: tuple[int, int]) -> Append:
    return Append(
        source=2, target=1, term=term, prev_index=prev[0], prev_term=prev[1], entries=entries, commit=0
    )


def test_what_a_full_disk_cannot_give_is_applied_when_it_can() -> None:
    node = SimulatedNode(1, Configuration.of([1, 2, 3]), Random(1))
    make = LogMaker()
    node.start().step(append_of([make.noop(), *make.batches(3)], term=1, prev=(0, 0)))
    node.settle()
    node.crash()
    replica = node.start()  # nothing is at hand now
    replica.step(append_of(make.at(2, 2, 1).batches(1), term=2, prev=(2, 1)))
    replica.pump()
    job = replica.take_job()
    assert job is not None
    node.files.fail_next("truncate", error=errno.ENOSPC, after=1)  # of the log, after what is staged
    with pytest.raises(StorageFull) as full:
        job.write()  # half-way: what the files are now, whoever reads has to find out
    replica.job_failed(job, full.value)
    replica.step(Heartbeat(source=2, target=1, term=2, commit=2))
    for _ in range(2):  # a pump looks twice
        node.files.fail_next("write", error=errno.ENOSPC)  # and finding out has to write
    replica.pump()
    assert (replica.raft.commit_index, replica.raft.applied_index) == (2, 0)
    replica.pump()
    assert (replica.raft.applied_index, replica.high_watermark) == (2, 1)
    node.run_job(job)
    assert not replica.raft.disk_failed


def test_who_asks_a_leader_whose_full_disk_cannot_be_read_is_told_and_may_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = leader_of_a_long_log(applied=False)

    def read(*_: object) -> list[Entry]:
        raise StorageFull("no space left")

    told: list[Outcome] = []
    with monkeypatch.context() as patch:
        patch.setattr(replica.store, "read", read)
        replica.append([frame(ENTRIES)], told.append)
        replica.pump()
    (refused,) = told
    assert isinstance(refused, StorageFull)
    replica.append([frame(ENTRIES)], told.append)
    while replica.wants_pump or replica.has_more:
        work(replica)
    assert told[1:] == [[Appended(ENTRIES, 1)]]


def test_a_host_goes_on_with_what_is_left_to_apply(tmp_path: Path) -> None:
    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            await hosts.open_group()
            leader = await hosts.wait_for_leader()
            async with asyncio.timeout(WAIT_SECONDS):
                await leader.append([frame(number) for number in range(ENTRIES)])
            await hosts.stop(1)
            await hosts.start(1)
            await hosts.open_group()
            await wait_until(lambda: hosts.groups()[1].replica.high_watermark == ENTRIES)

    asyncio.run(test())


def test_a_turn_that_takes_long_ends_before_all_groups_had_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_TURN_SECONDS_MAX", 0.0)

    async def test() -> None:
        async with Hosts(tmp_path, count=1) as hosts:
            for incarnation in range(1, 5):
                await hosts.open_group(f"topic-{incarnation}", incarnation)
            leaders = [await hosts.wait_for_leader(incarnation) for incarnation in range(1, 5)]
            order: list[object] = []
            for leader in leaders:
                pump = leader.replica.pump

                def noted(leader: object = leader, pump: object = pump) -> None:
                    order.append(leader)
                    pump()  # type: ignore[operator]

                leader.replica.pump = noted  # type: ignore[method-assign]
            answers = [asyncio.ensure_future(leader.append([frame(0)])) for leader in leaders]
            await asyncio.sleep(0)  # they ask
            order.clear()
            asyncio.get_running_loop().call_soon(order.append, "the network")
            await asyncio.gather(*answers)
            assert order.index("the network") < order.index(leaders[-1])
            assert [order.index(leader) for leader in leaders] == sorted(map(order.index, leaders))

    asyncio.run(test())
