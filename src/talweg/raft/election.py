"""Campaigns and votes. Raft paper, sections 5.2 and 5.4.1.

With pre-vote (thesis, 9.6) and followers that stand by a leader they hear (thesis, 4.2.3).
"""

from typing import TYPE_CHECKING

from talweg.raft import leading
from talweg.raft.messages import (
    Append,
    HardState,
    Heartbeat,
    InstallSnapshot,
    Message,
    RequestVote,
    Role,
    VoteReply,
)

if TYPE_CHECKING:
    from talweg.raft.core import Raft


def campaign(raft: "Raft", *, transfer: bool = False) -> None:
    """Ask for votes: first whether they would be given, unless the leader itself hands over."""
    if transfer:
        _become_candidate(raft, transfer=True)
        return
    raft.role = Role.PRE_CANDIDATE
    raft.leader = None
    raft.votes = {raft.replica: True}  # costs no promise, so it need not be durable
    _request_votes(raft, term=raft.term + 1, pre=True)
    _count_votes(raft)


def _become_candidate(raft: "Raft", *, transfer: bool = False) -> None:
    raft.role = Role.CANDIDATE
    raft.term += 1
    raft.vote = raft.replica
    raft.leader = None
    raft.votes = {}  # our own counts once it is durable: see own_vote_durable
    _request_votes(raft, term=raft.term, transfer=transfer)


def _request_votes(raft: "Raft", *, term: int, pre: bool = False, transfer: bool = False) -> None:
    for voter in raft.configuration.voters:
        if voter == raft.replica:
            continue
        request = RequestVote(
            source=raft.replica,
            target=voter,
            term=term,
            last_index=raft.log.last_index,
            last_term=raft.log.last_term,
            pre=pre,
            transfer=transfer,
        )
        if pre:
            raft.send(request)
        else:
            # Durable before we ask: a candidate that forgets its own vote may give it away again.
            raft.send_when_durable(request)


def own_vote_durable(raft: "Raft", saved: HardState) -> None:
    """A candidate counts itself only now."""
    if raft.role is Role.CANDIDATE and saved.term == raft.term and saved.vote == raft.replica:
        raft.votes.setdefault(raft.replica, True)
        _count_votes(raft)


def welcomes_newer_term(raft: "Raft", message: Message) -> bool:
    """Move to a newer term where the message calls for it. False: ignore the message."""
    if isinstance(message, RequestVote):
        if _leader_is_alive(raft) and not message.transfer:
            return False  # a replica that was cut off does not unseat a leader others still hear
        if message.pre:
            return True
    if isinstance(message, VoteReply) and message.pre and message.granted:
        return True  # it repeats the term that we asked about, which has not begun
    leads = isinstance(message, Append | Heartbeat | InstallSnapshot)
    raft.become_follower(message.term, message.source if leads else None)
    return True


def _leader_is_alive(raft: "Raft") -> bool:
    if raft.role is Role.LEADER:
        return True  # check-quorum would have made it step down otherwise
    return raft.leader is not None and raft.elapsed < raft.settings.election_ticks


def handle_request_vote(raft: "Raft", request: RequestVote) -> None:
    """Grant a vote once a term, to a log that lacks nothing that may be committed."""
    if request.pre:
        free = request.term > raft.term or raft.vote in (None, request.source)
    else:
        free = raft.vote == request.source or (raft.vote is None and raft.leader is None)
    up_to_date = (request.last_term, request.last_index) >= (raft.log.last_term, raft.log.last_index)
    granted = free and up_to_date and not raft.recovering
    if granted and not request.pre:
        raft.vote = request.source
        raft.elapsed = 0
    raft.send_when_durable(
        VoteReply(
            source=raft.replica,
            target=request.source,
            term=request.term if granted else raft.term,
            granted=granted,
            pre=request.pre,
        )
    )


def handle_vote_reply(raft: "Raft", reply: VoteReply) -> None:
    """Count a reply, each voter's once."""
    asking = Role.PRE_CANDIDATE if reply.pre else Role.CANDIDATE
    if raft.role is not asking:
        return
    if reply.pre and reply.granted and reply.term != raft.term + 1:
        return  # of an earlier campaign
    raft.votes.setdefault(reply.source, reply.granted)
    _count_votes(raft)


def _count_votes(raft: "Raft") -> None:
    voters = raft.configuration.voters
    granted = sum(raft.votes.get(voter) is True for voter in voters)
    rejected = sum(raft.votes.get(voter) is False for voter in voters)
    if granted >= raft.configuration.quorum:
        if raft.role is Role.PRE_CANDIDATE:
            _become_candidate(raft)
        else:
            leading.become_leader(raft)
    elif rejected >= raft.configuration.quorum:
        raft.become_follower(raft.term, None)


def handle_timeout_now(raft: "Raft") -> None:
    """The leader hands over: campaign at once, and let the others know that it is wanted."""
    if raft.role is Role.FOLLOWER and raft.may_campaign:
        raft.rest()
        campaign(raft, transfer=True)
