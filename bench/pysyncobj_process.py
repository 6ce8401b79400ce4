"""A member of a pysyncobj cluster as a process, with its journal on, and a producer inside it.

Run as `python -m bench.pysyncobj_process MEMBER`; commands come on standard input, and its end ends it.
What is replicated is a counter of entries: as little work as it can be for the state machine.
"""

import itertools
import os
import sys
import threading
import time
from pathlib import Path

from pysyncobj import SyncObj, SyncObjConf, replicated

from bench.commands import (
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

_LOOK_SECONDS = 0.0005  # between two looks whether there is room for more


class EntryLog(SyncObj):  # type: ignore[misc]
    """Counts the entries that it is given."""

    def __init__(self, member: Member) -> None:
        self.count = 0
        addresses = [f"127.0.0.1:{port}" for port in member.ports]
        own = addresses.pop(member.number - 1)
        journal = str(Path(member.directory) / "journal")
        super().__init__(own, addresses, SyncObjConf(journalFile=journal, **member.settings))

    @replicated  # type: ignore[untyped-decorator]
    def add(self, payload: bytes) -> None:
        """One more entry."""
        del payload  # that it was replicated is all that counts
        self.count += 1


def serve(member: Member) -> None:
    """Take part in the cluster and do as told until standard input ends."""
    Path(member.directory).mkdir(parents=True, exist_ok=True)
    log = EntryLog(member)
    while line := sys.stdin.buffer.readline():
        sys.stdout.buffer.write(encode(_carry_out(log, decode_command(line))) + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)  # its thread would go on ticking


def _carry_out(log: EntryLog, command: Command) -> Answer:
    match command:
        case AskState() | Spread():  # of one group there is nothing to spread
            return _state(log)
        case Push():
            return _Pusher(log, command).push()
        case PushOneByOne():
            return _push_one_by_one(log, command)


def _state(log: EntryLog) -> State:
    return State(
        leads=int(log.isReady() and log._isLeader()),
        led=int(log.isReady() and log._getLeader() is not None),
        connected=sum(log.isNodeConnected(node) for node in log.otherNodes),
        last_index=log.raftLastApplied,
    )


class _Pusher:
    """A producer: every payload is appended, never more than `window` at a time."""

    def __init__(self, log: EntryLog, command: Push) -> None:
        self._log = log
        self._command = command
        self._payloads = itertools.cycle(payloads(command.entry_bytes))
        self._appended = 0  # changed by this thread alone, the other two by pysyncobj's
        self._done = 0
        self._refused = 0

    def push(self) -> Pushed:
        self._push_for(self._command.warm_seconds)
        done, refused, began = self._done, self._refused, time.perf_counter()
        self._push_for(self._command.seconds)
        return Pushed(self._done - done, self._refused - refused, time.perf_counter() - began)

    def _push_for(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            while self._appended - self._done - self._refused < self._command.window:
                self._appended += 1
                self._log.add(next(self._payloads), callback=self._answered)
            time.sleep(_LOOK_SECONDS)

    def _answered(self, _: object, error: int) -> None:
        if error:
            self._refused += 1
        else:
            self._done += 1


def _push_one_by_one(log: EntryLog, command: PushOneByOne) -> Latencies:
    taken: list[float] = []
    for payload in itertools.islice(itertools.cycle(payloads(command.entry_bytes)), command.count):
        answered = threading.Event()
        began = time.perf_counter()
        log.add(payload, callback=lambda *_, answered=answered: answered.set())
        answered.wait()
        taken.append(time.perf_counter() - began)
    return Latencies(taken)


if __name__ == "__main__":
    serve(decode_member(sys.argv[1]))
