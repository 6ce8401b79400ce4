"""Progress for people and for programs: a live table on a terminal, lines elsewhere, or JSON."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol, TextIO

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from talweg.pipeline.runner import Progress

_COLUMNS: Final = ("batch", "rows", "rows in all", "rows/s", "lag", "too late")


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progress: Sequence[Progress]) -> None:
        """How things are now."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


def choose_display(*, as_json: bool, stream: TextIO | None = None) -> Display:
    """What fits: standard error's terminal, or lines there; JSON on standard output if it is asked for."""
    if as_json:
        return JsonLines(stream or sys.stdout)
    console = Console(file=stream or sys.stderr)
    return LiveTable(console) if console.is_terminal else TextLines(stream or sys.stderr)


class LiveTable:
    """One table that is drawn anew."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, progress: Sequence[Progress]) -> None:
        self._live.update(drawn(progress), refresh=True)

    def close(self) -> None:
        self._live.stop()


def drawn(progress: Sequence[Progress]) -> RichTable:
    """A row for each pipeline."""
    table = RichTable("pipeline", "state")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for each in progress:
        known = each.batch >= 0
        numbers = (
            str(each.batch) if known else "",
            f"{each.batch_rows:,}" if known else "",
            f"{each.rows:,}",
            f"{rate(each):,.0f}" if known else "",
            "" if each.lag is None else f"{each.lag:,}",
            f"{each.left_out:,}" if each.left_out else "",
        )
        table.add_row(each.pipeline, each.state, *numbers)
    return table


def rate(progress: Progress) -> float:
    """Rows each second in the last batch."""
    return progress.batch_rows / progress.seconds if progress.seconds else 0.0


class _EachOnce(ABC):
    """Tells of what has changed, once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told: dict[str, tuple[int, str]] = {}

    def show(self, progress: Sequence[Progress]) -> None:
        for each in progress:
            news = (each.batch, each.state)
            if each.state != "starts" and self._told.get(each.pipeline) != news:
                self._told[each.pipeline] = news
                self._stream.write(self.line(each) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()

    @abstractmethod
    def line(self, progress: Progress) -> str:
        """What is told of one."""


class TextLines(_EachOnce):
    """A line for each batch."""

    def line(self, progress: Progress) -> str:
        """For people."""
        if progress.batch < 0:
            return f"{progress.pipeline}: {progress.state}"
        lag = "" if progress.lag is None else f", lag {progress.lag:,}"
        late = f", {progress.left_out:,} too late" if progress.left_out else ""
        return (
            f"{progress.pipeline}: {progress.state}, batch {progress.batch}, {progress.batch_rows:,} rows in "
            f"{progress.seconds:.1f} s, {progress.rows:,} in all{lag}{late}"
        )


class JsonLines(_EachOnce):
    """An object on a line for each batch."""

    def line(self, progress: Progress) -> str:
        """For programs."""
        return msgspec.json.encode(progress).decode()
