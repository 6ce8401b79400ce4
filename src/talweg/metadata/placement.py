"""Which brokers carry which partitions: for a new topic, and when a broker goes. Pure and deterministic.

The least loaded brokers come first. The first replica of a partition is its preferred leader, and leaders
are spread as evenly as replicas. Equal inputs give equal answers.

A partition moves one replica at a time, and each step is decided from what the group's leader reports,
not from what was decided before: a step that was forgotten, or done twice, does no harm.

    learner      the new broker receives the log and has no voice
    caught up    it gets its voice: one voter more than usual
    switch       the old broker loses its own
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from talweg.errors import TooFewBrokers, TooManyPartitions
from talweg.metadata.model import Assignment, Broker, BrokerStatus, Replica, ReplicaRole

PARTITIONS_MAX: Final = 4_000  # that one broker carries, unless it is set otherwise


class Load(msgspec.Struct, frozen=True):
    """What a broker carries already."""

    partitions: int = 0  # replicas, and those that are on their way
    leaders: int = 0  # of how many it is the preferred leader


class Report(msgspec.Struct, frozen=True):
    """A group's configuration as its leader has it, committed."""

    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    caught_up: frozenset[int] = frozenset()  # learners that lack next to nothing


class Plan(msgspec.Struct, frozen=True):
    """What to do about brokers that leave."""

    moves: tuple[Assignment, ...] = ()  # with their new targets, to be written
    waiting: tuple[Assignment, ...] = ()  # moved later: enough moves are under way
    stuck: tuple[Assignment, ...] = ()  # whose intended voters leave, and no broker could take their place


def loads_of(assignments: Iterable[Assignment]) -> dict[int, Load]:
    """What each broker carries, or will when the moves under way have ended."""
    partitions: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for assignment in assignments:
        partitions.update(assignment.brokers)
        leaders.update(assignment.intended[:1])
    return {broker: Load(count, leaders[broker]) for broker, count in partitions.items()}


def place_topic(
    brokers: Iterable[Broker],
    loads: Mapping[int, Load],
    *,
    partitions: int,
    replication: int,
    partitions_max: int = PARTITIONS_MAX,
) -> list[tuple[int, ...]]:
    """The brokers of each partition of a new topic, the preferred leader first.

    Raises TooFewBrokers when fewer are active than a partition needs, and TooManyPartitions when the
    active ones may not carry that many.
    """
    assert partitions >= 1
    assert replication >= 1
    active = _active(brokers)
    if len(active) < replication:
        raise TooFewBrokers(f"{replication} replicas need as many active brokers; there are {len(active)}")
    carried = {broker: loads.get(broker, Load()).partitions for broker in active}
    leaders = {broker: loads.get(broker, Load()).leaders for broker in active}
    placed: list[tuple[int, ...]] = []
    for _ in range(partitions):
        free = sorted(
            (broker for broker in active if carried[broker] < partitions_max),
            key=lambda broker: (carried[broker], leaders[broker], broker),
        )
        if len(free) < replication:
            raise TooManyPartitions(
                f"{partitions} partitions with {replication} replicas each do not fit: "
                f"a broker carries at most {partitions_max}"
            )
        chosen = tuple(free[:replication])
        placed.append(chosen)
        for broker in chosen:
            carried[broker] += 1
        leaders[min(chosen, key=lambda broker: (leaders[broker], broker))] += 1
    return _with_leaders(placed, {broker: loads.get(broker, Load()).leaders for broker in active})


def plan_replacement(
    assignments: Iterable[Assignment],
    brokers: Iterable[Broker],
    leaving: Collection[int],
    *,
    moves_max: int,
    partitions_max: int = PARTITIONS_MAX,
) -> Plan:
    """New targets for partitions whose voters are among the leaving, at most `moves_max` under way.

    A move whose own target leaves gets another one, and does not count again. The new broker takes the
    old one's place in the order, so preferred leaders stay as evenly spread as they were.
    """
    # Moves under way first: those that wait do not take the room from them.
    ordered = sorted(assignments, key=lambda a: (not a.target, a.topic, a.partition))
    loads = loads_of(ordered)
    carried = Counter({broker: load.partitions for broker, load in loads.items()})
    candidates = [broker for broker in _active(brokers) if broker not in leaving]
    under_way = sum(1 for assignment in ordered if assignment.target)
    moves, waiting, stuck = [], [], []
    for assignment in ordered:
        if not any(broker in leaving for broker in assignment.intended):
            continue
        target = _retargeted(assignment, leaving, candidates, carried, partitions_max)
        moved = msgspec.structs.replace(assignment, target=target)
        if target == assignment.intended:
            stuck.append(assignment)
            continue
        if any(broker in leaving for broker in target):
            stuck.append(moved)  # others of its brokers can be replaced, and are
        # Also for those that wait: there is room only once.
        carried.update(broker for broker in target if broker not in assignment.brokers)
        if not assignment.target and under_way >= moves_max:
            waiting.append(assignment)
        else:
            under_way += not assignment.target
            moves.append(moved)
    return Plan(tuple(moves), tuple(waiting), tuple(stuck))


