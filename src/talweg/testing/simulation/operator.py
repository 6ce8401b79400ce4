"""The people (and the manager) who run the cluster: members come and go, leadership moves, logs are cut."""

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from talweg.raft import Configuration, Raft, Refusal
from talweg.testing.simulation.schedule import TICK_US

if TYPE_CHECKING:
    from talweg.testing.simulation.broker import Broker
    from talweg.testing.simulation.cluster import Cluster


class Operator:
    """One method for each kind that `profile.OPERATIONS` names."""

    def __init__(self, cluster: "Cluster", random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._over = False

    def begin(self) -> None:
        """Do something now and then."""
        if self._cluster.profile.operations:
            self._plan()

    def end(self) -> None:
        """Leave it alone."""
        self._over = True

    def _plan(self) -> None:
        ticks = self._random.expovariate(1.0) * self._cluster.profile.operation_interval_ticks
        self._cluster.schedule.after(int(ticks * TICK_US), self._act)

    def _act(self) -> None:
        if self._over:
            return
        self._plan()
        name = self._random.choice(self._cluster.profile.operations)
        if name == "retention":
            self.retention()
            return
        # Now and then one who leads no more, and does not know it, is asked.
        leading = [broker for broker in self._cluster.brokers.values() if broker.leads]
        if leading:
            getattr(self, name)(self._random.choice(leading))

    # Members

    def add_learner(self, leader: "Broker") -> None:
        """One who follows without a voice."""
        outside = self._outside(leader)
        if outside is not None:
            self._change(leader, "learners added", _raft(leader).configuration.with_learner(outside), outside)

    def add_voter(self, leader: "Broker") -> None:
        """A voter from outside, without waiting until it has caught up."""
        outside = self._outside(leader)
        if outside is not None:
            self._change(leader, "voters added", _raft(leader).configuration.with_voter(outside), outside)

    def promote(self, leader: "Broker") -> None:
        """A learner gets its voice."""
        learners = _raft(leader).configuration.learners
        if learners:
            learner = self._random.choice(learners)
            self._change(leader, "promotions", _raft(leader).configuration.with_voter(learner))

    def demote(self, leader: "Broker") -> None:
        """A voter loses its voice."""
        voter = self._random.choice(_raft(leader).configuration.voters)
        self._change(leader, "demotions", _raft(leader).configuration.with_learner(voter))

    def remove(self, leader: "Broker") -> None:
        """A member goes; also the leader itself."""
        member = self._random.choice(_raft(leader).configuration.members)
        name = "leaders removed" if member == leader.number else "removals"
        self._change(leader, name, _raft(leader).configuration.without(member))

    def _change(
        self, leader: "Broker", name: str, configuration: Configuration, newcomer: int | None = None
    ) -> None:
        self._cluster.trace.note(f"operator: {name}, {configuration.voters} {configuration.learners}")

        def propose() -> None:
            if not self._is_sane(configuration, newcomer):
                return
            refusal = _raft(leader).propose_configuration(configuration)
            self._cluster.counts[name if refusal is None else f"changes refused: {refusal.name}"] += 1
            if refusal is None and newcomer is not None:
                self._cluster.brokers[newcomer].start()

        leader.do(f"is told: {name}", propose)

    def _is_sane(self, configuration: Configuration, newcomer: int | None) -> bool:
        # Nobody takes a sound voter away while so many others have lost their disks that the rest
        # could not decide anything.
        voters = configuration.voters
        lost = [voter for voter in voters if self._cluster.brokers[voter].lost or voter == newcomer]
        return len(voters) >= 2 and len(lost) <= len(voters) - configuration.quorum

    def _outside(self, leader: "Broker") -> int | None:
        members = _raft(leader).configuration.members
        outside = [number for number in self._cluster.brokers if number not in (*members, leader.number)]
        if not outside:
            return None
        number = self._random.choice(outside)
        broker = self._cluster.brokers[number]
        if broker.life and self._random.random() < 0.5 and self._cluster.may_lose(number):
            # It was a member once. It comes back as it is, or with a new disk.
            broker.crash()
            broker.wipe()
            self._cluster.schedule.after(self._random.randrange(20 * TICK_US), broker.start)
        return number

    # Leadership and retention

    def transfer(self, leader: "Broker") -> None:
        """Another one is to lead."""
        target = self._random.choice(_raft(leader).configuration.members)
        self._cluster.trace.note(f"operator: b{leader.number} is to hand over to {target}")

        def propose() -> None:
            refusal = _raft(leader).transfer(target)
            self._cluster.counts["transfers" if refusal is None else _refused(refusal)] += 1

        leader.do("hands over", propose)

    def retention(self) -> None:
        """Each broker cuts its own log when it likes."""
        up = [broker for broker in self._cluster.brokers.values() if broker.up]
        if not up:
            return
        if self._cluster.profile.batches_at_once > 2 and self._random.random() < 0.5:
            for each in up:
                each.once_in_a_run = partial(self._cut_a_run, each)
            return
        broker = self._random.choice(up)
        bytes_max = self._random.choice((0, 0, 500, 2000))

        def look() -> None:
            replica = broker.replica
            assert replica is not None
            replica.pump()
            if self._random.random() < 0.7:
                replica.snapshot_now()
            index = replica.retention_index(bytes_max=bytes_max, before_timestamp=None)
            if index is not None:
                # Other things may happen to the log before it is cut.
                self._cut_later(broker, index, self._random.choice((0, self._random.randrange(20 * TICK_US))))

        broker.do(f"looks what goes beyond {bytes_max} bytes", look)

    def _cut_a_run(self, broker: "Broker") -> None:
        # A run is seldom applied in part, and not for long.
        replica = broker.replica
        assert replica is not None
        replica.snapshot_now()
        self._cut_later(broker, replica.raft.applied_index, self._random.randrange(TICK_US))

    def _cut_later(self, broker: "Broker", index: int, delay_us: int) -> None:
        def cut() -> None:
            assert broker.replica is not None
            self._cluster.counts["retentions"] += broker.replica.drop_head(index)

        broker.later(delay_us, f"cuts at {index}", cut)


def _raft(broker: "Broker") -> Raft:
    assert broker.replica is not None
    return broker.replica.raft


def _refused(refusal: Refusal) -> str:
    return f"changes refused: {refusal.name}"
