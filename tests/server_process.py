"""One server process for tests: its port, its directory, and its life from the first start to the last kill.

A server dies with the thread that started it, whatever happens to that thread's process (the kernel
sends the signal), so an interrupted run leaves none behind. Start servers from the main thread. The
files of a run that was killed are removed by a later one.
"""

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
# Below the range that Linux takes client ports from, so that no connection squats on the port of a
# server that is down; and low enough for a Redis Cluster's bus port, which is 10,000 higher.
PORTS = range(12_000, 22_000)


DIRECTORY_PREFIX = "talweg-"
LOCK_NAME = "lock"  # held by the test process for as long as it lives
LEFTOVER_SECONDS_MIN = 60  # younger ones may be about to be locked


class ServerError(Exception):
    """A server that is not installed or does not start. Says which package, or what its log says."""


class HeldPort:
    """A port number that no other test process takes while this object is open.

    The number is held by a name in the kernel's abstract socket space: it goes when the process goes.
    """

    def __init__(self, distances: Sequence[int] = (0,), candidates: Sequence[int] = PORTS) -> None:
        self.holds: list[socket.socket] = []
        for number in random.Random(os.urandom(8)).sample(candidates, k=min(200, len(candidates))):
            if self._hold([number + distance for distance in distances]):
                self.number = number
                return
        raise ServerError(f"no free port between {min(candidates)} and {max(candidates)}")

    def _hold(self, numbers: list[int]) -> bool:
        for number in numbers:
            hold = socket.socket(socket.AF_UNIX)
            self.holds.append(hold)
            try:
                hold.bind(f"\0talweg-test-port-{number}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
            except OSError:
                self.close()
                return False
        return True

    def close(self) -> None:
        while self.holds:
            self.holds.pop().close()


class Server:
    """One server process: its directory, its port and its life."""

    package: ClassVar[str]  # Debian's name of it
    account: ClassVar[str]  # the package's own user, who runs the server when we are root
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    driver_errors: ClassVar[tuple[type[Exception], ...]] = ()  # that `answers` may raise for "no"

    def __init__(self, port_distances: Sequence[int] = (0,)) -> None:
        self.port_distances = port_distances  # from its port, of all the ports it needs
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{self.package}-"))
        self._lock = (self.directory / LOCK_NAME).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._held_port = HeldPort(self.port_distances)
            self.port = self._held_port.number
            if user := self._user():
                os.chown(self.directory, user.pw_uid, user.pw_gid)
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop it and remove its data."""
        try:
            self.stop()
        finally:
            if hasattr(self, "_held_port"):
                self._held_port.close()
            self._lock.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is down"
        return self.process.pid

    def start(self) -> None:
        """Start it on the data that is there; returns when it answers."""
        assert self.process is None, "the server runs already"
        self.process = self._popen(self.command(), self.log)
        self._wait_until_it_answers()

    def check(self) -> None:
        """Raises ServerError if it has ended by itself, with its last words. It is started again, so that
        whoever asks next finds it running."""
        if self.process is None or self.process.poll() is None:
            return
        status, self.process = self.process.returncode, None
        words = last_lines(self.log, 60)
        self.start()
        raise ServerError(f"{self.package} has ended by itself, with {status}:\n{words}")

    def stop(self) -> None:
        """Ask it to end in good order, and wait. Down already is fine."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_SECONDS_MAX)
            self.process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, for it and its children, at once: what a power failure leaves of a process."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)  # no more children from here on
        doomed = children(self.process.pid)
        self.process.kill()
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
        wait_until(lambda: not any(is_alive(pid) for pid in doomed), "the server's children to end")

    # What each sort of server says of itself.

    def prepare(self) -> None:
        """Make the data of a new server."""

    def command(self) -> list[str]:
        """The command line that starts it, in the foreground."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it takes connections. May also raise OSError or one of `driver_errors`."""
        raise NotImplementedError

    # Processes.

    def run(self, command: list[str], log: Path | None = None) -> None:
        """Run a command of the package to its end, as the server's user."""
        log = log or self.directory / "prepare.log"
        if self._popen(command, log).wait(START_SECONDS_MAX) != 0:
            raise ServerError(f"{' '.join(command)} failed:\n{last_lines(log)}")

    def _popen(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        # setpriv becomes the command: the process id is the server's. A session of its own keeps the
        # terminal's interrupt away from it: pytest's teardown is what stops it. A place of its own for
        # temporary files, too: a MariaDB that starts removes those of all others there, who crash.
        deathbed = ["setpriv", "--pdeathsig", self.stop_signal.name.removeprefix("SIG"), "--", *command]
        user = self._user()
        with log.open("ab") as output:
            return subprocess.Popen(
                deathbed,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=os.environ | {"TMPDIR": str(self.directory)},
                start_new_session=True,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )

    def _user(self) -> pwd.struct_passwd | None:
        """Who runs the server: PostgreSQL and MariaDB refuse to be root."""
        if os.geteuid() != 0:
            return None
        for account in (self.account, "nobody"):
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(account)
        raise ServerError(f"neither the user {self.account} nor nobody exists: install {self.package}")

    def _wait_until_it_answers(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            if self.process.poll() is not None:
                status, self.process = self.process.returncode, None
                raise ServerError(f"{self.package} ended with {status}:\n{last_lines(self.log)}")
            with contextlib.suppress(OSError, *self.driver_errors):
                if self.answers():
                    return
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(
                    f"{self.package} did not answer in {START_SECONDS_MAX} s:\n{last_lines(self.log)}"
                )
            time.sleep(0.02)


def remove_leftovers() -> None:
    """Remove the directories of test processes that were killed before they could do it."""
    for lock in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*/{LOCK_NAME}"):
        with contextlib.suppress(OSError), lock.open() as file:  # held by a living process, or not ours
            if time.time() - lock.stat().st_mtime > LEFTOVER_SECONDS_MIN:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)


def binary(name: str, package: str) -> str:
    """Where a server's program is. Administrators' programs need not be on a user's PATH."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if path is None:
        raise ServerError(f"{name} was not found: install the Debian package {package}")
    return path


def last_lines(log: Path, count: int = 20) -> str:
    """The end of a log, for an error message."""
    if not log.exists():
        return "(it wrote no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def children(pid: int) -> list[int]:
    """The process ids of a process's children, and theirs."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def stands_still(pid: int) -> bool:
    """Whether SIGSTOP has reached it: to be sent one is not yet to be stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS_MAX) -> None:
    """Look until the condition holds; ServerError when it takes too long."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"waited {seconds_max} s in vain for {what}")
        time.sleep(0.02)
