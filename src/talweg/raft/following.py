"""What a follower does with the leader's messages, and how a leader of the past is answered."""

from typing import TYPE_CHECKING

from talweg.raft import recovery
from talweg.raft.entries import Entries, beginning_at
from talweg.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    Role,
    VoteReply,
)

if TYPE_CHECKING:
    from talweg.raft.core import Raft


def answer_stale(raft: "Raft", message: Message) -> None:
    """A message of an older term: tell a leader or candidate of the past where the others are."""
    match message:
        case Append() | InstallSnapshot():
            raft.send_when_durable(_reply(raft, message, 0, rejected=True))
        case Heartbeat():
            raft.send_when_durable(_heartbeat_reply(raft, message, round_number=0))
        case RequestVote():
            raft.send_when_durable(
                VoteReply(
                    source=raft.replica, target=message.source, term=raft.term, granted=False, pre=message.pre
                )
            )
        case _:
            pass  # a reply to what we asked in a term that is over


def handle_append(raft: "Raft", message: Append) -> None:
    """Append what follows the place where both logs agree; otherwise say where they may."""
    _follow(raft, message.source)
    if message.recovery_index and message.life == raft.life:
        raft.recovery_index = message.recovery_index
        recovery.leave(raft)
    log = raft.log
    if message.prev_index < raft.commit_index:
        # Old, repeated or reordered. Up to the commit index all logs agree anyway.
        raft.send_when_durable(_reply(raft, message, raft.commit_index))
        return
    if log.term(message.prev_index) != message.prev_term:
        hint = log.last_index_of_term_at_most(message.prev_term, message.prev_index)
        raft.send_when_durable(
            _reply(raft, message, message.prev_index, rejected=True, hint=(hint, log.term(hint) or 0))
        )
        return
    entries = _new_entries(raft, message.entries)
    if entries:
        if entries[0].index <= log.last_index:
            raft.truncate_from(entries[0].index)
        raft.append(entries)
    last_agreed = message.entries[-1].last_index if message.entries else message.prev_index
    raft.commit(min(message.commit, last_agreed))
    recovery.leave(raft)
    raft.send_when_durable(_reply(raft, message, last_agreed))


def _new_entries(raft: "Raft", entries: Entries) -> Entries:
    # Only a real conflict of terms may truncate: a repeated or reordered message holds a prefix of
    # what is here, and what follows it in our log may already be acknowledged.
    log = raft.log
    if not entries or entries[0].index > log.last_index:
        return entries
    for entry in entries:
        if log.term(entry.last_index) != entry.term:
            index = entry.index
            if log.term(index) == entry.term:  # in the midst of a run: where our entries of its term end
                index = log.last_index_of_term_at_most(entry.term, entry.last_index) + 1
            return beginning_at(entries, index)
    return []


def hears_leader(raft: "Raft", source: int, term: int, commit: int) -> bool:
    """A heartbeat has arrived. True: all is as it was, and to answer it is all that is left to do. False:
    nothing has happened yet; it is a message for `step`."""
    if (
        term != raft.term
        or source != raft.leader
        or commit > raft.commit_index
        or raft.recovering
        or raft.role is not Role.FOLLOWER
    ):
        return False
    raft.elapsed = 0
    return True


def step_quietly(raft: "Raft", message: Message) -> bool:
    """A heartbeat that changes nothing is answered by the shortest way. Whether it was one."""
    if type(message) is not Heartbeat or not hears_leader(raft, message.source, message.term, message.commit):
        return False
    raft.send(_heartbeat_reply(raft, message, round_number=message.round))
    return True


def handle_heartbeat(raft: "Raft", message: Heartbeat) -> None:
    """The leader lives, and says how far it has committed what we hold."""
    _follow(raft, message.source)
    if not raft.recovering:  # else the leader may believe that we still hold what we have lost
        raft.commit(min(message.commit, raft.log.last_index))
    # Not when durable: it promises nothing about the log, and a slow disk is not a dead replica.
    raft.send(_heartbeat_reply(raft, message, round_number=message.round))


def handle_install(raft: "Raft", message: InstallSnapshot) -> None:
    """Take the small state and the log's start from the leader."""
    _follow(raft, message.source)
    snapshot = message.snapshot
    if snapshot.index > raft.commit_index:
        if raft.log.term(snapshot.index) == snapshot.term:
            raft.commit(snapshot.index)  # we hold all of it: nothing to replace
        else:
            raft.restore(snapshot)
    raft.send_when_durable(_reply(raft, message, raft.commit_index))


def _follow(raft: "Raft", leader: int) -> None:
    assert raft.role is not Role.LEADER, "two leaders in one term"
    if raft.role is not Role.FOLLOWER or raft.leader != leader:
        raft.become_follower(raft.term, leader)
    raft.elapsed = 0


def _reply(
    raft: "Raft", message: Message, index: int, *, rejected: bool = False, hint: tuple[int, int] = (0, 0)
) -> AppendReply:
    return AppendReply(
        source=raft.replica,
        target=message.source,
        term=raft.term,
        index=index,
        rejected=rejected,
        hint_index=hint[0],
        hint_term=hint[1],
        recovering=raft.recovering,
        life=raft.life,
    )


def _heartbeat_reply(raft: "Raft", message: Heartbeat, *, round_number: int) -> HeartbeatReply:
    return HeartbeatReply(
        source=raft.replica,
        target=message.source,
        term=raft.term,
        round=round_number,
        recovering=raft.recovering,
        life=raft.life,
    )
