"""`talweg pipeline` as a process of its own, with whatever it starts: none of them outlives a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_session import JAVA_OPTIONS
from talweg.testing.processes import wait_until

PIPELINE = [sys.executable, "-m", "talweg.cli", "pipeline"]


class Started:
    """A process in a group of its own, and the file with what it says."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def members(self) -> list[int]:
        """Who of its group still runs; not those that only wait for somebody to notice that they ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group, *_ = path.read_text().rpartition(")")[2].split()
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def says(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_it_says(self, word: str, seconds_max: float) -> None:
        def said() -> bool:
            assert self.process.poll() is None or word in self.says(), self.says()
            return word in self.says()

        wait_until(said, f"{self.log.name} to say {word}", seconds_max)


@contextmanager
def started(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """Start something; it is killed at the end."""
    # Java's options are for those JVMs that a script of Spark's starts, drivers among them.
    given = {"SPARK_SUBMIT_OPTS": JAVA_OPTIONS, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env=os.environ | given | dict(environment or {}),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    made = Started(process, log)
    try:
        yield made
    finally:
        made.kill()
