"""The load generator: connections that each send a request, wait for its answer, and send the next.

Two cores carry the servers and this, so it does as little as it can: requests are ready-made bytes, one
loop around epoll, and an answer is looked at just enough to know that it is the one hoped for. It runs in a
process of its own, `python -m bench.load`, with a plan on standard input.
"""

import re
import select
import socket
import subprocess
import sys
import time
from array import array
from pathlib import Path

import msgspec

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
_ANSWER_BYTES = 1 << 16  # read at once
_SILENCE_SECONDS = 30.0  # from all connections at once: the server has died
_ANSWER = re.compile(
    rb"HTTP/1\.1 (\d{3})[^\r]*\r\n(?:[^\r]*\r\n)*?content-length: *(\d+)\r\n(?:[^\r]+\r\n)*\r\n",
    re.IGNORECASE,
)


class Plan(msgspec.Struct, frozen=True):
    """What is to be sent, and for how long."""

    port: int  # on loopback
    requests: list[bytes]  # one for each connection, which sends it again and again
    expected: bytes  # occurs in every answer that counts
    warm_seconds: float  # before counting
    seconds: float
    may_fail: bool = False  # answers that are not as hoped for are counted apart; without it, one ends it all


class Load(msgspec.Struct, frozen=True):
    """What came of it."""

    answers: int  # that were counted, in `seconds`
    answers_in_all: int  # also before and after
    failures: int  # in all
    seconds: float
    processor_seconds: float  # of the generator itself, in `seconds`
    median_ms: float
    p99_ms: float  # 99 of 100 answers came within this

    @property
    def per_second(self) -> float:
        """How fast it went."""
        return self.answers / self.seconds


class LoadFailed(Exception):
    """An answer was not what it should be, or none came."""


def run_load(plan: Plan) -> Load:
    """Carry out a plan in a process of its own, and wait for it."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=msgspec.msgpack.encode(plan),
        capture_output=True,
        cwd=_ROOT,
        timeout=plan.warm_seconds + plan.seconds + 2 * _SILENCE_SECONDS,
        check=False,
    )
    if run.returncode:
        raise LoadFailed(run.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.msgpack.decode(run.stdout, type=Load)


class _Connection:
    """A socket, what is sent on it, and what has come so far of the answer."""

    __slots__ = ("received", "request", "sent_at", "socket")

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.received = b""  # empty unless an answer came in pieces
        self.sent_at = 0.0


class Generator:
    """Carries out one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._poll = select.epoll()
        self._connections = {
            each.socket.fileno(): each
            for each in (_Connection(plan.port, request) for request in plan.requests)
        }
        for descriptor in self._connections:
            self._poll.register(descriptor, select.EPOLLIN)
        self._answers_in_all = 0
        self._failures = 0

    def run(self) -> Load:
        """Warm up, count, wait for what is under way, close."""
        try:
            for connection in self._connections.values():
                self._send(connection)
            self._exchange(self._plan.warm_seconds)
            processor_began, began = time.process_time(), time.perf_counter()
            taken = self._exchange(self._plan.seconds)
            seconds = time.perf_counter() - began
            processor_seconds = time.process_time() - processor_began
            self._collect()
        finally:
            for connection in self._connections.values():
                connection.socket.close()
            self._poll.close()
        ordered = sorted(taken)
        if not ordered:
            raise LoadFailed(f"no answer in {seconds:.0f} s")
        return Load(
            len(ordered),
            self._answers_in_all,
            self._failures,
            seconds,
            processor_seconds,
            median_ms=1000 * ordered[len(ordered) // 2],
            p99_ms=1000 * ordered[len(ordered) * 99 // 100],
        )

    def _exchange(self, seconds: float) -> "array[float]":
        """For so long: whoever has an answer sends again. Returns how long each answer took."""
        connections, clock = self._connections, time.perf_counter
        taken: array[float] = array("d")
        end = clock() + seconds
        while clock() < end:
            for descriptor in self._ready():
                connection = connections[descriptor]
                hoped_for = self._receive(connection)
                if hoped_for is None:
                    continue
                if hoped_for:
                    taken.append(clock() - connection.sent_at)
                self._send(connection)
        self._answers_in_all += len(taken)
        return taken

    def _collect(self) -> None:
        """The answers to what is under way, so that whoever counts elsewhere counts the same."""
        awaited = set(self._connections)
        while awaited:
            for descriptor in self._ready():
                hoped_for = self._receive(self._connections[descriptor])
                if hoped_for is not None:
                    awaited.remove(descriptor)
                    self._answers_in_all += hoped_for

    def _ready(self) -> list[int]:
        events = self._poll.poll(_SILENCE_SECONDS)
        if not events:
            raise LoadFailed(f"no answer on any connection for {_SILENCE_SECONDS:.0f} s")
        return [descriptor for descriptor, _ in events]

    def _send(self, connection: _Connection) -> None:
        connection.sent_at = time.perf_counter()
        if connection.socket.send(connection.request) != len(connection.request):
            raise LoadFailed("a request does not fit into the socket's buffer")

    def _receive(self, connection: _Connection) -> bool | None:
        """Whether the answer is as hoped for; None while it is not whole."""
        data = connection.socket.recv(_ANSWER_BYTES)
        if not data:
            raise LoadFailed(f"the server closed a connection, after {connection.received!r}")
        if connection.received:
            data = connection.received + data
        head = _ANSWER.match(data)
        if head is None or len(data) < head.end() + int(head[2]):
            connection.received = data
            return None
        connection.received = b""
        if head[1] == b"200" and self._plan.expected in data:
            return True
        if not self._plan.may_fail:
            raise LoadFailed(f"an answer that was not hoped for: {data!r}")
        self._failures += 1
        return False


if __name__ == "__main__":
    try:
        load = Generator(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)).run()
    except (LoadFailed, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(load))
