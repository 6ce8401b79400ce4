"""What a follower does with the leader's messages, and how a leader of the past is answered."""

from typing import TYPE_CHECKING

from talweg.raft.messages import (
    Append,
    AppendReply,
    Entry,
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
            raft.send_when_durable(HeartbeatReply(source=raft.replica, target=message.source, term=raft.term))
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
    raft.recovery_index = max(raft.recovery_index, message.recovery_index)
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
    last_agreed = message.prev_index + len(message.entries)
    raft.commit(min(message.commit, last_agreed))
    leave_recovery(raft)
    raft.send_when_durable(_reply(raft, message, last_agreed))


def _new_entries(raft: "Raft", entries: list[Entry]) -> list[Entry]:
    # Only a real conflict of terms may truncate: a repeated or reordered message holds a prefix of
    # what is here, and what follows it in our log may already be acknowledged.
    log = raft.log
    if not entries or entries[0].index > log.last_index:
        return entries
    for position, entry in enumerate(entries):
        if log.term(entry.index) != entry.term:
            return entries[position:]
    return []


def handle_heartbeat(raft: "Raft", message: Heartbeat) -> None:
    """The leader lives, and says how far it has committed what we hold."""
    _follow(raft, message.source)
    # A replica that lost some of its log may hold less than the leader still believes.
    raft.commit(min(message.commit, raft.log.last_index))
    leave_recovery(raft)
    # Not when durable: it promises nothing about the log, and a slow disk is not a dead replica.
    raft.send(
        HeartbeatReply(
            source=raft.replica,
            target=message.source,
            term=raft.term,
            round=message.round,
            recovering=raft.recovering,
        )
    )


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


def leave_recovery(raft: "Raft") -> None:
    """A replica that lost some of its log votes again once nothing it ever acknowledged can be missing.

    The leader says when: `recovery_index` is where its log ended when it heard of the loss. What we
    acknowledged to this leader is at or below that; what we acknowledged to earlier ones, and was
    committed, it held when it was elected. An entry of its term that is merely committed would not do:
    it may have committed later ones by counting what we have lost.
    """
    if not raft.recovering or raft.leader is None or not raft.recovery_index:
        return
    if min(raft.commit_index, raft.stable_index) >= raft.recovery_index:
        raft.recovering = False
        raft.vote = raft.leader  # we may have voted in this term and forgotten: never for another


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
    )
