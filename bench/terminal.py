"""What the person at the terminal sees: what is being done now, rows as they come, a table at the end."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from bench import chart
from bench.document import Section
from bench.results import Curve, Missing, Row, Yielded


class Terminal:
    """A progress line in a `with` statement; the rest scrolls by above it."""

    def __init__(self, console: Console, benchmarks: int) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=benchmarks)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, what: str) -> None:
        """Say what is being done now."""
        self._progress.update(self._task, description=what)

    def begin(self, section: Section) -> None:
        """A benchmark begins."""
        self._console.print(Text(f"\n{section.title}", style="bold"))

    def end(self, section: Section) -> None:
        """A benchmark is over, one way or the other."""
        if section.failed:
            self._console.print(Text(f"  failed: {section.failed}", style="red"))
        self._progress.advance(self._task)

    def show(self, yielded: Yielded) -> None:
        """A result has come."""
        match yielded:
            case Row():
                self._console.print(_line(yielded))
            case Curve():
                for line in chart.lines(yielded):
                    self._console.print(Text(f"  {line}", style="cyan"))
            case Missing():
                self._console.print(
                    Text(f"  not measured: {yielded.what} ({yielded.reason})", style="yellow")
                )

    def summary(self, sections: list[Section]) -> None:
        """The table at the end."""
        table = Table(title="What is required", title_justify="left", title_style="bold")
        table.add_column("figure")
        table.add_column("measured", justify="right")
        table.add_column("required", justify="right")
        table.add_column("reached")
        for row in (row for section in sections for row in section.rows if row.required is not None):
            table.add_row(Text(row.what), Text(row.shown_value), Text(row.shown_bound), _answer(row))
        if table.row_count:
            self._console.print()
            self._console.print(table)


def _line(row: Row) -> Text:
    text = Text(f"  {row.what:<58} {row.shown_value:>20}")
    if row.required is not None:
        text.append(f"  {row.shown_bound}: ").append_text(_answer(row))
    if row.note:
        text.append(f"  {row.note}", style="dim")
    return text


def _answer(row: Row) -> Text:
    return Text("yes", style="green") if row.reached else Text("no", style="bold red")
