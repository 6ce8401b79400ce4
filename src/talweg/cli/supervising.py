"""A local cluster that runs in the foreground: started, watched, shown, and stopped again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from talweg.cli.complaints import EXIT_FAILED, complain
from talweg.cli.status import Display, Health, Overview, choose_display, told_restart
from talweg.errors import InvalidSetting
from talweg.testing.cluster import START_SECONDS_MAX, STOP_SECONDS_MAX, LocalCluster
from talweg.testing.processes import ClusterError, Supervisor

_LOOK_SECONDS: Final = 0.1
_COMMAND_SECONDS_MAX: Final = 10.0  # for a command to end that was told to
_CRASHES_MAX: Final = 5  # of one process before the cluster was ever ready


def run_cluster(
    directory: Path,
    *,
    port: int,
    brokers: int,
    readers: int,
    flags: Mapping[str, str],  # for every process
    as_json: bool,
    command: list[str],  # to be run on it; empty: until it is told to stop
) -> None:
    """Run a cluster to its end, which is the end of this process."""
    cluster = LocalCluster(
        directory,
        brokers=brokers,
        readers=readers,
        port=port,
        settings={"broker": flags, "manager": flags},
    )
    try:
        cluster.prepare()
        code = _Run(cluster, choose_display(as_json=as_json, alone=not command), command).run()
    except InvalidSetting as error:
        code = complain(error)
    finally:
        cluster.close()
    sys.exit(code)


class _Run:
    """One cluster from its start to its stop."""

    def __init__(self, cluster: LocalCluster, display: Display, command: list[str]) -> None:
        self._cluster = cluster
        self._display = display
        self._command_line = command
        self._command: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._told_at = 0.0

    def run(self) -> int:
        """Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._cluster.start_processes()
        self._supervisor = Supervisor(list(self._cluster.processes.values()))
        self._health = Health(self._cluster)
        self._health.start()
        self._overview = Overview(self._cluster, self._supervisor, self._health)
        try:
            return self._go()
        except ClusterError as error:
            self._display.tell(str(error))
            return EXIT_FAILED
        finally:
            self._stop()

    def _go(self) -> int:
        if not self._until_ready():
            return 0 if not self._command_line else 128 + self._signals[0]
        if self._command_line:
            return self._run_command()
        while not self._signals:
            self._look()
        return 0

    def _look(self) -> None:
        """One turn: start again what has ended, show how things are."""
        for event in self._supervisor.look():
            self._display.tell(told_restart(event, self._cluster.processes[event.process]))
        self._display.show(self._overview.rows())
        time.sleep(_LOOK_SECONDS)

    def _until_ready(self) -> bool:
        """True when everything is ready, False when told to stop; ClusterError when it takes too long."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._signals:
            self._look()
            rows = self._overview.rows()
            if all(row.state == "ready" for row in rows):
                self._display.ready(self._cluster.url, str(self._cluster.directory), rows)
                return True
            worst = max(self._cluster.processes.values(), key=lambda process: process.starts)
            if worst.starts > _CRASHES_MAX or time.monotonic() > deadline:
                late = ", ".join(row.name for row in rows if row.state != "ready")
                raise ClusterError(f"not ready: {late}. {worst.name} says:\n{worst.last_words()}")
        return False

    def _run_command(self) -> int:
        environment = {**os.environ, "TALWEG_URL": self._cluster.url}
        try:
            self._command = subprocess.Popen(self._command_line, env=environment)  # noqa: S603 - the user's own
        except OSError as error:
            self._display.tell(f"{self._command_line[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        told = 0
        while (code := self._command.poll()) is None:
            if len(self._signals) > told:
                told = len(self._signals)
                self._tell_command(self._signals[-1])
            if told and time.monotonic() - self._told_at > _COMMAND_SECONDS_MAX:
                self._command.kill()
            self._look()
        return code if code >= 0 else 128 - code

    def _tell_command(self, number: int) -> None:
        assert self._command is not None
        self._told_at = time.monotonic()
        # A terminal's Ctrl-C has reached the command already: it is in the same foreground group.
        if number != signal.SIGINT or not sys.stdin.isatty():
            self._command.send_signal(number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) > 1 and self._command is None:
            for process in self._cluster.processes.values():
                process.begin_kill()  # told twice: at once

    def _stop(self) -> None:
        self._health.stop()
        self._overview.stopping = True
        self._display.show(self._overview.rows())
        began = time.monotonic()
        killed = self._cluster.stop(STOP_SECONDS_MAX)
        self._command = None
        for name in killed:
            self._display.tell(f"{name} did not stop in time and was killed")
        self._display.tell(f"stopped in {time.monotonic() - began:.1f} s")
        self._display.show(self._overview.rows())
        self._display.close()
