"""What must hold after every step. Each check looks only at what the step changed, so that all can run.

A `Violation` is raised at the first thing that is wrong. The measure is the `History` that all brokers
share, and the `DurableLog` of each: the model of what its disk must hold.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from talweg.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    HardState,
    InstallSnapshot,
    Message,
    Raft,
    RequestVote,
    Role,
    Run,
    VoteReply,
    singly,
)
from talweg.replication.replica import Replica
from talweg.storage import Write
from talweg.testing.simulation.durable import DurableLog
from talweg.testing.simulation.history import History, Violation
from talweg.testing.simulation.runs import RunCuts


class Watched(Protocol):
    """A broker, as far as it is looked at."""

    number: int
    life: int  # grows with each start
    durable: DurableLog
    unsynced: list[Write]  # a job under way has written these, or will: a crash may keep any of it
    lost: bool  # wiped or rotten, and not yet known to have caught up

    @property
    def rotten(self) -> bool:
        """Whether there is damage on its disk, found or not."""

    @property
    def replica(self) -> Replica | None:
        """None while it is down."""


class _Seen:
    """What a running replica looked like after the last step."""

    def __init__(self) -> None:
        self.term = 0
        self.role = Role.FOLLOWER
        self.commit_index = 0
        self.applied_index = 0
        self.start_index = 0
        self.last_index = 0
        self.last_term = 0
        self.recovering = False
        self.terms: list[int] = []  # of the log, from start_index + 1 on
        self.at_hand: list[Entry | Run] = []  # of the log, when it last changed


class Leadership(NamedTuple):
    """Who leads a term."""

    broker: int
    life: int


class Invariants:
    """Looks at every step of every broker, at every promise that leaves one, and at every answer."""

    def __init__(self, history: History, counts: Counter[str], brokers: Mapping[int, Watched]) -> None:
        self.history = history
        self.brokers = brokers
        self.acknowledged_offset = 0  # first offset after everything that was acknowledged
        self.acknowledged_positions: dict[str, int] = {}
        self._counts = counts
        self._cuts = RunCuts(counts)
        self._seen: dict[int, _Seen] = {}
        self._leaders: dict[int, Leadership] = {}  # by term
        self._votes: dict[tuple[int, int], int] = {}  # (broker, term) → candidate

    # A broker's life

    def started(self, broker: Watched) -> None:
        """It has opened its disk: whatever was durable must be there."""
        assert broker.replica is not None
        raft = broker.replica.raft
        found, expected = DurableLog.of(raft), broker.durable
        if not raft.recovering:
            _check_nothing_lost(broker.number, found, expected, broker.unsynced)
        elif not broker.lost and not expected.hard_state.recovering:
            raise Violation(f"broker {broker.number} takes its log for damaged, and nothing happened to it")
        broker.durable, broker.unsynced = found, []
        seen = self._seen[broker.number] = _Seen()
        if raft.commit_index > self.history.commit_index:
            raise Violation(f"broker {broker.number} starts with entry {raft.commit_index} committed")
        seen.term, seen.commit_index = raft.term, raft.commit_index
        self.stepped(broker)

    def synced(self, broker: Watched, writes: list[Write], dropped_head: int | None) -> None:
        """A job was carried out to its end: its writes are durable now."""
        durable = broker.durable
        for write in writes:
            cut = durable.apply(write)
            if cut is not None:
                self._counts["truncations"] += 1
                if self.history.is_committed(*cut):
                    raise Violation(f"broker {broker.number} cut entry {cut[0]}, which is committed")
        if dropped_head is not None:
            durable.drop_head(dropped_head)
            self._counts["heads dropped"] += 1
        if broker.lost and not durable.hard_state.recovering and not broker.rotten:
            broker.lost = False
            self._counts["recoveries"] += 1

    # A step

    def stepped(self, broker: Watched) -> None:
        """Something happened to a broker. If it changed anything, look at that."""
        replica = broker.replica
        if replica is None:
            return
        raft, seen = replica.raft, self._seen[broker.number]
        if raft.term != seen.term:
            self._term_changed(broker, raft, seen)
        log = raft.log
        if (log.last_index, log.last_term, log.start_index) != (
            seen.last_index,
            seen.last_term,
            seen.start_index,
        ):
            self._log_changed(broker, raft, seen)
        if raft.role is not seen.role:
            self._role_changed(broker, raft, seen)
        if raft.commit_index != seen.commit_index:
            self._commit_changed(broker, raft, seen)
        if raft.applied_index != seen.applied_index:
            self._applied(broker, replica, seen)

    def _term_changed(self, broker: Watched, raft: Raft, seen: _Seen) -> None:
        if raft.term < seen.term:
            raise Violation(f"the term of broker {broker.number} went back from {seen.term} to {raft.term}")
        seen.term = raft.term
        if seen.role is Role.LEADER and raft.role is Role.LEADER:
            seen.role = Role.FOLLOWER  # it lost one term and won another within a step

    def _log_changed(self, broker: Watched, raft: Raft, seen: _Seen) -> None:
        log = raft.log
        if log.start_index != seen.start_index:
            self._start_changed(broker, raft, seen)
        index, terms, base = log.last_index, seen.terms, log.start_index + 1
        del terms[max(log.last_index - log.start_index, 0) :]
        fresh: list[int] = []
        # From the end back to where it is as it was: by induction everything before is, too.
        while index > log.start_index:
            term = log.term(index)
            assert term is not None
            place = index - base
            if place < len(terms) and terms[place] == term:
                break
            fresh.append(term)
            index -= 1
        del terms[index - log.start_index :]
        terms.extend(reversed(fresh))
        first_index = max(index + 1, log.tail_first)
        previous_term = log.term(first_index - 1)
        for entry in singly(log.tail(first_index)) if first_index <= log.last_index else []:
            self.history.entry_seen(broker.number, entry, previous_term)
            previous_term = entry.term
        self._cuts.log_changed(seen.at_hand, log, index)
        seen.at_hand = log.at_hand()
        seen.last_index, seen.last_term = log.last_index, log.last_term

    def _start_changed(self, broker: Watched, raft: Raft, seen: _Seen) -> None:
        log = raft.log
        if log.start_index < seen.start_index:
            raise Violation(f"the log of broker {broker.number} begins earlier than it did")
        if log.start_index > self.history.commit_index:
            raise Violation(f"broker {broker.number} dropped entry {log.start_index}, which is not committed")
        if log.start_term != self.history.committed[log.start_index - 1].term:
            raise Violation(
                f"the log of broker {broker.number} begins after entry {log.start_index} of term "
                f"{log.start_term}, committed was one of term "
                f"{self.history.committed[log.start_index - 1].term}"
            )
        del seen.terms[: log.start_index - seen.start_index]
        seen.start_index = log.start_index

    def _role_changed(self, broker: Watched, raft: Raft, seen: _Seen) -> None:
        if raft.role is Role.LEADER:
            leadership = Leadership(broker.number, broker.life)
            if self._leaders.setdefault(raft.term, leadership) != leadership:
                raise Violation(
                    f"term {raft.term} has two leaders: broker {self._leaders[raft.term].broker} "
                    f"and broker {broker.number}"
                )
            self._counts["elections"] += 1
            self._check_completeness(broker, raft)
            if raft.recovering:
                raise Violation(f"broker {broker.number} leads though it lost some of its log")
        elif raft.role is Role.CANDIDATE:
            self._counts["candidacies"] += 1
        elif seen.role is Role.LEADER:
            self._counts["leaders stepped down"] += 1
        seen.role = raft.role

    def _check_completeness(self, broker: Watched, raft: Raft) -> None:
        index = self.history.completeness_index(raft.term)
        if index <= raft.log.start_index:
            return
        if raft.log.term(index) != self.history.committed[index - 1].term:
            raise Violation(
                f"broker {broker.number} leads term {raft.term} without entry {index} of term "
                f"{self.history.committed[index - 1].term}, which is committed"
            )

    def _commit_changed(self, broker: Watched, raft: Raft, seen: _Seen) -> None:
        if raft.commit_index < seen.commit_index:
            raise Violation(
                f"broker {broker.number} had committed {seen.commit_index} entries, now {raft.commit_index}"
            )
        first_index = max(seen.commit_index, raft.log.start_index) + 1
        for index in range(first_index, raft.commit_index + 1):
            term = raft.log.term(index)
            assert term is not None
            self.history.entry_committed(broker.number, index, term, raft.term)
        seen.commit_index = raft.commit_index
        if raft.role is Role.LEADER:
            if raft.log.term(raft.commit_index) != raft.term:
                raise Violation(
                    f"broker {broker.number}, leader of term {raft.term}, commits entry {raft.commit_index} "
                    f"of term {raft.log.term(raft.commit_index)} by counting"
                )
            if not self._is_on_a_quorum(raft.commit_index, raft.configuration):
                raise Violation(
                    f"broker {broker.number} commits entry {raft.commit_index}, durable on no majority"
                )

    def _applied(self, broker: Watched, replica: Replica, seen: _Seen) -> None:
        index = replica.raft.applied_index
        if replica.raft.has_ready:
            return  # an installed snapshot reaches the state with the next Ready
        seen.applied_index = index
        self._cuts.applied(replica.raft.log, index)
        if replica.state.to_bytes() != self.history.states[index]:
            raise Violation(f"the state of broker {broker.number} as of entry {index} is not that of others")

    def _is_on_a_quorum(self, index: int, configuration: Configuration) -> bool:
        # Durable on a majority, or so it was before some of them lost their logs.
        term = self.history.committed[index - 1].term
        brokers = [self.brokers[voter] for voter in configuration.voters]
        holders = [broker for broker in brokers if broker.lost or broker.durable.holds(index, term)]
        return len(holders) >= configuration.quorum

    # Promises

    def leaving(self, broker: Watched, message: Message) -> None:
        """A message leaves a broker: what it promises must be durable, and never promised otherwise."""
        match message:
            case VoteReply(granted=True, pre=False):
                self._counts["votes granted"] += 1
                self._check_vote(broker, message.term, message.target)
            case RequestVote(pre=False):
                self._check_vote(broker, message.term, broker.number)
            case AppendReply(rejected=False):
                self._check_acknowledgement(broker, message)
            case AppendReply():
                self._counts["rejections"] += 1
            case InstallSnapshot():
                self._counts["installs sent"] += 1
            case Append(entries=[_, *_]):
                assert broker.replica is not None
                self._cuts.append_leaves(broker.replica.raft.log, message)
            case _:
                pass

    def arriving(self, broker: Watched, message: Message) -> None:
        """A message is about to be handed to a replica."""
        if isinstance(message, Append) and broker.replica is not None:
            self._cuts.append_comes(broker.replica.raft, message)

    def wiped(self, broker: int) -> None:
        """It has lost its disk. Votes that it gave itself were its own to count, and nobody counts them now;
        those that it gave others may still be on their way."""
        self._votes = {
            (voter, term): candidate
            for (voter, term), candidate in self._votes.items()
            if not voter == candidate == broker
        }

    def _check_vote(self, broker: Watched, term: int, candidate: int) -> None:
        voted = self._votes.setdefault((broker.number, term), candidate)
        if voted != candidate:
            raise Violation(f"broker {broker.number} voted for {voted} and for {candidate} in term {term}")
        if broker.durable.hard_state.recovering:
            raise Violation(f"broker {broker.number} votes though it lost some of its log")
        _check_promise(broker, term, candidate)

    def _check_acknowledgement(self, broker: Watched, reply: AppendReply) -> None:
        durable = broker.durable
        if durable.hard_state.term > reply.term:
            # To a leader of the past, and perhaps overwritten in the same sync. It does no harm: whoever
            # elected the present leader had none of it, and no majority can do without all of them.
            return
        if durable.last_index < reply.index:
            raise Violation(
                f"broker {broker.number} acknowledged entry {reply.index}, durable is {durable.last_index}"
            )
        if durable.hard_state.term < reply.term:
            raise Violation(f"broker {broker.number} acknowledged in term {reply.term} and may forget it")
        leadership = self._leaders.get(reply.term)
        leader = self.brokers[reply.target]
        if leadership != (leader.number, leader.life) or leader.replica is None:
            return
        log, term = leader.replica.raft.log, durable.term(reply.index)
        current = leader.replica.raft.term == reply.term and log.start_index <= reply.index
        if current and term is not None and log.term(reply.index) != term:
            raise Violation(
                f"broker {broker.number} acknowledged entry {reply.index} of term {reply.term} to "
                f"broker {leader.number} and holds one of term {term} there"
            )

    # Answers

    def batch_acknowledged(self, broker: Watched, index: int, next_offset: int) -> None:
        """The entry at `index` was acknowledged to a client."""
        assert broker.replica is not None
        # By the leader's configuration, also while it is not committed yet, or by the one before it: what
        # was committed before a change is answered after it. Majorities of the two always share a voter.
        recent = [configuration for _, configuration in broker.replica.raft.configuration_history[-2:]]
        if not any(self._is_on_a_quorum(index, configuration) for configuration in recent):
            raise Violation(f"entry {index} is acknowledged and durable on no majority")
        self.acknowledged_offset = max(self.acknowledged_offset, next_offset)

    def position_acknowledged(self, name: str, next_offset: int) -> None:
        """A position was acknowledged to a consumer: it is committed, and later reads know it."""
        if self.history.positions.get(name, 0) < next_offset:
            raise Violation(f"position {next_offset} of {name} was acknowledged and is not committed")
        known = self.acknowledged_positions.get(name, 0)
        self.acknowledged_positions[name] = max(known, next_offset)

    def expect_of_a_read(self) -> Callable[[int, Replica], None]:
        """A read is asked for now. Returns the check of its answer: nothing acknowledged until now is
        missing from it."""
        offset, positions = self.acknowledged_offset, dict(self.acknowledged_positions)

        def check(broker: int, replica: Replica) -> None:
            if replica.high_watermark < offset:
                raise Violation(
                    f"a confirmed read on broker {broker} ends at offset {replica.high_watermark}, "
                    f"though {offset} messages had been acknowledged when it was asked for"
                )
            for name, position in positions.items():
                if replica.state.positions.get(name, 0) < position:
                    raise Violation(f"a confirmed read on broker {broker} knows an old position of {name}")

        return check


def _check_promise(broker: Watched, term: int, candidate: int) -> None:
    durable = broker.durable.hard_state
    if durable.term < term or (durable.term == term and durable.vote != candidate):
        raise Violation(f"broker {broker.number} votes for {candidate} in term {term} and may forget it")


def _check_nothing_lost(broker: int, found: DurableLog, expected: DurableLog, unsynced: list[Write]) -> None:
    # What was written and not synced may be there or not: also a cut, and other entries after it.
    index = expected.last_index
    for write in unsynced:
        if write.truncate_from is not None:
            index = min(index, write.truncate_from - 1)
        if write.snapshot is not None:
            index = min(index, found.start_index)
    term = expected.term(index)
    if found.last_index < index or (found.start_index < index and found.term(index) != term):
        raise Violation(
            f"broker {broker} had entry {index} of term {term} on its disk, and finds a log of "
            f"{found.last_index} entries with one of term {found.term(index)} there"
        )
    if not _remembers(found.hard_state, expected.hard_state):
        raise Violation(
            f"broker {broker} had {expected.hard_state} on its disk, and finds {found.hard_state}"
        )


def _remembers(found: HardState, expected: HardState) -> bool:
    if found.term != expected.term:
        return found.term > expected.term
    return expected.vote is None or found.vote == expected.vote
