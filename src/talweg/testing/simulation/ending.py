"""The end of a run: everything is put right, the cluster comes to rest, and all replicas agree."""

from typing import TYPE_CHECKING

from talweg.errors import DamagedLog
from talweg.raft import Raft
from talweg.testing.simulation.history import Violation
from talweg.testing.simulation.schedule import TICK_US

if TYPE_CHECKING:
    from talweg.testing.simulation.broker import Broker
    from talweg.testing.simulation.clients import Client
    from talweg.testing.simulation.cluster import Cluster

_READ_BYTES = 1 << 20
# Generous: the last message of a storm, a client's longest backoff and a few split votes fit in.
_TICKS_MAX = 1500
_LOOK_EVERY_TICKS = 2


class Ending:
    """Waits for rest, then compares."""

    def __init__(self, cluster: "Cluster", clients: list["Client"]) -> None:
        self._cluster = cluster
        self._clients = clients

    def run(self) -> None:
        """Raises Violation if the cluster does not come to rest, or if its replicas do not agree."""
        self._wait_for_rest()
        while not self._scrub():
            self._wait_for_rest()
        self._check_agreement()

    def _wait_for_rest(self) -> None:
        schedule = self._cluster.schedule
        deadline_us = schedule.now_us + _TICKS_MAX * TICK_US
        look_us = schedule.now_us
        while True:
            schedule.run_next()
            if schedule.now_us < look_us:
                continue
            look_us = schedule.now_us + _LOOK_EVERY_TICKS * TICK_US
            reason = self._restless()
            if reason is None:
                return
            if schedule.now_us > deadline_us:
                raise Violation(f"{_TICKS_MAX} ticks after everything was put right: {reason}")

    def _scrub(self) -> bool:
        # Rot that nobody has met yet is met now. Whether everything could be read.
        for broker in self._members():
            if broker.rotten and not _is_readable(broker):
                broker.reopen()
                return False
        return True

    def _members(self) -> list["Broker"]:
        leader = self._cluster.leader()
        assert leader is not None
        return [self._cluster.brokers[number] for number in _raft(leader).configuration.members]

    def _restless(self) -> str | None:
        leader = self._cluster.leader()
        if leader is None:
            return "no leader"
        raft = _raft(leader)
        if raft.commit_index < raft.log.last_index:
            return f"b{leader.number} has committed {raft.commit_index} of {raft.log.last_index}"
        for broker in self._members():
            reason = _behind(broker, raft)
            if reason is not None:
                return f"b{broker.number} {reason}"
        waiting = [client.name for client in self._clients if client.busy]
        return f"{waiting[0]} waits for an answer" if waiting else None

    def _check_agreement(self) -> None:
        history = self._cluster.history
        leader = self._cluster.leader()
        assert leader is not None
        if _raft(leader).configuration != history.configuration:
            raise Violation("the leader's configuration is not the committed one")
        if _raft(leader).commit_index != history.commit_index:
            raise Violation(
                f"the leader has {_raft(leader).commit_index} entries, committed were {history.commit_index}"
            )
        history.check_all_published()
        for broker in self._members():
            assert broker.replica is not None
            if broker.replica.state.to_bytes() != history.states[history.commit_index]:
                raise Violation(f"the state of b{broker.number} is not that of the others")
            self._check_log(broker)

    def _check_log(self, broker: "Broker") -> None:
        # Not what the replica believes, but what a reader of its disk gets.
        assert broker.replica is not None
        committed = self._cluster.history.committed
        store = broker.replica.store
        index, last_index = store.summary().start_index, store.summary().last_index
        if last_index != len(committed):
            raise Violation(f"the disk of b{broker.number} holds {last_index} of {len(committed)} entries")
        while index < last_index:
            for entry in store.read(index + 1, _READ_BYTES):
                index += 1
                expected = committed[index - 1]
                found = (entry.index, entry.term, entry.kind, entry.payload)
                if found != (index, expected.term, expected.kind, expected.payload):
                    raise Violation(f"the disk of b{broker.number} holds another entry {index}")


def _is_readable(broker: "Broker") -> bool:
    assert broker.replica is not None
    store = broker.replica.store
    index, last_index = store.summary().start_index, store.summary().last_index
    try:
        while index < last_index:
            index += len(store.read(index + 1, _READ_BYTES))
    except DamagedLog:
        return False
    return True


def _raft(broker: "Broker") -> Raft:
    assert broker.replica is not None
    return broker.replica.raft


def _behind(broker: "Broker", leader: Raft) -> str | None:
    if broker.replica is None:
        return "is down"
    raft = broker.replica.raft
    if raft.term != leader.term:
        return f"is in term {raft.term}, the leader in {leader.term}"
    for name in ("applied_index", "commit_index", "stable_index"):
        if getattr(raft, name) != leader.log.last_index:
            return f"has {name} {getattr(raft, name)}, the leader {leader.log.last_index}"
    if broker.durable.hard_state.recovering:
        return "is still recovering"
    return None
