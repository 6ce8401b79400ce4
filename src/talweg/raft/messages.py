"""The values that go into and come out of the consensus core. All of them are frozen."""

from enum import Enum, IntEnum

import msgspec

from talweg.raft.configuration import Configuration
from talweg.raft.entries import Entries


class HardState(msgspec.Struct, frozen=True, gc=False):
    """What a replica must never forget. Durable before a vote or an acknowledgement leaves."""

    term: int = 0
    vote: int | None = None  # in `term`
    recovering: bool = False  # lost some of its log: neither votes nor campaigns until caught up


class Snapshot(msgspec.Struct, frozen=True):
    """What stands for the log up to and including `index` once that part has been dropped."""

    index: int
    term: int  # of the entry at `index`
    configuration: Configuration  # in force at `index`
    state: bytes  # the application's small state as of `index`


class Role(IntEnum):
    """What a replica is at the moment."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class Refusal(Enum):
    """Why a proposal was not taken."""

    NOT_LEADER = "not the leader"
    TRANSFERRING = "leadership is being handed over"
    OVERLOADED = "too many uncommitted bytes"
    CHANGE_PENDING = "another configuration change is under way"
    TERM_NOT_OPEN = "nothing of this term is committed yet"
    UNSAFE_CHANGE = "more than one voter would change, or none would be left"
    NOT_A_VOTER = "only a voter can lead"


class Message(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Anything one replica says to another. Every message, replies too, carries the term."""

    source: int
    target: int
    term: int


class RequestVote(Message, frozen=True, gc=False, kw_only=True):
    """Asks for a vote; with `pre` only whether it would be given (`term` is then the term to be)."""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False  # the old leader wants it: a live leader is no reason to refuse


class VoteReply(Message, frozen=True, gc=False, kw_only=True):
    """The answer to RequestVote. A granted pre-vote carries the term that was asked about."""

    granted: bool
    pre: bool = False


class Append(Message, frozen=True, kw_only=True):
    """Entries that follow (prev_index, prev_term), and how far the leader has committed."""

    prev_index: int
    prev_term: int
    entries: Entries
    commit: int
    recovery_index: int = 0  # to one that lost some of its log: whole again once it holds this
    life: int = 0  # the one in which it said that it had lost it: `recovery_index` is for no other


class AppendReply(Message, frozen=True, gc=False, kw_only=True):
    """Success: everything up to `index` is durable here. Rejection: `index` was the prev_index
    that did not fit, and the last place that may agree is `hint_index`, of `hint_term`."""

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    recovering: bool = False  # some of the log was lost: this counts for nothing, see `recovery`
    life: int = 0  # of the follower: another number each time it starts


class Heartbeat(Message, frozen=True, gc=False, kw_only=True):
    """The leader lives. `commit` never exceeds what this follower is known to hold."""

    commit: int
    round: int = 0  # of read-index confirmation; the reply repeats it


class HeartbeatReply(Message, frozen=True, gc=False, kw_only=True):
    """The answer to Heartbeat."""

    round: int = 0
    recovering: bool = False  # as in AppendReply: an idle leader has to begin feeding it again
    life: int = 0


class InstallSnapshot(Message, frozen=True, kw_only=True):
    """For a follower that needs entries the leader has dropped. Answered by an AppendReply."""

    snapshot: Snapshot


class TimeoutNow(Message, frozen=True, gc=False, kw_only=True):
    """Leadership is handed over: campaign at once."""


class ReadReady(msgspec.Struct, frozen=True, gc=False):
    """A read that was asked for may be answered once the state has been applied up to `index`."""

    request: int
    index: int


class FetchEntries(msgspec.Struct, frozen=True, gc=False):
    """The leader needs old entries from its disk to feed a follower: answer with `Raft.fetched`."""

    peer: int
    first_index: int
    bytes_max: int


class FetchSnapshot(msgspec.Struct, frozen=True, gc=False):
    """The same for a follower below the log's start: answer with `Raft.fetched_snapshot`."""

    peer: int


class Ready(msgspec.Struct, frozen=True):
    """What to do now. In this order on one disk: snapshot, truncation, entries, hard state.

    `messages` may leave at once; `messages_after` only when everything to persist here, and in every
    Ready before this one, is durable. When it is, call `Raft.persisted(number)`. Readies are
    persisted in the order in which they were taken; more than one may be under way.
    """

    number: int
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None  # replaces the whole log
    truncate_from: int | None = None  # first index to remove, before `entries` are appended
    entries: Entries = ()
    messages: list[Message] = []
    messages_after: list[Message] = []
    commit_index: int = 0
    reads: list[ReadReady] = []
    failed_reads: list[int] = []  # requests that a lost leadership left unanswered
    fetches: list[FetchEntries | FetchSnapshot] = []

    @property
    def must_persist(self) -> bool:
        """Whether there is anything to write before `persisted` may be called."""
        return bool(
            self.entries
            or self.hard_state is not None
            or self.snapshot is not None
            or self.truncate_from is not None
        )
