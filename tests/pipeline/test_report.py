"""A report names everything that was found, draws it, and lets no log line become markup."""

import json
import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from matplotlib.image import imread
from pyspark.sql import SparkSession
from rich.console import Console

from pipeline.made import frame, message
from talweg.pipeline.archive import add_to_archive
from talweg.pipeline.counts import add_to_counts
from talweg.pipeline.findings import Findings, find
from talweg.pipeline.report import print_report, write_report
from talweg.pipeline.standard import add_to_lines

pytestmark = pytest.mark.xdist_group("spark")
ALERT = {
    "topic": "logs",
    "minute": "2026-01-31T12:05:00Z",
    "errors": 9,
    "messages": 20,
    "rate": 0.45,
    "usual_rate": 0.1,
}
NASTY = "<script>alert(1)</script> \x1b[31m [bold]x"


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    archive = tmp_path_factory.mktemp("archive")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    levels = ("INFO", "INFO", "INFO", "WARN", "ERROR")
    rows = [message(f"{levels[n % 5]} number {n}", n, seconds=6 * n) for n in range(100)]
    rows += [message(f"ERROR {NASTY}", 100, seconds=601), message("prose", 101), message("other prose", 102)]
    rows += [message("INFO x", n, topic="web", seconds=30 * n) for n in range(20)]
    messages = frame(spark, rows).coalesce(1)
    for add in (add_to_archive, add_to_lines, add_to_counts):
        add(archive, messages, {})
    return find(archive, (ALERT,))


def test_the_findings_are_what_was_sent(found: Findings) -> None:
    assert found.topics == ["logs", "web"]
    assert found.messages() == 123
    assert (found.messages("logs", "ERROR"), found.messages("logs", "UNPARSED")) == (21, 2)
    assert found.error_rate("logs") == pytest.approx(21 / 101)
    assert [(each.topic, each.messages, each.missing) for each in found.archived] == [
        ("logs", 103, 0),
        ("web", 20, 0),
    ]
    assert found.errors == (("line: in no known format: …", 2),)
    assert found.latest[0][:2] == ("2026-01-31 12:10:01", "logs")


def test_the_tables_are_printed_and_control_characters_are_not(found: Findings) -> None:
    stream = StringIO()
    print_report(found, Console(file=stream, width=160, force_terminal=False))
    text = stream.getvalue()
    for title in ("Messages by topic and level", "Archive", "Alerts", "Latest errors"):
        assert title in text
    assert "[bold]x" in text
    assert "\x1b" not in text
    assert "123 messages counted, 2 of them not parsed" in text


def test_the_charts_and_the_page_are_whole(found: Findings, tmp_path: Path) -> None:
    paths = write_report(found, tmp_path / "report")
    assert [path.name for path in paths] == [
        "messages-by-minute.png",
        "messages-by-topic.png",
        "error-rate.png",
        "report.html",
    ]
    for path in paths[:-1]:
        height, width, _ = imread(path).shape
        assert (width > 800, height > 400) == (True, True)
    page = paths[-1].read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_nothing_found_is_no_mistake(tmp_path: Path) -> None:
    nothing = find(tmp_path)
    assert nothing == Findings()
    (page,) = write_report(nothing, tmp_path / "report")
    assert "0 messages" in page.read_text()


def test_findings_are_plain_values(found: Findings) -> None:
    assert json.loads(msgspec.json.encode(found))["alerts"] == [ALERT]
