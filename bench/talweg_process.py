"""A broker's replication layer as a process: a ReplicaHost with real files, and a producer inside it.

Run as `python -m bench.talweg_process MEMBER`; commands come on standard input, and its end ends it.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice

import uvloop

from bench.commands import (
    LINE_BYTES_MAX,
    Answer,
    AskState,
    Command,
    Latencies,
    Member,
    Push,
    Pushed,
    PushOneByOne,
    Spread,
    State,
    decode_command,
    decode_member,
    encode,
    payloads,
)
from talweg.raft import Configuration
from talweg.records import Codec, encode_values
from talweg.replication import Group, ReplicaHost
from talweg.replication.proposals import Outcome
from talweg.storage import open_stores

_BACK_OFF_SECONDS = 0.02  # after a refusal
_BURST = 256  # entries appended before the event loop may do something else


async def serve(member: Member) -> None:
    """Carry the groups and do as told until standard input ends."""
    host = ReplicaHost(member.number, open_stores(member.directory))
    await host.start(port=member.port)
    members = range(1, len(member.ports) + 1)
    for peer, port in zip(members, member.ports, strict=True):
        host.connect(peer, "127.0.0.1", port)
    for number in range(1, member.groups + 1):
        await host.open_group(f"bench-{number}", number, Configuration.of(members))
    commands = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        answer = await _carry_out(host, decode_command(line))
        sys.stdout.buffer.write(encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    await host.close()


async def _carry_out(host: ReplicaHost, command: Command) -> Answer:
    match command:
        case AskState():
            return _state(host)
        case Spread():
            for group in host.groups:
                group.hand_over(group.voters[group.incarnation % len(group.voters)])
            return _state(host)
        case Push():
            return await _Pusher(host.groups[0], command).push()
        case PushOneByOne():
            return await _push_one_by_one(host.groups[0], command)


def _state(host: ReplicaHost) -> State:
    groups = host.groups
    return State(
        leads=sum(group.leads for group in groups),
        led=sum(group.leader is not None for group in groups),
        connected=len(host.connected),
        last_index=groups[0].replica.raft.stable_index,
    )


class _Pusher:
    """A producer: appends frames, never more than `window` at a time."""

    def __init__(self, group: Group, command: Push) -> None:
        self._group = group
        self._command = command
        self._frames = _frames(command.entry_bytes)
        self._outstanding = 0
        self._done = 0
        self._refused = 0
        self._room = asyncio.Event()

    async def push(self) -> Pushed:
        await self._push_for(self._command.warm_seconds)
        self._done = self._refused = 0
        began = time.perf_counter()
        await self._push_for(self._command.seconds)
        pushed = Pushed(self._done, self._refused, time.perf_counter() - began)
        while self._outstanding:
            self._room.clear()
            await self._room.wait()
        return pushed

    async def _push_for(self, seconds: float) -> None:
        append, frames, answered = self._group.append_with_callback, self._frames, self._answered
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            burst = min(_BURST, self._command.window - self._outstanding)
            if burst == 0:
                self._room.clear()
                await self._room.wait()
                continue
            self._outstanding += burst
            refused = self._refused
            for _ in range(burst):
                append([next(frames)], answered)
            # Who is told to slow down does.
            await asyncio.sleep(0 if self._refused == refused else _BACK_OFF_SECONDS)

    def _answered(self, outcome: Outcome) -> None:
        self._outstanding -= 1
        if isinstance(outcome, Exception):
            self._refused += 1
        else:
            self._done += 1
        self._room.set()


def _frames(entry_bytes: int) -> Iterator[bytes]:
    # Made beforehand: in life a client makes them, in a process of its own.
    now = time.time_ns() // 1000
    return cycle([encode_values([each], timestamp=now, codec=Codec.NONE) for each in payloads(entry_bytes)])


async def _push_one_by_one(group: Group, command: PushOneByOne) -> Latencies:
    taken: list[float] = []
    for frame in islice(_frames(command.entry_bytes), command.count):
        began = time.perf_counter()
        await group.append([frame])
        taken.append(time.perf_counter() - began)
    return Latencies(taken)


if __name__ == "__main__":
    uvloop.run(serve(decode_member(sys.argv[1])))
