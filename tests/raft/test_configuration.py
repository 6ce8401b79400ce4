"""Who belongs to a group, and which changes are safe."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talweg.raft import Configuration

members = st.integers(0, 2**64 - 1)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    chosen = draw(st.lists(members, unique=True, max_size=9))
    voters = draw(st.integers(0, len(chosen)))
    return Configuration.of(chosen[:voters], chosen[voters:])


@given(configurations())
def test_a_configuration_comes_back_from_its_bytes(configuration: Configuration) -> None:
    assert Configuration.from_bytes(configuration.to_bytes()) == configuration


def test_the_bytes_are_those_of_the_format() -> None:
    expected = b"\x02\x00\x01\x00" + b"".join(member.to_bytes(8, "little") for member in (1, 3, 2))
    assert Configuration.of([3, 1], [2]).to_bytes() == expected


@given(configurations(), st.data())
def test_bytes_that_were_cut_or_grew_are_refused(configuration: Configuration, data: st.DataObject) -> None:
    whole = configuration.to_bytes()
    with pytest.raises(ValueError, match="configuration of"):
        Configuration.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="configuration of"):
        Configuration.from_bytes(whole + data.draw(st.binary(min_size=1, max_size=9)))


def test_a_replica_that_is_named_twice_is_refused() -> None:
    twice = Configuration((1, 2), (2,)).to_bytes()
    with pytest.raises(ValueError, match="twice"):
        Configuration.from_bytes(twice)


def test_members_come_in_any_order_and_count_once() -> None:
    assert Configuration.of([3, 1, 3, 2], [5, 4]) == Configuration((1, 2, 3), (4, 5))
    assert Configuration.of([2, 1], [3]).members == (1, 2, 3)


def test_nobody_is_voter_and_learner() -> None:
    with pytest.raises(AssertionError):
        Configuration.of([1, 2], [2])


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half(voters: int, quorum: int) -> None:
    assert Configuration.of(range(voters), [100, 101]).quorum == quorum


def test_learners_become_voters_and_the_other_way_round() -> None:
    one = Configuration.of([1, 2])
    assert one.with_learner(3) == Configuration.of([1, 2], [3])
    assert one.with_learner(3).with_voter(3) == Configuration.of([1, 2, 3])
    assert one.with_learner(2) == Configuration.of([1], [2])
    assert one.with_voter(3).without(1) == Configuration.of([2, 3])
    assert one.with_learner(3).without(3) == one


def test_two_voters_at_once_are_too_many() -> None:
    three = Configuration.of([1, 2, 3])
    assert three.differs_by_one_voter_at_most(three.with_voter(4))
    assert three.differs_by_one_voter_at_most(three.without(3))
    assert three.differs_by_one_voter_at_most(Configuration.of([1, 2, 3], [4, 5]))
    assert not three.differs_by_one_voter_at_most(Configuration.of([1, 2, 4]))
    assert not three.differs_by_one_voter_at_most(Configuration.of([1, 2, 3, 4, 5]))
    assert not three.differs_by_one_voter_at_most(Configuration.of([1]))


@given(st.sets(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 6))
def test_majorities_before_and_after_a_change_of_one_voter_share_a_member(
    voters: set[int], changed: int
) -> None:
    old = Configuration.of(voters)
    new = old.without(changed) if changed in voters else old.with_voter(changed)
    assert old.differs_by_one_voter_at_most(new)
    for before in itertools.combinations(old.voters, old.quorum):
        for after in itertools.combinations(new.voters, new.quorum) if new.voters else ():
            assert set(before) & set(after)
