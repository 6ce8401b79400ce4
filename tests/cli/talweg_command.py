"""The `talweg` command as a process of its own, for tests: what it prints, and how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TALWEG = (sys.executable, "-m", "talweg.cli")
SECONDS_MAX = 60.0


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would be settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALWEG_")}
    for name in ("PORT", "MANAGER_ADDRESS", "CURRENT_ADDRESS", "READ_ONLY"):
        kept.pop(name, None)
    return {**kept, "COLUMNS": "200", **more}


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that is to end by itself."""
    return subprocess.run(
        [*TALWEG, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        stdin=subprocess.DEVNULL,
        env=clean_environment(**(environment or {})),
        check=False,
    )


class Command:
    """A command that runs until it is told to stop. Its output is read as it comes."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**(environment or {})),
            cwd=directory,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str], lines: list[str]) -> None:
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_line(self, text: str, *, of_err: bool = False, seconds_max: float = SECONDS_MAX) -> str:
        """The first line with that text."""
        lines = self.err if of_err else self.out
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while True:
                for line in lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                ended = not any(reader.is_alive() for reader in self._readers)
                assert left > 0, f"no line with {text!r} in time\n{self.story()}"
                assert not ended, f"it ended without a line with {text!r}\n{self.story()}"
                self._changed.wait(min(left, 0.2))

    def story(self) -> str:
        return "\n".join(["out:", *self.out, "err:", *self.err])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds_max: float = SECONDS_MAX) -> int:
        """Its exit code; what it printed has all been read."""
        code = self.process.wait(seconds_max)
        for reader in self._readers:
            reader.join(seconds_max)
        return code

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(SECONDS_MAX)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def running(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Command]:
    """`talweg` with these arguments; killed at the end if it still runs."""
    command = Command([*TALWEG, *arguments], environment)
    try:
        yield command
    finally:
        command.close()
