"""Progress is shown as it fits whoever looks: a table without cut figures, lines, or JSON."""

import json
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from talweg.pipeline.progress import JsonLines, LiveTable, TextLines, choose_display, drawn
from talweg.pipeline.runner import Progress

# A million rows in a batch, as they are unless somebody says otherwise, and ten times as many to come.
BUSY = Progress("archive", 12, 1_000_000, 12_000_000, 8.0, 10_000_000, 0, "runs")
LATE = Progress("alert", 7, 1_000_000, 8_000_000, 4.0, 14_000_000, 123_456, "starts again")
NEW = Progress("dead-letters")
HUGE = Progress("sessions", 98_765, 1_000_000, 987_654_321_000, 2.0, 123_456_789_000, 987_654_321, "runs")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def lines(width: int, *progress: Progress) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width).print(drawn(progress, width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_table_has_a_row_for_each_pipeline_with_all_that_is_known() -> None:
    assert lines(100, BUSY, LATE, NEW) == [
        "pipeline      state         batch       rows      in all   rows/s         lag  too late",
        "archive       runs             12  1,000,000  12,000,000  125,000  10,000,000",
        "alert         starts again      7  1,000,000   8,000,000  250,000  14,000,000   123,456",
        "dead-letters  starts                                   0",
    ]


@pytest.mark.parametrize(
    ("width", "progress", "headings"),
    [
        (80, BUSY, "pipeline state batch rows in all rows/s lag too late"),
        (80, LATE, "pipeline state rows in all rows/s lag too late"),
        (80, HUGE, "pipeline state in all rows/s lag too late"),
        (62, HUGE, "pipeline state in all lag too late"),
        (50, HUGE, "pipeline state in all lag"),
        (200, HUGE, "pipeline state batch rows in all rows/s lag too late"),
    ],
)
def test_where_there_is_no_room_for_all_columns_some_are_missing_but_no_figure_is_cut(
    width: int, progress: Progress, headings: str
) -> None:
    told = lines(width, progress)
    assert " ".join(told[0].split()) == headings
    assert len(told) == 2
    assert not any("\u2026" in line for line in told)
    for figure in (progress.rows, progress.lag):
        assert f"{figure:,}" in told[1].split()
    assert all(len(line) <= width for line in told)


@pytest.mark.parametrize("width", [60, 30])
def test_where_there_is_no_room_at_all_names_are_broken_and_figures_are_not(width: int) -> None:
    name = "n" * 70
    told = lines(width, Progress(name, 1, 2, 1_000_000, 1.0, 2_000_000, 0, "runs"))
    assert {"1,000,000", "2,000,000"} <= {word for line in told for word in line.split()}
    assert sum(line.count("n") for line in told) >= len(name)
    assert all(len(line) <= width for line in told)


def test_a_terminal_shows_how_things_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    display = choose_display(as_json=False, stream=terminal)
    assert isinstance(display, LiveTable)
    display.show([NEW])
    assert "starts" in terminal.getvalue()
    before = len(terminal.getvalue())
    display.show([BUSY])
    display.close()
    shown = terminal.getvalue()[before:]
    assert "\x1b[1A" in shown  # over what stood there
    assert "10,000,000" in shown


@pytest.mark.parametrize(
    ("terminal", "stream", "as_json", "kind"),
    [
        ("xterm", Terminal, False, LiveTable),
        ("xterm", StringIO, False, TextLines),
        ("dumb", Terminal, False, TextLines),
        ("xterm", Terminal, True, JsonLines),
    ],
)
def test_what_is_shown_fits_where_it_is_shown(
    terminal: str,
    stream: Callable[[], StringIO],
    as_json: bool,
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", terminal)
    display = choose_display(as_json=as_json, stream=stream())
    display.close()
    assert type(display) is kind


def test_lines_tell_of_each_batch_and_each_state_once() -> None:
    stream = StringIO()
    display = choose_display(as_json=False, stream=stream)
    late = Progress("alert", 7, 100, 800, 0.4, 14, 3, "starts again")
    for progress in (NEW, BUSY), (NEW, BUSY), (Progress("dead-letters", state="done"), late):
        display.show(progress)
    assert stream.getvalue().splitlines() == [
        "archive: runs, batch 12, 1,000,000 rows in 8.0 s, 12,000,000 in all, lag 10,000,000",
        "dead-letters: done",
        "alert: starts again, batch 7, 100 rows in 0.4 s, 800 in all, lag 14, 3 too late",
    ]


def test_programs_are_told_in_objects() -> None:
    stream = StringIO()
    display = choose_display(as_json=True, stream=stream)
    display.show([BUSY, NEW])
    display.show([BUSY, NEW])
    (told,) = map(json.loads, stream.getvalue().splitlines())
    assert told == {
        "pipeline": "archive",
        "batch": 12,
        "batch_rows": 1_000_000,
        "rows": 12_000_000,
        "seconds": 8.0,
        "lag": 10_000_000,
        "left_out": 0,
        "state": "runs",
    }
