"""Servers that are no members of a cluster: started, waited for, and sure to end."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.processes import ProcessFailed

_ROOT = Path(__file__).resolve().parents[1]  # where `bench` can be imported from
_LOOK_SECONDS = 0.02
_START_SECONDS = 30.0


class Server:
    """A Python module as a process that listens on a port, in a `with` statement that ends it."""

    def __init__(self, module: str, arguments: list[str], port: int, log_path: Path) -> None:
        self.port = port
        self._module = module
        self._log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )

    @property
    def pid(self) -> int:
        """The operating system's number for it."""
        return self._process.pid

    def wait_until_it_listens(self) -> None:
        """Return once a connection can be made."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                last_words = self._log_path.read_text(errors="replace")[-2000:]
                raise ProcessFailed(f"{self._module} does not listen\n{last_words}")
            time.sleep(_LOOK_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing of these is needed afterwards: there is nothing to be tidy about.
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


def end_with_standard_input() -> None:
    """For a server's process: whoever started it holds the other end, so it never outlives that one."""

    def wait() -> None:
        while sys.stdin.buffer.read(1 << 10):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
