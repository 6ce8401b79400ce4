"""Where partitions go: distinct brokers, even loads, leaders too; and how they move when a broker leaves."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talweg.errors import TooFewBrokers, TooManyPartitions
from talweg.metadata import (
    Assignment,
    Broker,
    BrokerStatus,
    Load,
    Replica,
    ReplicaRole,
    Report,
    loads_of,
    next_step,
    place_topic,
    plan_replacement,
)


def brokers_of(count: int, **statuses: BrokerStatus) -> list[Broker]:
    return [
        Broker(
            id=number,
            endpoint=f"http://host:{number}",
            incarnation=f"disk-{number}",
            status=statuses.get(f"b{number}", BrokerStatus.ACTIVE),
        )
        for number in range(count)
    ]


def assigned(placed: Sequence[Sequence[int]], topic: str = "orders") -> list[Assignment]:
    return [
        Assignment(
            topic=topic,
            partition=partition,
            incarnation=100 + partition,
            replicas=tuple(Replica(broker) for broker in replicas),
        )
        for partition, replicas in enumerate(placed)
    ]


def spread(counts: Mapping[int, int], brokers: int) -> int:
    numbers = [counts.get(broker, 0) for broker in range(brokers)]
    return max(numbers) - min(numbers)


# A new topic


@given(brokers=st.integers(1, 9), partitions=st.integers(1, 40), data=st.data())
def test_a_new_topic_is_spread_evenly_over_an_empty_cluster(
    brokers: int, partitions: int, data: st.DataObject
) -> None:
    replication = data.draw(st.integers(1, brokers))
    placed = place_topic(brokers_of(brokers), {}, partitions=partitions, replication=replication)
    assert len(placed) == partitions
    assert all(len(set(replicas)) == len(replicas) == replication for replicas in placed)
    assert spread(Counter(broker for replicas in placed for broker in replicas), brokers) <= 1
    assert spread(Counter(replicas[0] for replicas in placed), brokers) <= 1


@given(
    brokers=st.integers(3, 7),
    topics=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=8),
)
def test_topic_after_topic_the_cluster_stays_even(brokers: int, topics: list[tuple[int, int]]) -> None:
    assignments: list[Assignment] = []
    for number, (partitions, replication) in enumerate(topics):
        placed = place_topic(
            brokers_of(brokers), loads_of(assignments), partitions=partitions, replication=replication
        )
        assignments += assigned(placed, f"topic-{number}")
    loads = loads_of(assignments)
    assert spread({broker: load.partitions for broker, load in loads.items()}, brokers) <= 1


loads_strategy = st.lists(
    st.integers(0, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=3, max_size=6
)


@given(loads=loads_strategy, partitions=st.integers(1, 30), replication=st.integers(1, 3))
@example(loads=[(9, 9), (9, 0), (0, 0)], partitions=4, replication=2)
def test_uneven_loads_are_made_no_worse_and_evened_out(
    loads: list[tuple[int, int]], partitions: int, replication: int
) -> None:
    before = {broker: Load(*load) for broker, load in enumerate(loads)}
    placed = place_topic(brokers_of(len(loads)), before, partitions=partitions, replication=replication)
    carried = Counter({broker: load.partitions for broker, load in before.items()})
    for replicas in placed:
        others = [carried[broker] for broker in before if broker not in replicas]
        assert all(carried[broker] <= other for broker in replicas for other in others), "least loaded first"
        carried.update(replicas)
    leads = Counter({broker: load.leaders for broker, load in before.items()})
    leads.update(replicas[0] for replicas in placed)
    for leader, *others in placed:
        assert all(leads[leader] <= leads[other] + 1 for other in others), "no better leader was at hand"


def test_equal_inputs_give_equal_answers() -> None:
    loads = {0: Load(3, 1), 2: Load(1, 1)}
    first = place_topic(brokers_of(5), loads, partitions=8, replication=3)
    assert first == place_topic(
        brokers_of(5)[::-1], dict(reversed(loads.items())), partitions=8, replication=3
    )


def test_only_active_brokers_are_given_partitions() -> None:
    brokers = brokers_of(
        7,
        b0=BrokerStatus.INACTIVE,
        b2=BrokerStatus.DEACTIVATED,
        b4=BrokerStatus.DRAINING,
        b6=BrokerStatus.REMOVED,
    )
    placed = place_topic(brokers, {}, partitions=4, replication=3)
    assert {broker for replicas in placed for broker in replicas} == {1, 3, 5}
    with pytest.raises(TooFewBrokers, match="4 replicas need as many active brokers; there are 3"):
        place_topic(brokers, {}, partitions=1, replication=4)


def test_no_broker_carries_more_than_its_limit() -> None:
    loads = {0: Load(8), 1: Load(9)}
    placed = place_topic(brokers_of(4), loads, partitions=11, replication=2, partitions_max=10)
    counts = Counter(broker for replicas in placed for broker in replicas)
    assert counts == {0: 2, 1: 1, 2: 10, 3: 9}
    with pytest.raises(TooManyPartitions, match="at most 10"):
        place_topic(brokers_of(4), loads, partitions=12, replication=2, partitions_max=10)
    assert TooManyPartitions.status == 409
    assert not TooManyPartitions.retriable


@pytest.mark.parametrize(("partitions", "fits"), [(4_000, True), (4_001, False)])
def test_the_limit_is_4000_unless_it_is_set(partitions: int, fits: bool) -> None:
    expected = contextlib.nullcontext() if fits else pytest.raises(TooManyPartitions)
    with expected:
        place_topic(brokers_of(3), {}, partitions=partitions, replication=3)


# A broker leaves


def test_the_least_loaded_broker_takes_the_place_of_the_one_that_leaves() -> None:
    assignments = [*assigned([[0, 1, 2], [1, 2, 3]]), *assigned([[3, 1, 2]], "others")]
    plan = plan_replacement(assignments, brokers_of(5), {2}, moves_max=10)
    assert [(move.topic, move.partition, move.target) for move in plan.moves] == [
        ("orders", 0, (0, 1, 4)),
        ("orders", 1, (1, 0, 3)),
        ("others", 0, (3, 1, 4)),
    ]
    assert (plan.stuck, plan.waiting) == ((), ())
    assert all(move.replicas == before.replicas for move, before in zip(plan.moves, assignments, strict=True))


def test_only_so_many_moves_are_under_way() -> None:
    assignments = assigned([[0, 1]] * 5)
    first = plan_replacement(assignments, brokers_of(3), {1}, moves_max=2)
    assert [move.partition for move in first.moves] == [0, 1]
    assert [later.partition for later in first.waiting] == [2, 3, 4]
    under_way = [*first.moves, *assignments[2:]]
    second = plan_replacement(under_way, brokers_of(3), {1}, moves_max=2)
    assert (second.moves, [later.partition for later in second.waiting]) == ((), [2, 3, 4])


def test_a_move_whose_target_leaves_gets_another_one() -> None:
    (moving,) = plan_replacement(assigned([[0, 1, 2]]), brokers_of(5), {2}, moves_max=1).moves
    assert moving.target == (0, 1, 3)
    (again,) = plan_replacement([moving], brokers_of(5), {2, 3}, moves_max=1).moves
    assert again.target == (0, 1, 4)


def test_what_no_broker_can_take_is_stuck() -> None:
    assignments = assigned([[0, 1, 2]])
    assert plan_replacement(assignments, brokers_of(3), {2}, moves_max=9).stuck == tuple(assignments)
    idle = brokers_of(4, b3=BrokerStatus.INACTIVE)
    assert plan_replacement(assignments, idle, {2}, moves_max=9).stuck == tuple(assignments)
    full = [*assignments, *assigned([[3]], "others")]
    plan = plan_replacement(full, brokers_of(4), {2}, moves_max=9, partitions_max=1)
    assert plan.stuck == tuple(assignments)


def test_what_only_some_of_its_brokers_can_leave_is_stuck_and_moves_as_far_as_it_can() -> None:
    plan = plan_replacement(assigned([[0, 1, 2]]), brokers_of(4), {1, 2}, moves_max=9)
    assert [move.target for move in plan.moves] == [(0, 3, 2)]
    assert [stuck.intended for stuck in plan.stuck] == [(0, 3, 2)]  # 2 cannot leave; 1 can


def test_room_that_waiting_moves_will_take_is_not_there_for_others() -> None:
    assignments = assigned([[0, 1, 2]] * 12)
    plan = plan_replacement(assignments, brokers_of(4), {2}, moves_max=8, partitions_max=9)
    assert (len(plan.moves), len(plan.waiting), len(plan.stuck)) == (8, 1, 3)
    (moving,) = plan_replacement(assigned([[0, 1, 2]], "z"), brokers_of(4), {2}, moves_max=1).moves
    full = [*assigned([[0, 1, 2]] * 2), moving]
    plan = plan_replacement(full, brokers_of(5), {2, 3}, moves_max=1, partitions_max=1)
    assert [move.target for move in plan.moves] == [(0, 1, 4)]  # what is under way goes first


def test_who_carries_nothing_leaves_without_a_move() -> None:
    plan = plan_replacement(assigned([[0, 1, 2]]), brokers_of(4), {3}, moves_max=9)
    assert (plan.moves, plan.waiting, plan.stuck) == ((), (), ())


# The steps of a move


def moving(replicas: Sequence[int], target: tuple[int, ...]) -> Assignment:
    return msgspec.structs.replace(assigned([replicas])[0], target=target)


def report(voters: Set[int], learners: Set[int] = frozenset(), caught_up: Set[int] = frozenset()) -> Report:
    return Report(frozenset(voters), frozenset(learners), frozenset(caught_up))


def test_a_move_is_learner_then_voter_then_farewell() -> None:
    wish = moving([0, 1, 2], (0, 3, 2))
    wish = next_step(wish, report({0, 1, 2}))
    assert (wish.voters, wish.learners) == ((0, 2, 1), (3,))
    assert next_step(wish, report({0, 1, 2}, {3})) == wish, "not caught up: wait"
    wish = next_step(wish, report({0, 1, 2}, {3}, {3}))
    assert (wish.voters, wish.learners) == ((0, 3, 2, 1), ())
    wish = next_step(wish, report({0, 1, 2, 3}))
    assert (wish.voters, wish.target) == ((0, 3, 2), (0, 3, 2))
    wish = next_step(wish, report({0, 2, 3}))
    assert wish == assigned([[0, 3, 2]])[0]
    assert next_step(wish, report({0, 2, 3})) == wish


def test_a_step_that_the_store_forgot_is_not_taken_back() -> None:
    wish = moving([0, 1, 2], (0, 3, 2))  # of steps that were taken it knows nothing
    assert next_step(wish, report({0, 2, 3})) == assigned([[0, 3, 2]])[0]


def test_the_learner_of_a_move_that_was_given_up_goes_first() -> None:
    wish = moving([0, 1, 2], (0, 4, 2))
    wish = next_step(wish, report({0, 1, 2}, {3}, {3}))
    assert (wish.voters, wish.learners) == ((0, 2, 1), ())


def test_no_move_no_step() -> None:
    (steady,) = assigned([[0, 1, 2]])
    assert next_step(steady, report({0, 1, 2}, {7})) == steady


@given(data=st.data(), replication=st.integers(1, 3), leaving=st.sets(st.integers(0, 5), max_size=3))
def test_whatever_leaves_every_partition_arrives_by_steps_that_a_group_can_make(
    data: st.DataObject, replication: int, leaving: set[int]
) -> None:
    loads = {broker: Load(data.draw(st.integers(0, 3))) for broker in range(6)}
    placed = place_topic(brokers_of(6), loads, partitions=6, replication=replication)
    assignments = assigned(placed)
    plan = plan_replacement(assignments, brokers_of(6), leaving, moves_max=6)
    assert plan.stuck == (), "six less three are three"
    moved = {move.partition: move for move in plan.moves}
    affected = {a.partition for a in assignments if leaving.intersection(a.voters)}
    assert set(moved) == affected
    for wish in moved.values():
        assert len(set(wish.target)) == replication
        assert not leaving.intersection(wish.target)
        assert arrives(wish, data.draw(st.integers(1, 3)))


def arrives(wish: Assignment, patience: int) -> bool:
    """Follow a move with a group that does what is wished, and whose learners take a while to catch up."""
    now, target = report(set(wish.voters)), wish.target
    for turn in range(100):
        ready = now.learners if turn % patience == 0 else frozenset()
        wish = next_step(wish, Report(now.voters, now.learners, ready))
        assert len({replica.broker for replica in wish.replicas}) == len(wish.replicas)
        if not wish.target:
            return wish.voters == target and set(target) == now.voters and not now.learners
        wanted = report(set(wish.voters), set(wish.learners))
        changed = (now.voters ^ wanted.voters) | (now.learners ^ wanted.learners)
        assert len(changed) <= 1, "one member at a time"
        assert len(wanted.voters) >= len(target), "never fewer voters than it is to have"
        now = wanted
    return False


def test_roles_are_what_the_steps_say() -> None:
    wish = next_step(moving([0, 1], (0, 2)), report({0, 1}))
    assert wish.replicas == (Replica(0), Replica(1), Replica(2, ReplicaRole.LEARNER))
