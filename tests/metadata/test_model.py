"""What a topic may be called, and how values show themselves."""

import pytest

from talweg.errors import BadTopicName
from talweg.metadata import Assignment, Replica, ReplicaRole, check_topic_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "-", "_", "a" * 249, "a__b"])
def test_a_name_by_the_rule_is_taken(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "a" * 250, ".", "..", "__mine", "a/b", "a b", "a\n", "a\0", "ä", "a:b", "a{b}", "٣", "a\\", "%2e"],
)
def test_a_name_against_the_rule_is_refused(name: str) -> None:
    with pytest.raises(BadTopicName):
        check_topic_name(name)


def test_an_assignment_tells_its_members_apart() -> None:
    assignment = Assignment(
        topic="orders",
        partition=3,
        incarnation=10,
        replicas=(Replica(2), Replica(0), Replica(5, ReplicaRole.LEARNER)),
        target=(2, 5),
    )
    assert assignment.voters == (2, 0)
    assert assignment.learners == (5,)
    assert assignment.brokers == {0, 2, 5}
    assert assignment.intended == (2, 5)
    assert assignment.group == "orders-3"
