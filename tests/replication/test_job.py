"""What gathers for the next job while one is under way, however long that takes."""

import pytest

from raft.stage import Stage
from talweg.raft import AppendReply, Configuration, HardState, Message, Role, Settings, VoteReply
from talweg.records import encode_values
from talweg.replication.job import Gathered
from talweg.storage import Write


def ack(
    index: int, *, target: int = 2, term: int = 1, rejected: bool = False, recovering: bool = False
) -> Message:
    return AppendReply(
        source=1, target=target, term=term, index=index, rejected=rejected, recovering=recovering
    )


def test_of_acknowledgements_the_one_that_goes_furthest_is_kept() -> None:
    gathered = Gathered()
    gathered.add(1, Write(hard_state=HardState(1)), [ack(5)])
    gathered.add(2, None, [ack(9), ack(7)])
    assert gathered.messages == [ack(9)]
    gathered.add(3, None, [ack(9), ack(10)])
    assert gathered.messages == [ack(10)]
    assert (gathered.number, len(gathered.writes)) == (3, 1)


@pytest.mark.parametrize(
    "other", [ack(5, target=3), ack(5, term=2), ack(5, rejected=True), ack(5, recovering=True)]
)
def test_what_says_something_else_is_kept_as_well(other: Message) -> None:
    gathered = Gathered()
    gathered.add(1, None, [ack(4), other, ack(6)])
    assert gathered.messages == [ack(4), other, ack(6)]


def test_what_others_ask_for_days_does_not_pile_up() -> None:
    gathered = Gathered()
    assert not gathered
    for term in range(1, 10_000):
        gathered.add(term, None, [VoteReply(source=1, target=2, term=term, granted=False)])
    assert gathered
    assert len(gathered.messages) < 100
    assert gathered.messages[-1].term == 9_999


@pytest.mark.parametrize("state", ["full", "stopped"])
def test_a_follower_whose_disk_refuses_or_hangs_keeps_little_and_tells_all_in_the_end(state: str) -> None:
    voters = (1, 2, 3)
    stage = Stage(Configuration.of(voters), Settings(), voters, timeouts=dict.fromkeys(voters, 20))
    stage.do(1, lambda replica: replica.raft.campaign())
    stage.stabilize()
    leader, follower = stage.replica(1), stage.replica(2)
    stage.set_disk(2, state)
    stage.do(1, lambda replica: replica.append([encode_values([b"x"], timestamp=0)], lambda _: None))
    stage.pass_time(500)
    assert leader.raft.role is Role.LEADER
    assert len(follower._gathered.writes) + len(follower._gathered.messages) < 5
    assert follower.raft.stable_index < follower.raft.log.last_index
    stage.set_disk(2, None)
    stage.finish_job(2)
    stage.pass_time(10)
    assert leader.raft.progress[2].counted_index == leader.raft.log.last_index
