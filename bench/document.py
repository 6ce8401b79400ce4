"""The page with the figures: docs/benchmarks.md, written by a full run."""

from collections.abc import Iterable, Iterator

import msgspec

from bench import chart
from bench.results import Curve, Missing, Row, Yielded

_HEAD = """\
# Benchmarks

Written by `make bench`; the next full run replaces it. Figures of one machine on one day: the ratios
travel, the absolute ones do not."""


class Section(msgspec.Struct):
    """One benchmark, and what it has yielded so far."""

    name: str
    title: str
    about: str
    yielded: list[Yielded] = msgspec.field(default_factory=list)
    failed: str = ""  # what stopped it, if anything did

    @property
    def rows(self) -> list[Row]:
        """The figures alone."""
        return [each for each in self.yielded if isinstance(each, Row)]


class Report(msgspec.Struct):
    """A whole run."""

    date: str
    machine: dict[str, str]
    sections: list[Section]


def render(report: Report) -> str:
    """The page."""
    parts = [_HEAD, _facts(report), "## What is required", _requirements(report.sections)]
    for section in report.sections:
        parts += [f"## {section.title}", section.about, *_results(section)]
    return "\n\n".join(parts) + "\n"


def _facts(report: Report) -> str:
    return _table(["", ""], [["Date", report.date], *([name, fact] for name, fact in report.machine.items())])


def _requirements(sections: list[Section]) -> str:
    rows = [row for section in sections for row in section.rows if row.required is not None]
    cells = [[row.what, row.shown_value, row.shown_bound, answer(row)] for row in rows]
    return _table(["figure", "measured", "required", "reached"], cells)


def answer(row: Row) -> str:
    """Whether a requirement was reached, in a word."""
    return "" if row.reached is None else "yes" if row.reached else "**no**"


def _results(section: Section) -> Iterator[str]:
    rows = section.rows
    if rows:
        yield _table(["figure", "measured", ""], [[row.what, row.shown_value, row.note] for row in rows])
    for each in section.yielded:
        if isinstance(each, Curve):
            yield "\n".join(["```text", *(line.rstrip() for line in chart.lines(each)), "```"])
        elif isinstance(each, Missing):
            yield f"Not measured: {each.what} ({each.reason})."
    if section.failed:
        yield f"This benchmark failed: {section.failed}"


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
