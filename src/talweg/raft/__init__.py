"""Consensus: one replica of one group, and nothing of the world around it.

No clock, no randomness, no sockets, no files, no logging, no asyncio. A `Raft` is told what happened
and says what to do; whoever drives it has the disk, the clock and the network:

    raft = Raft(replica, configuration, log=…, hard_state=…, election_timeout=…)

    raft.tick()                 time has passed
    raft.step(message)          a message has come; it may be late, repeated or out of order
    raft.propose(entries)       the leader appends (ask `raft.refuses(bytes)` first)

    if raft.has_ready:
        ready = raft.ready()
        send(ready.messages)                        # at once
        disk.write(ready)                           # snapshot, truncation, entries, hard state: in order
        disk.sync()
        raft.persisted(ready.number)
        send(ready.messages_after)                  # promises: only now
        apply entries up to ready.commit_index; raft.applied(index)
        answer ready.reads, ready.failed_reads
        answer ready.fetches by raft.fetched(…) / raft.fetched_snapshot(…)

Readies may be taken while earlier ones are still being written; they become durable in order. A
promise (a vote, an acknowledgement) is always in `messages_after`, so a driver that keeps this order
cannot break it. A leader counts its own vote, and its own copy of an entry, only when it is durable.

The log's payloads are opaque. Two kinds of entry are the core's own: the no-op that opens a term, and
configurations. Entries that are durable, applied and delivered are let go of; when a slow follower
needs them again, the core asks for them by `Ready.fetches` instead of reading.

A replica that lost some of its log (a damaged or a new disk under an old name) starts with
`HardState.recovering`: nothing that it says counts until it holds all that the leader's log held when
the leader heard of the loss. See `recovery` for why that is enough, and nothing less is.
"""

from talweg.raft.configuration import Configuration
from talweg.raft.core import Raft, Settings
from talweg.raft.entries import (
    CONFIGURATION,
    NOOP,
    Entries,
    Entry,
    Run,
    beginning_at,
    ending_at,
    singly,
)
from talweg.raft.log import Log
from talweg.raft.membership import configuration_at
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
from talweg.raft.progress import Feeding, Progress

__all__ = [
    "CONFIGURATION",
    "NOOP",
    "Append",
    "AppendReply",
    "Configuration",
    "Entries",
    "Entry",
    "Feeding",
    "FetchEntries",
    "FetchSnapshot",
    "HardState",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "Log",
    "Message",
    "Progress",
    "Raft",
    "ReadReady",
    "Ready",
    "Refusal",
    "RequestVote",
    "Role",
    "Run",
    "Settings",
    "Snapshot",
    "TimeoutNow",
    "VoteReply",
    "beginning_at",
    "configuration_at",
    "ending_at",
    "singly",
]
