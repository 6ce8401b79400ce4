"""One process of a local cluster, its log and its life; and a supervisor that starts again what ends.

A child's standard input is a pipe that nobody writes to. The child watches it (`attached`) and stops in
good order when it ends, and the kernel ends it when the parent goes, kill -9 included. That was chosen over
the kernel's parent-death signal because it needs no system call of one system, has no race between fork
and exec, does not depend on which *thread* started the child, and lets brokers hand over what they lead.
A child that is stopped (SIGSTOP) cannot watch anything; but it has a process group of its own in the
parent's session, and to such a group the kernel sends SIGHUP and SIGCONT when its last parent has gone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from talweg.testing.ports import HOST

LOG_BYTES_MAX: Final = 16 << 20  # of a log at a start; what is longer becomes the old one
_PAUSE_SECONDS: Final = 0.2  # before the first restart; doubles with each
_PAUSE_SECONDS_MAX: Final = 10.0
_STEADY_SECONDS: Final = 30.0  # after which a process counts as well again
_LOOK_SECONDS: Final = 0.02


class ClusterError(Exception):
    """A process that did not start, stop or do what was waited for. Says what its log says."""


class Process:
    """A server of ours as a process. May be started again and again; always with the same arguments."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],  # of `talweg`
        *,
        port: int,
        log: Path,
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),  # descriptors
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.port = port
        self.log = log
        self.starts = 0
        self.paused = False
        self._environment = dict(environment)
        self._inherited = tuple(inherited)
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def role(self) -> str:
        """Broker or manager."""
        return self.arguments[0]

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        """Its number in the system, while it runs."""
        return self._popen.pid if self._popen is not None and self.running else None

    @property
    def exit_code(self) -> int | None:
        """How it ended last: minus a signal's number if by one; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Start it; does not wait for it to answer."""
        assert not self.running, f"{self.name} runs already"
        self._let_go()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".old.log"))
        # -P: what lies in the directory that one happens to be in is nobody's module.
        command = [sys.executable, "-P", "-m", "talweg.cli.attached", *self.arguments]
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                pass_fds=self._inherited,
                process_group=0,
            )
        self.starts += 1
        self.paused = False

    def _send(self, number: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(number)  # harmless when it has ended

    def ask_to_stop(self) -> None:
        """SIGTERM, and no waiting."""
        self._send(signal.SIGTERM)
        if self.paused:
            self.resume()

    def terminate(self, seconds_max: float = 30.0) -> int:
        """SIGTERM; returns the exit code. Raises ClusterError when it takes longer."""
        self.ask_to_stop()
        assert self._popen is not None, f"{self.name} was never started"
        try:
            return self._popen.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{self.name} did not stop in {seconds_max:g} s:\n{self.last_words()}"
            ) from None

    def begin_kill(self) -> None:
        """SIGKILL, and no waiting."""
        self._send(signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL: what a power failure leaves of a process. Returns when it is gone."""
        self.begin_kill()
        if self._popen is not None:
            self._popen.wait()
        self._let_go()

    def pause(self) -> None:
        """SIGSTOP; returns when it stands still."""
        assert self.running, f"{self.name} does not run"
        self._send(signal.SIGSTOP)
        self.paused = True
        assert self._popen is not None
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)
        self.paused = False

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(no log)"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 64_000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def _let_go(self) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            self._popen.stdin.close()


def stop_all(processes: Iterable[Process], seconds_max: float) -> list[str]:
    """Ask all to stop at once; kill what runs after that time. Returns the names of those killed."""
    processes = list(processes)
    for process in processes:
        process.ask_to_stop()
    deadline = time.monotonic() + seconds_max
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    late = [process.name for process in processes if process.running]
    for process in processes:
        process.kill()  # also those that have ended: their pipes are closed
    return late


def wait_until(
    condition: Callable[[], bool], what: str, seconds_max: float, *, pause_seconds: float = _LOOK_SECONDS
) -> None:
    """Look until the condition holds; raises ClusterError when it takes too long."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds_max:g} s in vain for {what}")
        time.sleep(pause_seconds)


class Restart(msgspec.Struct, frozen=True):
    """A process ended, or was started again."""

    process: str
    exit_code: int | None  # None: it was started
    pause_seconds: float = 0.0  # until it is


class _Watched(msgspec.Struct):
    started_at: float
    failures: int = 0  # in a row
    due_at: float | None = None  # of the restart; None while it runs


class Supervisor:
    """Starts processes again that end by themselves, after pauses that grow while they keep ending."""

    def __init__(self, processes: Sequence[Process], clock: Callable[[], float] = time.monotonic) -> None:
        self._processes = processes
        self._clock = clock
        self._watched = {process.name: _Watched(clock()) for process in processes}

    def look(self) -> list[Restart]:
        """See who has ended, and start whose pause is over. To be called often, from one thread."""
        events = []
        now = self._clock()
        for process in self._processes:
            watched = self._watched[process.name]
            if process.running:
                continue
            if watched.due_at is None:
                steady = now - watched.started_at > _STEADY_SECONDS
                watched.failures = 1 if steady else watched.failures + 1
                pause = min(_PAUSE_SECONDS * 2 ** min(watched.failures - 1, 10), _PAUSE_SECONDS_MAX)
                watched.due_at = now + pause
                events.append(Restart(process.name, process.exit_code, pause))
            elif now >= watched.due_at:
                process.start()
                watched.started_at, watched.due_at = now, None
                events.append(Restart(process.name, None))
        return events