def next_step(assignment: Assignment, report: Report) -> Assignment:
    """What to wish for next: the assignment itself while there is something to wait for.

    Each step changes one member of what was reported, so it is always a change that the group can make.
    """
    if not assignment.target:
        return assignment
    members = report.voters | report.learners
    strangers = report.learners.difference(assignment.target)
    missing = [broker for broker in assignment.target if broker not in members]
    learning = [broker for broker in assignment.target if broker in report.learners]
    ready = [broker for broker in learning if broker in report.caught_up]
    surplus = report.voters.difference(assignment.target)
    voters, learners = report.voters, report.learners
    if strangers:
        learners = learners - {min(strangers)}
    elif ready:
        voters, learners = voters | {ready[0]}, learners - {ready[0]}
    elif learning:
        pass  # One newcomer at a time: a second would share the leader's disk and network with it.
    elif missing:
        learners = learners | {missing[0]}
    elif surplus:
        # Last, so that the group has never fewer voters than it is to have.
        voters = voters - {min(surplus)}
    else:
        steady = tuple(Replica(broker) for broker in assignment.target)
        return msgspec.structs.replace(assignment, replicas=steady, target=())
    return msgspec.structs.replace(assignment, replicas=_in_order(assignment, voters, learners))


def _active(brokers: Iterable[Broker]) -> list[int]:
    return sorted(broker.id for broker in brokers if broker.status is BrokerStatus.ACTIVE)


def _in_order(
    assignment: Assignment, voters: frozenset[int], learners: frozenset[int]
) -> tuple[Replica, ...]:
    """Voters as the target has them, then those that go, then learners."""
    order = {broker: place for place, broker in enumerate(assignment.target)}

    def place(broker: int) -> tuple[int, int]:
        return order.get(broker, len(order)), broker

    return tuple(
        [Replica(broker) for broker in sorted(voters, key=place)]
        + [Replica(broker, ReplicaRole.LEARNER) for broker in sorted(learners, key=place)]
    )


def _retargeted(
    assignment: Assignment,
    leaving: Collection[int],
    candidates: Sequence[int],
    carried: Mapping[int, int],
    partitions_max: int,
) -> tuple[int, ...]:
    """The intended voters, with the leaving ones replaced as far as there are brokers to take their place."""
    target = list(assignment.intended)
    for place, broker in enumerate(target):
        if broker not in leaving:
            continue
        # A broker that carries the partition already, from a move that was given up, has the least to copy.
        free = [
            candidate
            for candidate in candidates
            if candidate not in target
            and (candidate in assignment.brokers or carried.get(candidate, 0) < partitions_max)
        ]
        if free:
            target[place] = min(free, key=lambda b: (b not in assignment.brokers, carried.get(b, 0), b))
    return tuple(target)


def _with_leaders(placed: Sequence[tuple[int, ...]], before: Mapping[int, int]) -> list[tuple[int, ...]]:
    """The same sets with a leader in front: the fewest to lead first, then shifted until it is even."""
    leaders = dict(before)
    chosen: list[int] = []
    for replicas in placed:
        chosen.append(min(replicas, key=lambda broker: (leaders[broker], broker)))
        leaders[chosen[-1]] += 1
    while shift := _shift(placed, chosen, leaders):
        for partition, broker in shift:
            leaders[chosen[partition]] -= 1
            leaders[broker] += 1
            chosen[partition] = broker
    return [
        (leader, *(broker for broker in replicas if broker != leader))
        for replicas, leader in zip(placed, chosen, strict=True)
    ]


def _shift(
    placed: Sequence[tuple[int, ...]], chosen: Sequence[int], leaders: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Changes of leaders (partition, new leader) that take one from a broker and give one to another
    that leads at least two fewer, over others in between if need be. Empty when it is as even as can be."""
    lowest = min(leaders.values())
    led: dict[int, list[int]] = {}
    for partition, leader in enumerate(chosen):
        led.setdefault(leader, []).append(partition)
    for giver in sorted(led, key=lambda broker: (-leaders[broker], broker)):
        if leaders[giver] < lowest + 2:
            break
        came_by: dict[int, tuple[int, int]] = {}  # broker: the partition it would take, and from whom
        queue = deque([giver])
        while queue:
            current = queue.popleft()
            for partition in led.get(current, []):
                for broker in placed[partition]:
                    if broker == giver or broker in came_by:
                        continue
                    came_by[broker] = (partition, current)
                    if leaders[broker] <= leaders[giver] - 2:
                        return _path(came_by, giver, broker)
                    queue.append(broker)
    return []


def _path(came_by: Mapping[int, tuple[int, int]], giver: int, taker: int) -> list[tuple[int, int]]:
    changes = []
    while taker != giver:
        partition, previous = came_by[taker]
        changes.append((partition, taker))
        taker = previous
    return changes
