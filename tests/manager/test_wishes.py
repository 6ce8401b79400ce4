"""What brokers are told to carry, and who should lead."""

from types import SimpleNamespace
from typing import cast

from talweg.manager.follower import Follower
from talweg.manager.restoring import restored_assignment, restored_topic
from talweg.manager.wishes import Wishes, leader_to_be, may_go, wish_of
from talweg.metadata import Assignment, Broker, BrokerStatus, Replica, ReplicaRole, Topic, TopicSettings
from talweg.protocol.control import GroupReport

TOPIC = Topic(
    name="t",
    incarnation=10,
    partitions=3,
    replication=3,
    settings=TopicSettings(retention_ms=5, retention_bytes=6),
    created_us=7,
)


def assignment(*voters: int, learners: tuple[int, ...] = (), target: tuple[int, ...] = ()) -> Assignment:
    replicas = [Replica(b) for b in voters] + [Replica(b, ReplicaRole.LEARNER) for b in learners]
    return Assignment(topic="t", partition=2, incarnation=12, replicas=tuple(replicas), target=target)


def brokers(**statuses: BrokerStatus) -> dict[int, Broker]:
    return {
        number: Broker(id=number, endpoint="", incarnation=str(number), status=status)
        for number, status in ((int(name[1:]), status) for name, status in statuses.items())
    }


def test_the_first_voter_that_is_active_should_lead() -> None:
    known = brokers(b1=BrokerStatus.DEACTIVATED, b2=BrokerStatus.INACTIVE, b3=BrokerStatus.ACTIVE)
    assert leader_to_be(assignment(1, 2, 3), known) == 3
    known = brokers(b1=BrokerStatus.ACTIVE, b2=BrokerStatus.ACTIVE)
    assert leader_to_be(assignment(1, 2, 3), known) == 1
    assert leader_to_be(assignment(1, 2, 3), {}) is None


def test_a_newcomer_leads_only_when_it_has_a_voice() -> None:
    known = brokers(b1=BrokerStatus.DRAINING, b2=BrokerStatus.ACTIVE, b4=BrokerStatus.ACTIVE)
    assert leader_to_be(assignment(1, 2, 3, learners=(4,), target=(4, 2, 3)), known) == 2
    assert leader_to_be(assignment(4, 2, 3, 1, target=(4, 2, 3)), known) == 4


def test_a_log_may_go_once_its_group_has_become_what_was_wished() -> None:
    steady = GroupReport(group=12, term=3, voters=(2, 3, 4))
    assert may_go(1, assignment(2, 3, 4), steady)
    assert not may_go(2, assignment(2, 3, 4), steady)
    assert not may_go(1, assignment(2, 3, 4), None)
    assert not may_go(1, assignment(2, 3, 4), GroupReport(group=12, term=3, voters=(1, 2, 3, 4)))
    assert not may_go(1, assignment(1, 2, 3, target=(2, 3, 4)), steady)


def test_what_brokers_are_told_is_enough_to_restore_a_topic() -> None:
    told = wish_of(TOPIC, assignment(2, 3, 1), {})
    report = GroupReport(group=12, term=3, voters=(1, 2, 3))
    assert restored_topic(told) == TOPIC
    assert restored_assignment(told, report) == assignment(2, 3, 1)


def test_a_topic_that_was_forgotten_in_the_midst_of_a_move_gets_its_number_of_voters_back() -> None:
    told = wish_of(TOPIC, assignment(2, 3, 4, 1), {})
    restored = restored_assignment(told, GroupReport(group=12, term=3, voters=(1, 2, 3, 4)))
    assert restored.voters == (2, 3, 4, 1)
    assert restored.target == (2, 3, 4)


def test_a_broker_is_told_of_groups_that_it_is_to_leave_while_it_carries_them() -> None:
    known = brokers(b1=BrokerStatus.ACTIVE, b2=BrokerStatus.ACTIVE, b3=BrokerStatus.ACTIVE)
    copy = SimpleNamespace(topics={"t": TOPIC}, brokers=known)
    follower = SimpleNamespace(copy=copy, groups={12: assignment(2, 3)}, placement_version=1)
    wishes = Wishes(cast("Follower", follower))
    assert [wish.voters for wish in wishes.of(2)] == [(2, 3)]
    assert wishes.of(1) == ()
    assert [wish.voters for wish in wishes.of(1, carries=[12, 99])] == [(2, 3)]
