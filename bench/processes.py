"""Processes that a benchmark starts, talks to, and is sure to end."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bench.commands import Answer, AskState, Command, Member, Settings, State, decode_answer, encode

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
_STOP_SECONDS = 5.0  # to end by itself; then it is killed
_LOOK_SECONDS = 0.05
START_SECONDS = 120.0  # to open its groups; a thousand of them take a while

_ATTEMPTS = 3

Expected = TypeVar("Expected", bound=Answer)
R = TypeVar("R")


class ProcessFailed(Exception):
    """A process ended, or did not answer in time. Says what it last wrote to its log."""


class Process:
    """One member of a cluster. Its standard input's end is its end, so it never outlives us."""

    def __init__(self, module: str, member: Member) -> None:
        self.member = member
        self._module = module
        directory = Path(member.directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = directory.with_suffix(".log")
        self._received = bytearray()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, encode(member).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=_ROOT,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )

    @property
    def pid(self) -> int:
        """The operating system's number for it."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Say something; the answer is for `receive`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(command) + b"\n")
        except OSError as error:
            raise self._failed("has ended") from error

    def answered(self, timeout_seconds: float = 0.0) -> bool:
        """Whether an answer is there, waiting up to this long for it."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise self._failed("has ended")
            self._received += data
        return True

    def receive(self, expected: type[Expected], timeout_seconds: float) -> Expected:
        """The answer to what was sent."""
        if not self.answered(timeout_seconds):
            raise self._failed(f"gave no answer in {timeout_seconds:.0f} s")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        answer = decode_answer(line)
        assert isinstance(answer, expected), f"expected {expected.__name__}, got {answer}"
        return answer

    def ask(self, command: Command, expected: type[Expected], timeout_seconds: float) -> Expected:
        """Say something and wait for the answer."""
        self.send(command)
        return self.receive(expected, timeout_seconds)

    def state(self, timeout_seconds: float = START_SECONDS) -> State:
        """How things are there."""
        return self.ask(AskState(), State, timeout_seconds)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self._process.kill()
        self._close()

    def begin_to_stop(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Wait for its end; kill it if that does not come."""
        self.begin_to_stop()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _failed(self, how: str) -> ProcessFailed:
        last_words = self._log_path.read_text(errors="replace")[-2000:]
        return ProcessFailed(f"{self._module} {self.member.number} {how}\n{last_words}")


class Cluster:
    """Three processes of one kind on loopback, in a `with` statement that ends them all."""

    def __init__(
        self, module: str, directory: Path, *, groups: int = 1, settings: Settings | None = None
    ) -> None:
        ports = free_ports(3)
        self._module = module
        self._members = [
            Member(number, ports, str(directory / str(number)), groups, settings or {})
            for number in (1, 2, 3)
        ]
        self.processes: dict[int, Process] = {}  # those that run, by number

    def __enter__(self) -> Self:
        try:
            for member in self._members:
                self.start(member.number)
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill_all()  # whoever pressed Ctrl-C does not want to wait

    def start(self, number: int) -> Process:
        """Start one, on whatever its directory holds."""
        with uninterrupted():
            process = self.processes[number] = Process(self._module, self._members[number - 1])
        return process

    def kill(self, number: int) -> None:
        """End one as a power cut would."""
        self.processes.pop(number).kill()

    def kill_all(self) -> None:
        """End them all at once."""
        for number in list(self.processes):
            self.kill(number)

    def stop(self) -> None:
        """End them all, and let them put their files in order."""
        for process in self.processes.values():
            process.begin_to_stop()
        for process in self.processes.values():
            process.stop()
        self.processes.clear()

    def wait_for_leader(self, timeout_seconds: float = 60.0) -> Process:
        """The process that leads the first group, once everyone is connected and follows it."""
        peers = len(self.processes) - 1
        deadline = time.monotonic() + timeout_seconds
        while True:
            states = {process: process.state() for process in self.processes.values()}
            ready = all(state.led and state.connected >= peers for state in states.values())
            leaders = [process for process, state in states.items() if state.leads]
            if ready and len(leaders) == 1:
                return leaders[0]
            if time.monotonic() > deadline:
                seen = list(states.values())
                raise ProcessFailed(f"{self._module}: no leader after {timeout_seconds:.0f} s: {seen}")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect afterwards. A process that is being started is known by then, and can be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never come here
        return
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, _: came.append(number)) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
        if came:
            signal.raise_signal(came[0])


def free_ports(count: int) -> list[int]:
    """So many that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def attempted(measure: Callable[[], R], *failures: type[Exception]) -> R:
    """Measure, and again from the start if that failed: what took minutes before is not lost to a hiccup."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(*failures):
            return measure()
    return measure()
