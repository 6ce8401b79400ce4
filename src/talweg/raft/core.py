"""One replica of a Raft group: its state, its clockwork, and what it wants done (`Ready`).

What each role does with a message lives beside this file: `election`, `following`, `leading`,
`membership`. They change a `Raft` only through what is declared here.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from talweg.raft import election, following, leading, membership, recovery
from talweg.raft.configuration import Configuration
from talweg.raft.entries import Entries
from talweg.raft.log import Log
from talweg.raft.messages import (
    Append,
    AppendReply,
    FetchEntries,
    FetchSnapshot,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    ReadReady,
    Ready,
    Refusal,
    RequestVote,
    Role,
    Snapshot,
    TimeoutNow,
    VoteReply,
)
from talweg.raft.progress import Progress
from talweg.raft.reads import Reads


class Settings(msgspec.Struct, frozen=True):
    """Time is counted in ticks, which the driver makes as long as it likes."""

    heartbeat_ticks: int = 2
    election_ticks: int = 10  # silence after which a leader is doubted; timeouts are this or longer
    append_bytes_max: int = 1 << 20  # of payload in one message, unless one entry is larger
    # Sent to one follower and not yet acknowledged. Few on purpose: while they are under way, what is
    # proposed gathers, and the next message carries it all.
    inflight_messages_max: int = 4
    inflight_bytes_max: int = 8 << 20
    uncommitted_bytes_max: int = 64 << 20  # more is refused: back-pressure
    tail_bytes_max: int = 16 << 20  # payloads kept at hand for followers that lag
    # A write that takes longer hangs: the leader makes way. Many election timeouts, because a disk that is
    # merely slow is probably no slower than the others', and each change of leaders costs something.
    write_ticks_max: int = 100


class PendingWrite(msgspec.Struct, frozen=True, gc=False):
    """A Ready that was taken and is not known to be durable yet."""

    number: int
    rewrites_from: int | None  # it replaces what the log held from here on
    last_index: int  # durable once this write is, unless a later one rewrites it
    hard_state: HardState | None
    taken_at: int  # the clock then


class Raft:
    """Events in (`tick`, `step`, `propose`, …), one `Ready` out, `persisted` when it is durable."""

    def __init__(
        self,
        replica: int,
        configuration: Configuration,
        *,
        log: Log | None = None,
        hard_state: HardState | None = None,
        configurations: list[tuple[int, Configuration]] | None = None,
        applied_index: int | None = None,
        settings: Settings | None = None,
        election_timeout: Callable[[], int],
        life: int = 0,
    ) -> None:
        """`configuration` is the one in force at the log's start, `configurations` those in the log.
        The state is applied (so the log is committed) up to `applied_index`, if it is given.
        `election_timeout` gives a new random number of ticks, at least `settings.election_ticks`.
        `life` is a number that no other start of this replica has had (a random one will do)."""
        hard_state = hard_state or HardState()
        self.replica = replica
        self.settings = settings or Settings()
        self.log = log or Log()
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.recovering = hard_state.recovering
        self.recovery_index = 0  # while recovering: whole again once it holds this; 0 if not yet known
        self.life = life
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.commit_index = applied_index or self.log.start_index
        self.applied_index = self.commit_index  # <= commit_index
        self.stable_index = self.log.last_index  # durable here; may lag behind the log's end
        self.disk_failed = False
        self.clock = 0  # ticks so far
        self.elapsed = 0  # ticks since the leader was heard, or since the campaign began
        self.timeout = election_timeout()
        self.configuration_history = [(self.log.start_index, configuration), *(configurations or [])]
        self.configuration = self.configuration_history[-1][1]
        # Of a candidate:
        self.votes: dict[int, bool] = {}
        # Of a leader:
        self.progress: dict[int, Progress] = {}  # everyone else in the configuration
        self.term_start_index = 0  # of the no-op that opened the term
        self.doubt_at = 0  # by the clock: until then it is sure to have heard a quorum of these voters
        self.uncommitted_bytes = 0
        self.reads = Reads()
        self.transfer_target: int | None = None
        self.transfer_ticks = 0
        # For the next Ready:
        self._new_election_timeout = election_timeout
        self._messages: list[Message] = []
        self._messages_after: list[Message] = []
        self._fetches: list[FetchEntries | FetchSnapshot] = []
        self._reads_ready: list[ReadReady] = []
        self._failed_reads: list[int] = []
        self._snapshot: Snapshot | None = None
        self._truncate_from: int | None = None
        self._taken_index = self.log.last_index  # entries up to here were in a Ready
        self._taken_commit = self.commit_index
        self._taken_hard_state = hard_state
        self._number = 0
        self._writes: deque[PendingWrite] = deque()

    # Events

    def tick(self) -> bool:
        """One unit of time has passed. Whether that leaves anything to be done."""
        self.clock += 1
        self.elapsed += 1
        if self.role is Role.LEADER:
            return leading.tick(self)
        if self.elapsed < self.timeout:
            return False
        self.rest()
        self.leader = None  # silent for too long: no reason any more to refuse others a vote
        if self.may_campaign:
            election.campaign(self)
        return True

    def step(self, message: Message) -> None:
        """A message has arrived. It may be old, a duplicate, or out of order."""
        if following.step_quietly(self, message) or leading.step_quietly(self, message):
            return
        if message.term < self.term:
            following.answer_stale(self, message)
        elif message.term == self.term or election.welcomes_newer_term(self, message):
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Append():
                following.handle_append(self, message)
            case AppendReply():
                leading.handle_append_reply(self, message)
            case Heartbeat():
                following.handle_heartbeat(self, message)
            case HeartbeatReply():
                leading.handle_heartbeat_reply(self, message)
            case RequestVote():
                election.handle_request_vote(self, message)
            case VoteReply():
                election.handle_vote_reply(self, message)
            case InstallSnapshot():
                following.handle_install(self, message)
            case TimeoutNow():
                election.handle_timeout_now(self)

    # Of a thousand idle groups nearly all that arrives is for these two, so no call leads to them.
    hears_leader = following.hears_leader
    hears_follower = leading.hears_follower

    def campaign(self) -> None:
        """Stand for election now, asking first whether it could be won."""
        if self.role is not Role.LEADER and self.may_campaign:
            self.rest()
            election.campaign(self)

    def refuses(self, payload_bytes: int) -> Refusal | None:
        """Why `propose` would not take entries of this size now, if it would not."""
        return leading.refuses(self, payload_bytes)

    def propose(self, entries: Entries) -> None:
        """Append entries, numbered from `log.last_index + 1` and of this term. Ask `refuses` first."""
        leading.propose(self, entries)

    def propose_configuration(self, configuration: Configuration) -> Refusal | None:
        """Change the members: one voter at most, and any learners. It counts from now on, and is settled
        when its entry is committed."""
        return membership.propose(self, configuration)

    def transfer(self, target: int) -> Refusal | None:
        """Hand leadership over. Given up after one election timeout."""
        return leading.transfer(self, target)

    def read(self, request: int) -> None:
        """Confirm leadership for a read: answered by `Ready.reads`, or by `Ready.failed_reads`."""
        if self.role is Role.LEADER:
            self.reads.ask(request)
        else:
            self._failed_reads.append(request)

    def fetched(self, peer: int, entries: Entries) -> None:
        """The answer to FetchEntries; empty if they could not be read."""
        leading.fetched(self, peer, entries)

    def fetched_snapshot(self, peer: int, snapshot: Snapshot | None) -> None:
        """The answer to FetchSnapshot; None if there is none to be had now."""
        leading.fetched_snapshot(self, peer, snapshot)

    def disk_state(self, *, failed: bool) -> None:
        """A disk that cannot write makes no leader; one that can again may campaign again."""
        self.disk_failed = failed
        if failed and self.role is not Role.FOLLOWER:
            self.become_follower(self.term, None)

    def lost_contact(self, peer: int) -> None:
        """The connection to a peer broke. If it led, it is probably dead: look for another soon.

        Only a hint: a leader that others still hear keeps their votes (pre-vote), and is followed
        again with its next message. To a leader, that the peer may be another when it is back.
        """
        if self.role is Role.LEADER:
            leading.lost_contact(self, peer)
        if self.role is Role.FOLLOWER and self.leader == peer:
            self.leader = None
            # As if it had been silent long enough to be doubted; the random rest of the wait remains,
            # so that its followers do not all stand at once.
            self.elapsed = max(self.elapsed, self.settings.election_ticks - 1)

    def applied(self, index: int) -> None:
        """The state has been brought up to `index`."""
        assert self.applied_index <= index <= self.commit_index
        self.applied_index = index
        self._release_tail()

    def let_go_of_tail(self) -> None:
        """Memory is short: keep nothing at hand for followers that lag."""
        self.log.release(min(self.applied_index, self.stable_index))

    def drop_head(self, index: int) -> None:
        """Retention: the log up to and including `index` is gone."""
        assert index <= self.applied_index and index <= self.stable_index
        if index > self.log.start_index:
            self.log.drop_head(index)
            membership.forget_before(self, index)

    # What to do

    @property
    def has_ready(self) -> bool:
        """Whether `ready` has anything to say."""
        return bool(
            self._messages
            or self._messages_after
            or self._taken_index != self.log.last_index
            or self._truncate_from is not None
            or self._snapshot is not None
            or self._taken_commit != self.commit_index
            or self._fetches
            or self._reads_ready
            or self._failed_reads
            or (self.reads.waiting and leading.term_is_open(self))
            or self._taken_hard_state.term != self.term
            or self._taken_hard_state.vote != self.vote
            or self._taken_hard_state.recovering != self.recovering
        )

    def take_messages(self) -> list[Message]:
        """Messages that may leave at once, ahead of the Ready that would have brought them."""
        messages, self._messages = self._messages, []
        return messages

    def ready(self) -> Ready:
        """Take everything that is to be done. Each thing is said once."""
        leading.begin_reads(self)
        self._number += 1
        hard_state = self.hard_state
        entries = self.log.tail(self._taken_index + 1) if self._taken_index < self.log.last_index else []
        ready = Ready(
            number=self._number,
            hard_state=hard_state if hard_state != self._taken_hard_state else None,
            snapshot=self._snapshot,
            truncate_from=self._truncate_from,
            entries=entries,
            messages=self._messages,
            messages_after=self._messages_after,
            commit_index=self.commit_index,
            reads=self._reads_ready,
            failed_reads=self._failed_reads,
            fetches=self._fetches,
        )
        if ready.must_persist:
            rewrites_from = 0 if self._snapshot is not None else self._truncate_from
            self._writes.append(
                PendingWrite(
                    self._number, rewrites_from, self.log.last_index, ready.hard_state, taken_at=self.clock
                )
            )
        self._taken_hard_state = hard_state
        self._taken_index = self.log.last_index
        self._taken_commit = self.commit_index
        self._snapshot = self._truncate_from = None
        self._messages, self._messages_after = [], []
        self._fetches, self._reads_ready, self._failed_reads = [], [], []
        return ready

    def persisted(self, number: int) -> None:
        """Everything in the Readies up to this one is durable."""
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            index = write.last_index
            # A later write, under way or not yet taken, may have replaced what this one made durable.
            for later in self._writes:
                if later.rewrites_from is not None:
                    index = min(index, later.rewrites_from - 1)
            if self._snapshot is not None:
                index = 0
            elif self._truncate_from is not None:
                index = min(index, self._truncate_from - 1)
            self.stable_index = max(self.stable_index, index)
            if write.hard_state is not None:
                election.own_vote_durable(self, write.hard_state)
        if self.role is Role.LEADER:
            leading.advance_commit(self)
        else:
            recovery.leave(self)
        self._release_tail()

    # State shared by the roles

    @property
    def hard_state(self) -> HardState:
        """What must be durable before anything that depends on it leaves."""
        return HardState(self.term, self.vote, self.recovering)

    @property
    def disk_hangs(self) -> bool:
        """Whether a write has been under way for so long that it may never end."""
        return bool(self._writes) and self.clock - self._writes[0].taken_at > self.settings.write_ticks_max

    @property
    def may_campaign(self) -> bool:
        """A voter with a sound disk and a log it has not lost."""
        if self.recovering or self.disk_failed or self.disk_hangs:
            return False
        return membership.may_stand(self)

    def send(self, message: Message) -> None:
        """To leave at once."""
        self._messages.append(message)

    def send_when_durable(self, message: Message) -> None:
        """To leave once all that is to be persisted so far is durable."""
        self._messages_after.append(message)

    def fetch(self, fetch: FetchEntries | FetchSnapshot) -> None:
        """Ask the driver to read for a follower."""
        self._fetches.append(fetch)

    def answer_reads(self, reads: list[ReadReady]) -> None:
        """Reads that may be answered."""
        self._reads_ready.extend(reads)

    def rest(self) -> None:
        """Begin a new, random wait for a leader."""
        self.elapsed = 0
        self.timeout = self._new_election_timeout()

    def become_follower(self, term: int, leader: int | None) -> None:
        """Follow `leader`, if one is known, in `term`."""
        assert term >= self.term, "a term never goes back"
        if term > self.term:
            self.term, self.vote, self.recovery_index = term, None, 0
        if self.role is Role.LEADER:
            self._failed_reads.extend(self.reads.fail_all())
            self.progress.clear()
            self.transfer_target = None
            self.uncommitted_bytes = 0
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes.clear()
        self.rest()

    def append(self, entries: Entries) -> None:
        """Add entries to the log, and heed the configurations among them."""
        self.log.append(entries)
        membership.heed(self, entries)

    def truncate_from(self, index: int) -> None:
        """Remove a tail that conflicts with the leader's log."""
        assert index > self.commit_index, "what is committed never goes"
        self.log.truncate_from(index)
        membership.roll_back(self, index)
        self.stable_index = min(self.stable_index, index - 1)
        if index <= self._taken_index:
            self._taken_index = index - 1
            self._truncate_from = min(index, self._truncate_from or index)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the log by a snapshot."""
        self.log.restore(snapshot)
        self.configuration_history = [(snapshot.index, snapshot.configuration)]
        self.configuration = snapshot.configuration
        self.commit_index = self.applied_index = self._taken_index = snapshot.index
        self.stable_index = 0  # until it is durable
        self._snapshot, self._truncate_from = snapshot, None

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed. Going back is not an error: old news."""
        assert index <= self.log.last_index
        self.commit_index = max(self.commit_index, index)

    def _release_tail(self) -> None:
        # Kept at hand: what is not durable or not applied, and for a leader what its followers still
        # need, up to a limit. Anything older is read from disk when it is wanted.
        index = min(self.applied_index, self.stable_index)
        if self.progress and self.log.tail_bytes <= self.settings.tail_bytes_max:
            index = min(index, *[progress.match_index for progress in self.progress.values()])
        self.log.release(index)
