"""Messages between brokers in a few words, for the trace."""

from collections.abc import Callable
from typing import Any

from talweg.raft import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    TimeoutNow,
    VoteReply,
)


def describe(message: Message) -> str:
    """Everything that a reader of the trace needs, on one line."""
    text = _TEXTS[type(message)](message)
    if getattr(message, "pre", False):
        text = f"pre-{text}"
    if getattr(message, "recovering", False):
        text += " (recovering)"
    return f"{message.source}→{message.target} term {message.term} {text}"


def _append(append: Append) -> str:
    text = f"append after {append.prev_index}/{append.prev_term} {_count(append)} entries"
    recovery = f" whole again at {append.recovery_index}" if append.recovery_index else ""
    return f"{text} commit {append.commit}{recovery}"


def _count(append: Append) -> int:
    return append.entries[-1].last_index - append.prev_index if append.entries else 0


def _append_reply(reply: AppendReply) -> str:
    if reply.rejected:
        return f"rejected {reply.index}, perhaps {reply.hint_index}/{reply.hint_term}"
    return f"acknowledged {reply.index}"


def _heartbeat(heartbeat: Heartbeat) -> str:
    return f"heartbeat commit {heartbeat.commit} round {heartbeat.round}"


def _heartbeat_reply(reply: HeartbeatReply) -> str:
    return f"heartbeat reply round {reply.round}"


def _request_vote(request: RequestVote) -> str:
    return f"vote? {request.last_index}/{request.last_term}"


def _vote_reply(reply: VoteReply) -> str:
    return "vote yes" if reply.granted else "vote no"


def _install(install: InstallSnapshot) -> str:
    return f"install {install.snapshot.index}/{install.snapshot.term}"


def _timeout_now(_: TimeoutNow) -> str:
    return "campaign now"


_TEXTS: dict[type[Message], Callable[[Any], str]] = {
    Append: _append,
    AppendReply: _append_reply,
    Heartbeat: _heartbeat,
    HeartbeatReply: _heartbeat_reply,
    RequestVote: _request_vote,
    VoteReply: _vote_reply,
    InstallSnapshot: _install,
    TimeoutNow: _timeout_now,
}
