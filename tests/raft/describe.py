"""Messages, entries and disk work, each as one line that a person can read."""

from talweg.raft import (
    CONFIGURATION,
    NOOP,
    Append,
    AppendReply,
    Configuration,
    Entries,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    Role,
    TimeoutNow,
    VoteReply,
    singly,
)
from talweg.records import Batch, Kind, read_header
from talweg.replication.job import Job
from talweg.replication.state import decode_positions
from talweg.storage import Write

ENTRIES_SHOWN_MAX = 6
VALUE_SHOWN_MAX = 12

ROLES = {
    Role.FOLLOWER: "follower",
    Role.PRE_CANDIDATE: "pre-candidate",
    Role.CANDIDATE: "candidate",
    Role.LEADER: "leader",
}


def members(configuration: Configuration) -> str:
    """Who belongs to a group."""
    text = f"voters={_list(configuration.voters)}"
    return text + (f" learners={_list(configuration.learners)}" if configuration.learners else "")


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def span(first: int, last: int) -> str:
    """A range of indexes, both ends included."""
    return str(first) if first == last else f"{first}..{last}"


def entry(one: Entry, *, offsets: bool = False) -> str:
    """`index/term`, and what it holds."""
    place = f"{one.index}/{one.term}"
    if one.kind == NOOP:
        return f"{place} no-op"
    if one.kind == CONFIGURATION:
        return f"{place} {members(Configuration.from_bytes(one.payload))}"
    if one.kind == Kind.POSITIONS:
        positions = [f"{position.name}={position.next_offset}" for position in decode_positions(one.payload)]
        return f"{place} positions {' '.join(positions)}"
    header = read_header(one.payload)
    if header.kind is not Kind.RECORDS:
        return f"{place} {header.kind.name.lower()}"
    offset = f" @{span(header.first_offset, header.next_offset - 1)}" if offsets else ""
    return f"{place}{offset}{_values(Batch.from_frame(one.payload).values())}"


def _values(values: list[bytes | None]) -> str:
    if values == [b""]:
        return ""  # made by `log`: only its place matters
    shown = [value.rstrip(b".").decode() if value is not None else "null" for value in values]
    return "".join(f' "{value[:VALUE_SHOWN_MAX]}"' for value in shown)


def entries(together: Entries) -> str:
    """All of them, or the ends of many."""
    some = singly(together)
    if len(some) <= ENTRIES_SHOWN_MAX:
        return f"[{', '.join(map(entry, some))}]"
    return f"[{entry(some[0])} … {entry(some[-1])}]"


def message(one: Message) -> str:
    """From whom to whom, what, and in which term."""
    name, fields = _fields(one)
    words = [f"{one.source}→{one.target} {name}", f"term={one.term}", *fields]
    return " ".join(words)


def _fields(one: Message) -> tuple[str, list[str]]:  # noqa: PLR0911 - one case for each kind
    match one:
        case RequestVote():
            name = "PreVote" if one.pre else "RequestVote"
            return name, [f"last={one.last_index}/{one.last_term}", *["transfer"][: one.transfer]]
        case VoteReply():
            return "PreVoteReply" if one.pre else "VoteReply", ["granted" if one.granted else "denied"]
        case Append():
            fields = [f"prev={one.prev_index}/{one.prev_term}", f"entries={entries(one.entries)}"]
            recovery = [f"recover_to={one.recovery_index}"] if one.recovery_index else []
            return "Append", [*fields, f"commit={one.commit}", *recovery]
        case AppendReply(rejected=True):
            hint = f"hint={one.hint_index}/{one.hint_term}"
            return "AppendReply", [f"rejected={one.index}", hint, *["recovering"][: one.recovering]]
        case AppendReply():
            return "AppendReply", [f"index={one.index}", *["recovering"][: one.recovering]]
        case Heartbeat():
            return "Heartbeat", [f"commit={one.commit}", *[f"round={one.round}"][: one.round]]
        case HeartbeatReply():
            recovering = ["recovering"][: one.recovering]
            return "HeartbeatReply", [*[f"round={one.round}"][: one.round], *recovering]
        case InstallSnapshot():
            place = f"{one.snapshot.index}/{one.snapshot.term}"
            return "InstallSnapshot", [f"snapshot={place}", members(one.snapshot.configuration)]
        case TimeoutNow():
            return "TimeoutNow", []
    raise AssertionError(f"no words for {one}")


def hard_state(state: HardState) -> str:
    """What a replica must never forget."""
    vote = f" vote={state.vote}" if state.vote is not None else ""
    return f"term={state.term}{vote}{' recovering' if state.recovering else ''}"


def write(one: Write) -> list[str]:
    """The parts of one write, in their order."""
    parts = []
    if one.snapshot is not None:
        parts.append(f"snapshot {one.snapshot.index}/{one.snapshot.term} in place of the log")
    if one.truncate_from is not None:
        parts.append(f"truncation from {one.truncate_from}")
    if one.entries:
        first, last = one.entries[0].index, one.entries[-1].last_index
        parts.append(f"{'entries' if last > first else 'entry'} {span(first, last)}")
    if one.hard_state is not None:
        parts.append(hard_state(one.hard_state))
    return parts


def job(one: Job) -> str:
    """Everything a job does, in its order; empty for one that only lets messages go."""
    parts = []
    if one.drop_head is not None:
        parts.append(f"the end of its head up to {one.drop_head}")
    parts += [part for each in one.writes for part in write(each)]
    if one.snapshot is not None:
        parts.append(f"a snapshot at {one.snapshot.index}")
    return ", ".join(parts)
