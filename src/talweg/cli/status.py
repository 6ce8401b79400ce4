"""What `talweg up` shows of its cluster: a table on a terminal, lines elsewhere, or one JSON document."""

import json
import sys
import threading
from collections.abc import Sequence
from typing import Final, Literal, Protocol, TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from talweg.testing.asking import try_to_get
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import Process, Restart, Supervisor

State = Literal["starting", "ready", "not active", "silent", "restarting", "stopping", "stopped"]

_STYLES: Final[dict[State, str]] = {
    "starting": "yellow",
    "ready": "green",
    "not active": "yellow",
    "silent": "red",
    "restarting": "red",
    "stopping": "yellow",
    "stopped": "dim",
}
_LOOK_SECONDS: Final = 0.5
_NEWS_MAX: Final = 5  # lines of news under the table


class Row(msgspec.Struct, frozen=True):
    """A process, as people see it."""

    name: str
    role: str
    endpoint: str
    state: State
    pid: int | None
    restarts: int
    log: str


class Health(threading.Thread):
    """Asks every process how it is, again and again, so that one that is silent holds nobody up."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(name="health", daemon=True)
        self._cluster = cluster
        self._stop = threading.Event()
        self._answering: dict[str, bool] = {}  # by name; replaced as a whole
        self._active: frozenset[str] = frozenset()  # brokers' endpoints

    def run(self) -> None:
        """Until `stop`."""
        while not self._stop.is_set():
            faces = {
                name: try_to_get(process.endpoint, "/")
                for name, process in list(self._cluster.processes.items())
            }
            self._answering = {name: bool(face and face.get("healthy")) for name, face in faces.items()}
            answer = next(filter(None, (self._brokers(name) for name in self._cluster.managers)), {})
            self._active = frozenset(
                str(broker["endpoint"])
                for broker in answer.get("brokers", ())
                if broker["status"] == "active"
            )
            self._stop.wait(_LOOK_SECONDS)

    def _brokers(self, name: str) -> dict[str, list[dict[str, object]]] | None:
        if not self._answering.get(name):
            return None
        return try_to_get(self._cluster.endpoint(name), "/admin/brokers")

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def state_of(self, process: Process, *, was_ready: bool, is_broker: bool) -> State:
        """Of a process that runs."""
        if not self._answering.get(process.name):
            return "silent" if was_ready else "starting"
        return "ready" if not is_broker or process.endpoint in self._active else "not active"


class Overview:
    """All rows of a cluster, from its processes, their supervisor and their health."""

    def __init__(self, cluster: LocalCluster, supervisor: Supervisor, health: Health) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._health = health
        self._was_ready: dict[str, int] = {}  # by name: in which start it was ready
        self.stopping = False

    def rows(self) -> list[Row]:
        """As things are now."""
        rows = []
        for name, process in self._cluster.processes.items():
            state = self._state(name, process)
            if state == "ready":
                self._was_ready[name] = process.starts
            restarts = max(0, process.starts - 1)
            role = name.rstrip("-0123456789").replace("reader", "read-only").replace("standby", "stand-by")
            rows.append(Row(name, role, process.endpoint, state, process.pid, restarts, str(process.log)))
        return rows

    def _state(self, name: str, process: Process) -> State:
        if self.stopping:
            return "stopping" if process.running else "stopped"
        if not process.running:
            return "restarting"
        was_ready = self._was_ready.get(name) == process.starts
        return self._health.state_of(process, was_ready=was_ready, is_broker=name in self._cluster.brokers)


class Display(Protocol):
    """How it is shown."""

    def show(self, rows: Sequence[Row]) -> None:
        """The state of everything; called often."""

    def tell(self, text: str) -> None:
        """News."""

    def ready(self, url: str, directory: str, rows: Sequence[Row]) -> None:
        """Everything is ready."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class LinesDisplay:
    """Plain lines, for logs and pipes: only what changes."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, rows: Sequence[Row]) -> None:
        """Nothing: news are told."""

    def tell(self, text: str) -> None:
        """A line."""
        self._output.write(f"talweg: {text}\n")
        self._output.flush()

    def ready(self, url: str, directory: str, rows: Sequence[Row]) -> None:
        """A line for each process, and one for all."""
        for row in rows:
            self._output.write(f"talweg: {row.name:<10} {row.endpoint}  {row.state}  pid {row.pid}\n")
        self.tell(f"ready at {url}, data in {directory}")

    def close(self) -> None:
        """Nothing to leave."""


class JsonDisplay(LinesDisplay):
    """One JSON document on standard output when all is ready; news as lines on standard error."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def ready(self, url: str, directory: str, rows: Sequence[Row]) -> None:
        """The document, on one line."""
        processes = [msgspec.to_builtins(row) for row in rows]
        sys.stdout.write(json.dumps({"url": url, "data": directory, "processes": processes}) + "\n")
        sys.stdout.flush()


class TableDisplay:
    """A table that is kept up to date, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news: list[str] = []
        self._headline = "starting"
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, rows: Sequence[Row]) -> None:
        """Draw it anew."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("process", "role", "endpoint", "state", "pid", "restarts"):
            table.add_column(heading, justify="right" if heading in ("pid", "restarts") else "left")
        for row in rows:
            state = Text(row.state, style=_STYLES[row.state])
            pid = "" if row.pid is None else str(row.pid)
            table.add_row(row.name, row.role, row.endpoint, state, pid, str(row.restarts))
        news = [Text(line, style="dim") for line in self._news]
        self._live.update(Group(Text.from_markup(self._headline), table, *news), refresh=True)

    def tell(self, text: str) -> None:
        """A line under the table; the last few are kept."""
        self._news = [*self._news, text][-_NEWS_MAX:]

    def ready(self, url: str, directory: str, rows: Sequence[Row]) -> None:
        """The headline."""
        where = f"[bold]talweg[/] at [bold]{escape(url)}[/], data in {escape(directory)}"
        self._headline = f"{where}; Ctrl-C stops it"
        self.show(rows)

    def close(self) -> None:
        """The last table stays on the screen."""
        self._live.stop()


def choose_display(*, as_json: bool, alone: bool) -> Display:
    """A table if there is a terminal that can show it again and again, and nobody else writes there."""
    if as_json:
        return JsonDisplay()
    console = Console(stderr=not alone)
    if alone and console.is_terminal and not console.is_dumb_terminal:
        return TableDisplay(console)
    # Whatever a command prints is its own affair: our lines keep out of its output.
    return LinesDisplay(sys.stdout if alone else sys.stderr)


def told_restart(event: Restart, process: Process) -> str:
    """A restart, in a line for people."""
    if event.exit_code is None:
        return f"{event.process} started again (pid {process.pid})"
    code = event.exit_code
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    last = process.last_words(1)
    why = f": {last}" if code > 0 and last else ""
    return f"{event.process} {how}; starting it again in {event.pause_seconds:.1f} s{why}"
