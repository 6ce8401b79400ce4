"""The partitions that a broker carries, without its servers."""

import asyncio

import msgspec

from broker.primary import wait_until
from raft.cores import make_settled_leader
from talweg.broker.hosting import CAUGHT_UP_ENTRIES, Hosting, caught_up, is_ready
from talweg.errors import StorageError
from talweg.protocol.control import PartitionAssignment
from talweg.raft import AppendReply, Configuration
from talweg.replication import ReplicaHost
from talweg.storage import MemoryStores


class Reluctant(MemoryStores):
    """A disk that fails when something is to be removed."""

    fails = True

    def delete(self, group: str) -> None:
        if self.fails:
            raise StorageError("the disk failed")
        super().delete(group)


def assignment(group: int) -> PartitionAssignment:
    return PartitionAssignment(
        topic="topic", partition=0, group=group, voters=(1,), partitions=1, replication=1
    )


def test_a_partition_that_could_not_be_deleted_is_still_carried_and_deleted_when_asked_again() -> None:
    async def test() -> None:
        stores = Reluctant()
        host = ReplicaHost(1, stores)
        await host.start()
        hosting = Hosting(host, (), lambda: None)
        await hosting.carry_out([assignment(5)], ())
        for _ in range(2):
            # What else there is to do is done; and the primary, and the next life, are told of it.
            await hosting.carry_out([assignment(6)], [5])
            assert tuple(hosting.partitions) == (5,)
            assert hosting.carried() == (assignment(5),)
            assert not hosting.is_complete
            assert hosting.reports() == ()
        stores.fails = False
        await hosting.carry_out([assignment(6)], [5])
        assert stores.groups() == {"topic-0": 6}
        assert tuple(hosting.partitions) == (6,)
        assert hosting.is_complete
        await host.close()

    asyncio.run(test())


def test_what_could_not_be_opened_is_not_waited_for_when_nobody_wishes_it_any_more() -> None:
    async def test() -> None:
        host = ReplicaHost(1, MemoryStores())
        await host.start()
        hosting = Hosting(host, (), lambda: None)
        await hosting.carry_out([assignment(5)], ())
        await hosting.carry_out(
            [assignment(5), assignment(6)], ()
        )  # has the place of 5, which is not removed
        assert not hosting.is_complete
        await hosting.carry_out(None, ())  # nothing new: the wish stands
        assert not hosting.is_complete
        await hosting.carry_out([assignment(5)], ())
        assert hosting.is_complete
        await host.close()

    asyncio.run(test())


def test_a_newcomer_that_was_never_heard_of_gets_no_vote_however_short_the_log() -> None:
    async def test() -> None:
        host = ReplicaHost(1, MemoryStores())
        await host.start()
        hosting = Hosting(host, (), lambda: None)
        await hosting.carry_out([assignment(5)], ())
        group = hosting.group(5).group
        group.campaign()
        await wait_until(lambda: group.replica.serves)
        with_newcomer = msgspec.structs.replace(assignment(5), voters=(1, 2))
        await hosting.carry_out([with_newcomer], ())
        raft = group.replica.raft
        # The second look would make it a voter, and the group would have no majority without it.
        hosting.step()
        await wait_until(
            lambda: raft.configuration.learners == (2,) and raft.commit_index == raft.log.last_index
        )
        hosting.step()
        assert raft.configuration == Configuration.of([1], [2])
        assert hosting.reports()[0].caught_up == ()
        await host.close()

    asyncio.run(test())


def test_a_learner_has_caught_up_once_it_is_whole_and_only_while_it_is_heard_of() -> None:
    core = make_settled_leader(1, (1, 2, 3))
    raft = core.raft
    assert raft.propose_configuration(Configuration.of([1, 2, 3], [4])) is None
    core.pump()
    for voter in (2, 3):
        core.acknowledge(voter, raft.log.last_index)
    last = raft.log.last_index

    def says(*, recovering: bool) -> None:
        reply = AppendReply(source=4, target=1, term=raft.term, index=last, recovering=recovering, life=9)
        core.step(reply)

    assert caught_up(raft) == ()
    says(recovering=True)  # it has everything; but as a voter it would neither vote nor count
    assert caught_up(raft) == ()
    says(recovering=False)
    assert caught_up(raft) == (4,)
    for _ in range(raft.settings.election_ticks):
        core.tick()
        core.acknowledge(2, last)
        core.acknowledge(3, last)
    assert caught_up(raft) == ()
    assert is_ready(raft, 2)
    says(recovering=False)
    assert caught_up(raft) == (4,)
    core.propose(*[b"message"] * (CAUGHT_UP_ENTRIES + 1))
    assert caught_up(raft) == ()
