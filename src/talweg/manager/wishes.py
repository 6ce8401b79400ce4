"""What the primary wishes each broker to carry, as the answer to its heartbeat says it. No I/O."""

from collections.abc import Iterable, Mapping

from talweg.manager.follower import Follower
from talweg.metadata import Assignment, Broker, BrokerStatus, Topic
from talweg.protocol.control import GroupReport, PartitionAssignment, Peer


class Wishes:
    """Worked out from the copy once for each of its versions."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._version = -1
        self._by_group: dict[int, PartitionAssignment] = {}
        self._by_broker: dict[int, set[int]] = {}  # the groups that each should carry

    def of(self, broker: int, carries: Iterable[int] = ()) -> tuple[PartitionAssignment, ...]:
        """All that a broker should carry, and what is wished of the groups that it carries still: it may
        lead one that it is to leave, and somebody has to tell the leader."""
        if self._version != self._follower.placement_version:
            self._version = self._follower.placement_version
            self._work_out()
        groups = self._by_broker.get(broker, set()).union(carries)
        return tuple(self._by_group[group] for group in sorted(groups) if group in self._by_group)

    def peers(self) -> tuple[Peer, ...]:
        """Where every broker is."""
        return tuple(
            Peer(id=broker.id, endpoint=broker.endpoint, peer_endpoint=broker.peer_endpoint)
            for broker in self._follower.copy.brokers.values()
            if broker.status is not BrokerStatus.REMOVED
        )

    def removed(
        self, broker: int, carries: Iterable[int], reports: Mapping[int, GroupReport]
    ) -> tuple[int, ...]:
        """Of the groups that a broker carries, those whose logs may go."""
        follower = self._follower
        return tuple(
            group
            for group in carries
            if (
                may_go(broker, assignment, reports.get(group))
                if (assignment := follower.groups.get(group)) is not None
                else follower.is_removed(group)
            )
        )

    def _work_out(self) -> None:
        copy = self._follower.copy
        self._by_group, self._by_broker = {}, {}
        for group, assignment in self._follower.groups.items():
            topic = copy.topics.get(assignment.topic)
            if topic is None:
                continue
            self._by_group[group] = wish_of(topic, assignment, copy.brokers)
            for replica in assignment.replicas:
                self._by_broker.setdefault(replica.broker, set()).add(group)


def wish_of(topic: Topic, assignment: Assignment, brokers: Mapping[int, Broker]) -> PartitionAssignment:
    """What the brokers of a partition are told."""
    return PartitionAssignment(
        topic=topic.name,
        partition=assignment.partition,
        group=assignment.incarnation,
        voters=assignment.voters,
        learners=assignment.learners,
        leader=leader_to_be(assignment, brokers),
        partitions=topic.partitions,
        replication=topic.replication,
        created_us=topic.created_us,
        retention_ms=topic.settings.retention_ms,
        retention_bytes=topic.settings.retention_bytes,
    )


def leader_to_be(assignment: Assignment, brokers: Mapping[int, Broker]) -> int | None:
    """The first voter, in the order of preference, that is active; None if none is."""
    voters = assignment.voters
    preferred = [broker for broker in assignment.intended if broker in voters]
    for broker in (*preferred, *voters):
        known = brokers.get(broker)
        if known is not None and known.status is BrokerStatus.ACTIVE:
            return broker
    return None


def may_go(broker: int, assignment: Assignment, report: GroupReport | None) -> bool:
    """Whether a broker need not carry a group any longer: nobody wishes it, and its leader, which has
    become what was wished, does not count it in."""
    return (
        broker not in assignment.brokers
        and not assignment.target
        and report is not None
        and set(report.voters) == set(assignment.voters)
        and broker not in report.learners
    )
