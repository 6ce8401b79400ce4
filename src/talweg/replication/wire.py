"""Messages between brokers, as bytes.

A connection carries packets: a u32 length, then that many bytes. The first byte says what the packet
is. A group is named by its incarnation alone, which is never used twice: a message for a topic that was
deleted finds no group, even if a topic of that name exists again. Who sent it follows from the
connection. All numbers are little-endian.

    hello        b"Talweg" | u16 version | u64 broker                       once, from either side
    message      u8 type | u64 group | u64 term | the type's own fields     see _FIELDS
    heartbeats   u8 type | any number of  u64 group, term, commit, round
    replies      u8 type | any number of  u64 group, term, round, life | u8 flags

Heartbeats and their replies have no other form: however many groups two brokers share, one packet
carries what they have to say to each other at that moment.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from talweg.errors import CorruptBatch
from talweg.raft import (
    CONFIGURATION,
    Append,
    AppendReply,
    Configuration,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    Snapshot,
    TimeoutNow,
    VoteReply,
)
from talweg.storage.frames import entries_in, frames_of, gathered

VERSION = 1
PACKET_BYTES_MAX = 128 << 20  # an Append holds one entry at least, whatever its size

_HELLO = struct.Struct("<6sHQ")
HELLO_BYTES = _HELLO.size  # of the first packet on a connection
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BQQ")
_HEARTBEAT = struct.Struct("<QQQQ")
_HEARTBEAT_REPLY = struct.Struct("<QQQQB")

_HEARTBEATS, _HEARTBEAT_REPLIES = 1, 2
HeartbeatRow = tuple[int, int, int, int]  # group, term, commit, round
ReplyRow = tuple[int, int, int, int, int]  # group, term, round, life, flags (1: it is recovering)
_FIELDS = {
    RequestVote: (3, struct.Struct("<QQB")),  # last index, last term, flags
    VoteReply: (4, struct.Struct("<B")),  # flags
    Append: (5, struct.Struct("<QQQQQ")),  # previous index, its term, commit, recovery index, life; frames
    AppendReply: (6, struct.Struct("<QQQQB")),  # index, hint index, hint term, life, flags
    InstallSnapshot: (7, struct.Struct("<QQI")),  # index, term, bytes of configuration; it; the state
    TimeoutNow: (8, struct.Struct("<")),
}
# Frames of entries, by group, term, the index before them, and that of the last one.
Shared = dict[tuple[int, int, int, int], list[bytes]]
_TYPES = {number: (kind, fields) for kind, (number, fields) in _FIELDS.items()}


def hello(broker: int) -> bytes:
    """The first packet on a connection."""
    return _packet(_HELLO.pack(b"Talweg", VERSION, broker))


def read_hello(packet: bytes | memoryview) -> int:
    """The broker at the other end; CorruptBatch if it is none that we understand."""
    if len(packet) != _HELLO.size:
        raise CorruptBatch(f"a greeting of {len(packet)} bytes, expected {_HELLO.size}")
    magic, version, broker = _HELLO.unpack(packet)
    if magic != b"Talweg" or version != VERSION:
        raise CorruptBatch(f"a greeting of {magic!r} version {version}, expected Talweg version {VERSION}")
    return int(broker)


def packets(messages: Iterable[tuple[int, Message]], shared: Shared | None = None) -> list[bytes]:
    """(group, message) pairs for one broker, as the parts of a write. Entries that another broker is sent at
    the same moment, with the same `shared`, are put together once."""
    shared = {} if shared is None else shared
    parts: list[bytes] = []
    heartbeats: list[bytes] = []
    answers: list[ReplyRow] = []
    for group, message in messages:
        kind = type(message)
        if kind is Heartbeat:
            heartbeats.append(_HEARTBEAT.pack(group, message.term, message.commit, message.round))  # type: ignore[attr-defined]
        elif kind is HeartbeatReply:
            assert isinstance(message, HeartbeatReply)
            answers.append((group, message.term, message.round, message.life, int(message.recovering)))
        else:
            parts.extend(_message_parts(group, message, shared))
    if heartbeats:
        parts.append(_packet(bytes([_HEARTBEATS]), *heartbeats))
    if answers:
        parts.append(replies(answers))
    return parts


def fits(snapshot: Snapshot) -> bool:
    """Whether it can be sent at all: whoever gets a larger packet hangs up."""
    _, fields = _FIELDS[InstallSnapshot]
    overhead_bytes = _HEAD.size + fields.size + len(snapshot.configuration.to_bytes())
    return overhead_bytes + len(snapshot.state) <= PACKET_BYTES_MAX


def _packet(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def _message_parts(group: int, message: Message, shared: Shared) -> list[bytes]:
    number, fields = _FIELDS[type(message)]
    head = _HEAD.pack(number, group, message.term)
    tail: list[bytes] = []
    match message:  # those that are many first
        case AppendReply():
            flags = message.rejected | message.recovering << 1
            own = fields.pack(message.index, message.hint_index, message.hint_term, message.life, flags)
        case Append():
            own = fields.pack(
                message.prev_index, message.prev_term, message.commit, message.recovery_index, message.life
            )
            tail = _frames(group, message, shared)
        case RequestVote():
            flags = message.pre | message.transfer << 1
            own = fields.pack(message.last_index, message.last_term, flags)
        case VoteReply():
            own = fields.pack(message.granted | message.pre << 1)
        case InstallSnapshot(snapshot=snapshot):
            configuration = snapshot.configuration.to_bytes()
            own = fields.pack(snapshot.index, snapshot.term, len(configuration))
            tail = [configuration, snapshot.state]
        case _:
            own = b""
    length = len(head) + len(own) + sum(map(len, tail))
    return [_LENGTH.pack(length) + head + own, *tail]


def _frames(group: int, message: Append, shared: Shared) -> list[bytes]:
    # A leader never changes what it has put at an index, so in one term these say which entries they are.
    entries = message.entries
    if not entries:
        return []
    which = (group, message.term, message.prev_index, entries[-1].last_index)
    if (made := shared.get(which)) is None:
        made = shared[which] = gathered(frames_of(entries))
    return made


def read_packet(packet: bytes | memoryview, source: int, target: int) -> Iterator[tuple[int, Message]]:
    """The (group, message) pairs in a packet from `source`, which keep nothing of it; CorruptBatch if it
    makes no sense."""
    if (heartbeats := heartbeats_in(packet)) is not None:
        for heartbeat in heartbeats:
            yield heartbeat_of(heartbeat, source, target)
    elif (answers := replies_in(packet)) is not None:
        for answer in answers:
            yield reply_of(answer, source, target)
    else:
        yield read_message(packet, source, target)


def read_message(packet: bytes | memoryview, source: int, target: int) -> tuple[int, Message]:
    """The same for a packet that holds neither heartbeats nor replies to them."""
    try:
        return _read_message(packet, source, target)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptBatch(f"a packet from broker {source} cannot be read: {error}") from error


def heartbeats_in(packet: bytes | memoryview) -> Iterator[HeartbeatRow] | None:
    """The heartbeats in a packet, if that is what it holds. CorruptBatch if they cannot be read."""
    return _rows(_HEARTBEATS, _HEARTBEAT, packet)


def replies_in(packet: bytes | memoryview) -> Iterator[ReplyRow] | None:
    """The replies in a packet, if that is what it holds. CorruptBatch if they cannot be read."""
    return _rows(_HEARTBEAT_REPLIES, _HEARTBEAT_REPLY, packet)


def _rows(kind: int, fields: struct.Struct, packet: bytes | memoryview) -> Iterator[Any] | None:
    if not packet or packet[0] != kind:
        return None
    try:
        return fields.iter_unpack(memoryview(packet)[1:])
    except struct.error as error:
        raise CorruptBatch(f"heartbeats that cannot be read: {error}") from error


def heartbeat_of(row: HeartbeatRow, source: int, target: int) -> tuple[int, Heartbeat]:
    """The same as a message, behind its group."""
    group, term, commit, read_round = row
    return group, Heartbeat(source=source, target=target, term=term, commit=commit, round=read_round)


def reply_of(row: ReplyRow, source: int, target: int) -> tuple[int, HeartbeatReply]:
    """The same as a message, behind its group."""
    group, term, read_round, life, flags = row
    return group, HeartbeatReply(
        source=source, target=target, term=term, round=read_round, recovering=bool(flags & 1), life=life
    )


def replies(rows: Iterable[ReplyRow]) -> bytes:
    """Replies to heartbeats, as a packet."""
    return _packet(bytes([_HEARTBEAT_REPLIES]), *[_HEARTBEAT_REPLY.pack(*row) for row in rows])


def _read_message(packet: bytes | memoryview, source: int, target: int) -> tuple[int, Message]:
    number, group, term = _HEAD.unpack_from(packet)
    if number not in _TYPES:
        raise ValueError(f"there is no message type {number}")
    kind, fields = _TYPES[number]
    own = fields.unpack_from(packet, _HEAD.size)
    rest = _HEAD.size + fields.size
    if kind is Append:
        entries = entries_in(memoryview(packet)[rest:])
        for entry in entries:
            if isinstance(entry, Entry) and entry.kind == CONFIGURATION:
                Configuration.from_bytes(entry.payload)  # refused here, before it can reach the core
        if entries and entries[0].index != own[0] + 1:
            raise ValueError(f"entry {entries[0].index} is said to follow entry {own[0]}")
        _check_terms(own[1], *[entry.term for entry in entries], term)
        return group, Append(
            source=source,
            target=target,
            term=term,
            prev_index=own[0],
            prev_term=own[1],
            entries=entries,
            commit=own[2],
            recovery_index=own[3],
            life=own[4],
        )
    if kind is InstallSnapshot:
        index, snapshot_term, configuration_bytes = own
        _check_terms(snapshot_term, term)
        configuration = Configuration.from_bytes(bytes(packet[rest : rest + configuration_bytes]))
        snapshot = Snapshot(index, snapshot_term, configuration, bytes(packet[rest + configuration_bytes :]))
        return group, InstallSnapshot(source=source, target=target, term=term, snapshot=snapshot)
    if len(packet) != rest:
        raise ValueError(f"{len(packet) - rest} bytes too many for a {kind.__name__}")
    return group, _read_small(kind, own, source, target, term)


def _check_terms(*terms: int) -> None:
    # Nobody's log holds anything else, so the core takes it for granted.
    if terms != tuple(sorted(terms)):
        raise ValueError(f"terms that go back: {', '.join(map(str, dict.fromkeys(terms)))}")


def _read_small(kind: type, own: tuple[int, ...], source: int, target: int, term: int) -> Message:
    flags = own[-1] if own else 0
    first, second = bool(flags & 1), bool(flags & 2)
    if kind is RequestVote:
        return RequestVote(
            source=source,
            target=target,
            term=term,
            last_index=own[0],
            last_term=own[1],
            pre=first,
            transfer=second,
        )
    if kind is VoteReply:
        return VoteReply(source=source, target=target, term=term, granted=first, pre=second)
    if kind is AppendReply:
        return AppendReply(
            source=source,
            target=target,
            term=term,
            index=own[0],
            hint_index=own[1],
            hint_term=own[2],
            life=own[3],
            rejected=first,
            recovering=second,
        )
    return TimeoutNow(source=source, target=target, term=term)
