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

_NAMES: Final = ("pipeline", "state")
_FIGURES: Final = ("batch", "rows", "in all", "rows/s", "lag", "too late")
_LEAST: Final = ("batch", "rows", "rows/s", "too late")  # the first of them is missed least
_BETWEEN: Final = 2  # blanks between columns


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progress: Sequence[Progress]) -> None:
        """How things are now."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


def choose_display(*, as_json: bool, stream: TextIO | None = None) -> Display:
    """What fits: on standard error a table, if that is a terminal that can draw it anew, or lines; JSON on
    standard output if it is asked for."""
    if as_json:
        return JsonLines(stream or sys.stdout)
    console = Console(file=stream or sys.stderr)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(console)
    return TextLines(stream or sys.stderr)


class LiveTable:
    """One table that is drawn anew."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, progress: Sequence[Progress]) -> None:
        self._live.update(drawn(progress, self._live.console.width), refresh=True)

    def close(self) -> None:
        self._live.stop()


def drawn(progress: Sequence[Progress], width: int) -> RichTable:
    """A row for each pipeline. A part of a figure would be another figure: where there is no room for all
    columns, those that matter least are missing."""
    rows = [_cells(each) for each in progress]
    shown = [*_NAMES, *_FIGURES]
    for name in _LEAST:
        widths = [max(len(text) for text in (column, *(row[column] for row in rows))) for column in shown]
        if sum(widths) + _BETWEEN * (len(shown) - 1) <= width:
            break
        shown.remove(name)
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        figure = column in _FIGURES
        table.add_column(column, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    return table


def _cells(progress: Progress) -> dict[str, str]:
    """What stands under each heading."""
    known = progress.batch >= 0
    return {
        "pipeline": progress.pipeline,
        "state": progress.state,
        "batch": str(progress.batch) if known else "",
        "rows": f"{progress.batch_rows:,}" if known else "",
        "in all": f"{progress.rows:,}",
        "rows/s": f"{rate(progress):,.0f}" if known else "",
        "lag": "" if progress.lag is None else f"{progress.lag:,}",
        "too late": f"{progress.left_out:,}" if progress.left_out else "",
    }


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
