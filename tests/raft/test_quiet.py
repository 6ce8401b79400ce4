"""Heartbeats that change nothing take the shortest way; whatever else they may say goes the long one."""

import pytest

from raft.cores import Core, append, make, make_settled_leader
from talweg.raft import Heartbeat, HeartbeatReply
from talweg.raft.following import handle_heartbeat

LEADER, OTHER = 2, 3


@pytest.fixture
def follower() -> Core:
    """Of two entries it holds, one is committed."""
    core = make(life=77)
    core.step(append(term=1, terms=(1, 1), commit=1))
    core.tick(3)
    return core


@pytest.fixture
def leader() -> Core:
    core = make_settled_leader()
    core.tick(3)
    return core


def test_a_follower_that_hears_nothing_new_only_waits_anew(follower: Core) -> None:
    assert follower.raft.hears_leader(LEADER, 1, 1)
    assert follower.raft.elapsed == 0
    assert not follower.raft.has_ready


def test_the_short_way_and_the_long_one_give_the_same_answer(follower: Core) -> None:
    heartbeat = Heartbeat(source=LEADER, target=1, term=1, commit=1, round=5)
    short = follower.step(heartbeat)
    handle_heartbeat(follower.raft, heartbeat)
    assert short == follower.pump() == [HeartbeatReply(source=1, target=LEADER, term=1, round=5, life=77)]


@pytest.mark.parametrize(
    ("source", "term", "commit"),
    [(LEADER, 2, 1), (LEADER, 0, 1), (OTHER, 1, 1), (LEADER, 1, 2)],
    ids=["a newer term", "an older term", "another leader", "more is committed"],
)
def test_what_is_new_to_a_follower_goes_the_long_way(
    follower: Core, source: int, term: int, commit: int
) -> None:
    assert not follower.raft.hears_leader(source, term, commit)
    assert follower.raft.elapsed == 3


def test_one_that_lost_its_log_or_stands_itself_goes_the_long_way(follower: Core) -> None:
    lost = make(recovering=True)
    lost.step(append(term=1, terms=(1,)))
    assert not lost.raft.hears_leader(LEADER, 1, 0)
    follower.campaign()
    assert not follower.raft.hears_leader(LEADER, 1, 1)


def test_a_leader_notes_that_a_follower_lives(leader: Core) -> None:
    raft = leader.raft
    assert raft.hears_follower(2, raft.term, 0)
    assert [raft.progress[peer].heard_at == raft.clock for peer in (2, 3)] == [True, False]
    assert not raft.has_ready


def test_what_is_new_to_a_leader_goes_the_long_way(leader: Core) -> None:
    raft = leader.raft
    assert not raft.hears_follower(9, raft.term, 0)  # of whom it knows nothing
    assert not raft.hears_follower(2, raft.term + 1, 0)
    assert not raft.hears_follower(2, raft.term, 1)  # it confirms a read
    leader.propose(b"new")
    assert not raft.hears_follower(2, raft.term, 0)  # it lacks something, which may have been lost
    assert all(progress.heard_at < raft.clock for progress in raft.progress.values())


def confirm(leader: Core, follower: int, read_round: int) -> None:
    leader.step(HeartbeatReply(source=follower, target=1, term=leader.raft.term, round=read_round))


def test_a_reply_that_confirms_a_read_goes_the_long_way_once() -> None:
    leader = make_settled_leader()
    leader.raft.read(1)
    leader.pump()
    confirm(leader, 3, 1)
    assert leader.raft.reads.confirmed_round == 1
    assert not leader.raft.hears_follower(2, leader.raft.term, 1)  # it is behind what the others confirmed
    assert leader.raft.hears_follower(3, leader.raft.term, 1)


def test_as_long_as_a_read_is_not_confirmed_replies_go_the_long_way() -> None:
    leader = make_settled_leader(voters=(1, 2, 3, 4, 5))
    leader.raft.read(1)
    leader.pump()
    confirm(leader, 2, 1)
    assert leader.raft.reads.confirmed_round == 0
    assert not leader.raft.hears_follower(2, leader.raft.term, 1)  # a voter may have gone: count again


def test_a_reply_of_one_that_lost_its_log_goes_the_long_way(leader: Core) -> None:
    raft = leader.raft
    lost = HeartbeatReply(source=2, target=1, term=raft.term, recovering=True, life=5)
    leader.step(lost)
    assert raft.progress[2].recovery_index == raft.log.last_index
    assert not raft.hears_follower(2, raft.term, 0)  # until it is known to be whole again


def test_one_that_leads_no_more_hears_no_followers(leader: Core) -> None:
    term = leader.raft.term
    leader.step(append(term=term + 1, prev=(1, term)))
    assert not leader.raft.hears_follower(2, term, 0)
    assert not leader.raft.hears_follower(2, term + 1, 0)
