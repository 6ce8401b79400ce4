"""The way from one configuration to another."""

from hypothesis import given
from hypothesis import strategies as st

from talweg.broker.steps import next_configuration, should_hand_over
from talweg.raft import Configuration

BROKERS = st.sets(st.integers(1, 6))


def test_a_replacement_comes_as_a_learner_votes_when_caught_up_and_only_then_the_old_one_goes() -> None:
    now, wanted = Configuration.of([1, 2, 3]), Configuration.of([1, 2, 4])
    with_learner = next_configuration(now, wanted, leader=1, caught_up=())
    assert with_learner == Configuration.of([1, 2, 3], [4])
    assert next_configuration(with_learner, wanted, leader=1, caught_up=()) is None
    with_voter = next_configuration(with_learner, wanted, leader=1, caught_up={4})
    assert with_voter == Configuration.of([1, 2, 3, 4])
    assert next_configuration(with_voter, wanted, leader=1, caught_up=()) == wanted


def test_a_leader_that_is_not_wanted_hands_over_when_all_others_are_in_place() -> None:
    wanted = Configuration.of([2, 3, 4])
    assert not should_hand_over(Configuration.of([1, 2, 3], [4]), wanted, leader=1)
    now = Configuration.of([1, 2, 3, 4])
    assert next_configuration(now, wanted, leader=1, caught_up=()) is None
    assert should_hand_over(now, wanted, leader=1)
    assert next_configuration(now, wanted, leader=2, caught_up=()) == wanted


@given(voters=BROKERS, wanted_voters=BROKERS, wanted_learners=BROKERS)
def test_every_way_arrives_and_never_changes_two_voters_at_once(
    voters: set[int], wanted_voters: set[int], wanted_learners: set[int]
) -> None:
    now = Configuration.of(voters or {1})
    wanted = Configuration.of(wanted_voters or {2}, wanted_learners - (wanted_voters or {2}))
    leader = now.voters[0]
    for _ in range(50):
        step = next_configuration(now, wanted, leader=leader, caught_up=now.learners)
        if step is not None:
            assert now.differs_by_one_voter_at_most(step)
            assert step.voters
            now = step
        elif should_hand_over(now, wanted, leader=leader):
            leader = next(voter for voter in now.voters if voter != leader)
        else:
            break
    assert now == wanted
