"""The report: tables, charts, and one HTML page that needs nothing else."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from talweg.pipeline.charts import draw_charts
from talweg.pipeline.findings import Findings, number_in

PAGE: Final = "report.html"

_LONG: Final = 32  # characters; a cell with more of them may be broken, however it is written
_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1b2733;
       max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto }
td, th { padding: .25rem .5rem; border-bottom: 1px solid #dde3e9; white-space: nowrap }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 12rem }
th { text-align: left } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100%; height: auto }
"""


class Sheet(msgspec.Struct, frozen=True):
    """One table of a report."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers_from: int = 1  # columns from here on are numbers


def sheets_of(findings: Findings) -> list[Sheet]:
    """The tables that have rows. Nothing in them breaks a line, or takes hold of a terminal."""
    topics = findings.topics
    levels = findings.levels
    counts = tuple(
        (
            topic,
            *(f"{findings.messages(topic, level):,}" for level in levels),
            f"{findings.messages(topic):,}",
            f"{findings.late(topic):,}",
            f"{findings.error_rate(topic):.1%}",
        )
        for topic in topics
    )
    archived = tuple(
        (each.topic, f"{each.messages:,}", f"{each.files:,}", f"{each.bytes:,}", f"{each.missing:,}")
        for each in findings.archived
    )
    visits = findings.visits
    made = [
        Sheet("Messages by topic and level", ("topic", *levels, "all", "late", "errors"), counts),
        Sheet("Archive", ("topic", "messages", "files", "bytes", "missing"), archived),
        Sheet("Alerts", ("topic", "minute", "errors", "messages", "rate", "usual"), _alerts(findings), 2),
        Sheet("Where errors come from", ("program, host or topic", "errors"), _counted(findings.talkers)),
        Sheet("Why lines could not be parsed", ("reason", "lines"), _counted(findings.errors)),
        Sheet("Latest errors", ("time (UTC)", "topic", "message"), findings.latest, 3),
    ]
    if visits:
        row = (
            f"{len(visits):,}",
            f"{sum(visit.requests for visit in visits) / len(visits):.1f}",
            f"{sum(visit.minutes for visit in visits) / len(visits):.1f}",
            f"{sum(1 for visit in visits if visit.errors):,}",
        )
        made.append(
            Sheet("Sessions", ("sessions", "requests each", "minutes each", "with errors"), (row,), 0)
        )
    return [_legible(sheet) for sheet in made if sheet.rows]


def write_report(findings: Findings, directory: Path) -> list[Path]:
    """The charts and the page; returns their paths, the page's last."""
    charts = draw_charts(findings, directory)
    page = directory / PAGE
    page.write_text(page_of(findings, charts), encoding="utf-8")
    return [*charts, page]


def page_of(findings: Findings, charts: Sequence[Path]) -> str:
    """HTML with everything inside. Whatever stood in a log line is text here, never markup."""
    pictures = "".join(
        f'<img alt="{html.escape(path.stem.replace("-", " "))}" '
        f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for path in charts
    )
    tables = "".join(_html_table(sheet) for sheet in sheets_of(findings))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Talweg: log report</title>'
        f"<style>{_STYLE}</style></head><body><h1>Log report</h1>"
        f"<p>{findings.messages():,} messages in {len(findings.topics)} topics.</p>"
        f"{pictures}{tables}</body></html>\n"
    )


def _html_table(sheet: Sheet) -> str:
    def cell(tag: str, number: int, text: str) -> str:
        kind = "number" if number >= sheet.numbers_from else "long" if len(text) > _LONG else "short"
        return f'<{tag} class="{kind}">{html.escape(text)}</{tag}>'

    head = "".join(cell("th", number, text) for number, text in enumerate(sheet.headings))
    body = "".join(
        f"<tr>{''.join(cell('td', number, text) for number, text in enumerate(row))}</tr>"
        for row in sheet.rows
    )
    return f"<h2>{html.escape(sheet.title)}</h2><table><tr>{head}</tr>{body}</table>"


def _alerts(findings: Findings) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            str(each.get("topic")),
            str(each.get("minute")),
            str(each.get("errors")),
            str(each.get("messages")),
            f"{number_in(each, 'rate'):.1%}",
            f"{number_in(each, 'usual_rate'):.1%}",
        )
        for each in sorted(findings.alerts, key=lambda alert: str(alert.get("minute")))
    )


def _counted(pairs: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, f"{count:,}") for name, count in pairs)


def _legible(sheet: Sheet) -> Sheet:
    rows = tuple(tuple(_printable(cell) for cell in row) for row in sheet.rows)
    return msgspec.structs.replace(sheet, rows=rows)


def _printable(text: str) -> str:
    """In one line, whatever a log line holds: blanks of any kind as one blank; a sign in place of each other
    character that cannot be seen, such as those that control terminals."""
    return "".join(each if each.isprintable() else "\ufffd" for each in " ".join(text.split()))
