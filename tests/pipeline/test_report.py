"""A report names everything that was found, draws it, and lets no log line become markup."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.image import imread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructField, StructType

from cli.shell import Shell
from pipeline.made import frame, message, moment
from spark.scene import Scene
from talweg.cli.pipeline import _objects, _print_tables
from talweg.client.producer import Producer
from talweg.pipeline.alerts import TOPIC as ALERTS
from talweg.pipeline.archive import add_to_archive
from talweg.pipeline.compaction import FILES_MIN, compact
from talweg.pipeline.counts import add_to_counts, counts_table
from talweg.pipeline.findings import ORDER, ArchivedTopic, Findings, Minute, Visit, find
from talweg.pipeline.messages import MESSAGES
from talweg.pipeline.report import page_of, sheets_of, write_report
from talweg.pipeline.sessions import SESSIONS, sessions_table
from talweg.pipeline.standard import add_to_lines, lines_table
from talweg.pipeline.times import FIRST_US

pytestmark = pytest.mark.xdist_group("spark")
ALERT = {
    "topic": "logs",
    "minute": "2026-01-31T12:05:00Z",
    "errors": 9,
    "messages": 20,
    "rate": 0.45,
    "usual_rate": 0.1,
}
HIT = '1.2.3.4 - - [31/Jan/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "a"'
CHARTS = ("messages-by-minute.png", "messages-by-topic.png", "error-rate.png")
NASTY = "<script>alert(1)</script> \x1b[31m [bold]x"


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two topics."""
    archive = tmp_path_factory.mktemp("archive")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    levels = ("INFO", "INFO", "INFO", "WARN", "ERROR")
    rows = [message(f"{levels[n % 5]} number {n}", n, seconds=6 * n) for n in range(100)]
    rows += [message(f"ERROR {NASTY}", 100, seconds=601), message("prose", 101)]
    rows += [message("other\nprose", 102)]  # the same reason, however many lines it has
    rows += [message("INFO x", n, topic="web", seconds=30 * n) for n in range(20)]
    messages = frame(spark, rows).coalesce(1)
    for add in (add_to_archive, add_to_lines, add_to_counts):
        add(archive, messages, {})
    return archive


@pytest.fixture
def found(told: Path) -> Findings:
    return find(told, (ALERT,))


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


def test_the_tables_hold_what_was_found(found: Findings) -> None:
    made = msgspec.structs.replace(
        found,
        visits=(Visit(0.0, 1, 0), Visit(4.0, 5, 2)),
        archived=(ArchivedTopic("logs", files=2, bytes=4508, messages=103, missing=7),),
        alerts=(ALERT | {"minute": "2026-01-31T12:07:00Z", "topic": "web"}, ALERT),
    )
    sheets = {each.title: each for each in sheets_of(made)}
    counts, alerts = sheets["Messages by topic and level"], sheets["Alerts"]
    assert counts.headings == ("topic", "INFO", "WARN", "ERROR", "UNPARSED", "all", "late", "errors")
    assert counts.rows == (
        ("logs", "60", "20", "21", "2", "103", "0", "20.8%"),
        ("web", "20", "0", "0", "0", "20", "0", "0.0%"),
    )
    assert alerts.headings == ("topic", "minute", "errors", "messages", "rate", "usual")
    assert alerts.rows == (
        ("logs", "2026-01-31T12:05:00Z", "9", "20", "45.0%", "10.0%"),
        ("web", "2026-01-31T12:07:00Z", "9", "20", "45.0%", "10.0%"),
    )
    assert sheets["Sessions"].rows == (("2", "3.0", "2.0", "1"),)
    assert sheets["Archive"].headings == ("topic", "messages", "files", "bytes", "missing")
    assert sheets["Archive"].rows == (("logs", "103", "2", "4,508", "7"),)


# What logs hold, and how it is shown: IPv6 hosts among them, which are no emoji, and markup, which is none.
ODD = {
    "2001:100:db8::1 [bold]x[/]": "2001:100:db8::1 [bold]x[/]",
    "boom\n\tat a.B(C.java:1)\r\n": "boom at a.B(C.java:1)",
    "10\u202f% at 12\u00a0h": "10 % at 12 h",
    "\x1b[31mred\x00": "\ufffd[31mred\ufffd",
    "\u202eleft": "\ufffdleft",
}


def test_texts_are_shown_as_they_are_in_one_line_and_without_control_characters(
    capfd: pytest.CaptureFixture[str],
) -> None:
    odd = Findings(
        errors=tuple((text, 1) for text in ODD),
        talkers=tuple((text, 1) for text in ODD),
        latest=tuple(("2026-01-31 12:10:01", "logs", text) for text in ODD),
        alerts=tuple(ALERT | {"topic": text} for text in ODD),
    )
    for sheet in sheets_of(odd):
        texts = [row[-1] if sheet.title == "Latest errors" else row[0] for row in sheet.rows]
        assert texts == list(ODD.values())
    _print_tables(odd)
    printed = capfd.readouterr().out
    assert [printed.count(text) for text in ODD.values()] == [4] * len(ODD)


def test_no_figure_is_cut_however_many_columns_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    minutes = (Minute("t" * 60, level, moment(0), 123_456_000 + n, 7) for n, level in enumerate(ORDER))
    _print_tables(Findings(minutes=tuple(minutes)))
    _, headings, row, *_ = capfd.readouterr().out.splitlines()
    figures = [f"{123_456_000 + n:,}" for n in range(8)]
    assert row.split() == ["t" * 60, *figures, f"{8 * 123_456_000 + 28:,}", "56", "28.6%"]
    assert headings.split() == ["topic", *ORDER, "all", "late", "errors"]
    assert (headings.index("late") + 4, headings.index("errors") + 6) == (row.index(" 56") + 3, len(row))


def test_the_command_says_what_was_found_and_where_the_rest_is(
    told: Path, scene: Scene, tmp_path: Path
) -> None:
    talweg, output = Shell(scene.cluster.servers), tmp_path / "to" / "show"
    command = ("pipeline", "report", "--archive", told, "--output", output)
    ended = talweg(*command)
    assert ended.err == ""  # nobody has raised an alert, and nothing is wrong with that
    assert "Alerts" not in ended.lines
    for title in ("Messages by topic and level", "Archive", "Latest errors"):
        assert title in ended.lines
    assert "123 messages counted, 2 of them not parsed" in ended.lines
    paths = [output / name for name in (*CHARTS, "report.html")]
    assert ended.lines[-4:] == [str(path) for path in paths]
    assert all(path.is_file() for path in paths)
    assert not (told / "report").exists()

    scene.create(1, ALERTS)
    try:
        with Producer(servers=scene.cluster.servers) as producer:
            producer.send_many(ALERTS, [json.dumps(ALERT).encode(), b"no alert"])
        as_json = talweg(*command, "--json").json
    finally:
        with scene.cluster.ask() as manager:
            manager.delete(f"/topics/{ALERTS}")
    assert as_json["files"] == [str(path) for path in paths]
    assert as_json["findings"]["alerts"] == [ALERT]
    assert sum(each["messages"] for each in as_json["findings"]["minutes"]) == 123


def test_what_was_found_is_told_where_nothing_can_be_written(
    told: Path, scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    command = ("pipeline", "report", "--archive", told, "--output", tmp_path / "file" / "report")
    ended = Shell(scene.cluster.servers)(*command, code=1)
    assert "123 messages counted, 2 of them not parsed" in ended.lines
    assert ended.err.startswith(f"talweg: {tmp_path / 'file' / 'report'}: Not a directory; --output DIR puts")


def test_the_charts_and_the_page_are_whole(found: Findings, tmp_path: Path) -> None:
    paths = write_report(found, tmp_path / "report")
    assert [path.name for path in paths] == [*CHARTS, "report.html"]
    for path in paths[:-1]:
        height, width, _ = imread(path).shape
        assert (width > 800, height > 400) == (True, True)
    page = paths[-1].read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_a_page_breaks_what_is_long_and_nothing_else() -> None:
    long = "x" * 160
    page = page_of(Findings(latest=(("2026-01-31 12:10:01", "t" * 249, long),), talkers=(("nginx", 7),)), ())
    cells = re.findall(r'<td class="(\w+)">([^<]*)</td>', page)
    assert cells == [
        ("short", "nginx"),
        ("number", "7"),
        ("short", "2026-01-31 12:10:01"),
        ("long", "t" * 249),
        ("long", long),
    ]
    assert "td.long { white-space: normal; overflow-wrap: anywhere" in page


def test_files_that_were_merged_and_files_that_were_not_are_read_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    # As the source has them: not null. Merging forgets that, so the two sorts of files differ.
    never_null = StructType([StructField(f.name, f.dataType, f.name in ("key", "value")) for f in MESSAGES])
    for n in range(FILES_MIN + 1):
        rows = [message(f"ERROR {n}", n, headers=[])]
        if n == 0:
            rows.append(message("INFO once", 0, topic="web", headers=[]))
        batch = spark.createDataFrame(rows, never_null).coalesce(1)
        for add in (add_to_lines, add_to_counts):
            add(tmp_path, batch, {})
    for table in (lines_table(tmp_path), counts_table(tmp_path)):
        compact(spark, table)
    assert sorted(file.rows for file in lines_table(tmp_path).manifest().files) == [1, FILES_MIN + 1]
    told = find(tmp_path)
    assert (told.messages("logs"), told.messages("web")) == (FILES_MIN + 1, 1)
    assert (told.talkers, len(told.latest)) == ((("logs", FILES_MIN + 1),), FILES_MIN + 1)


# Timestamps that anybody may give a message, in microseconds: the ends of what there are, nanoseconds taken
# for microseconds, long before the year 1, and the first moment of it.
EXTREMES = (2**63 - 1, 1_769_857_353 * 10**9, -(10**17), -(2**63), FIRST_US)


def test_no_timestamp_is_too_odd_for_a_report(spark: SparkSession, tmp_path: Path) -> None:
    texts = ("ERROR x", "21:52:23\tERROR\tP1-1\tT1", "<11>Jan 31 11:00:00 box app: x", HIT)
    messages = frame(spark, [message(text, n) for n, text in enumerate(texts * len(EXTREMES))])
    odd = fn.get(fn.array(*map(fn.lit, EXTREMES)), fn.floor(fn.col("offset") / len(texts)).cast("int"))
    messages = messages.withColumn("timestamp", fn.timestamp_micros(odd)).coalesce(1)
    for add in (add_to_archive, add_to_lines, add_to_counts):
        add(tmp_path, messages, {})
    sessions_table(tmp_path).add_batch(visits(spark, (2**63 - 1, 2**63 - 1), (-(2**63), 0)), "query", 0)
    found = find(tmp_path)
    assert found.messages() == len(texts) * len(EXTREMES)
    assert [visit.minutes for visit in found.visits] == [0, -FIRST_US / 60e6]
    assert {each.minute.year for each in found.minutes} <= {1, 2026, datetime.now(UTC).year}
    assert found.latest[0][0] == "9999-12-31 23:59:59"
    assert len(write_report(found, tmp_path / "report")) == 5


def visits(spark: SparkSession, *times_us: tuple[int, int]) -> DataFrame:
    """Sessions from here to there."""
    rows = [("t", "h", "a", begin, end, 1, 0, "/", "/") for begin, end in times_us]
    types = {"started": "bigint", "ended": "bigint", "requests": "bigint", "errors": "bigint"}
    made = spark.createDataFrame(rows, ", ".join(f"{n} {types.get(n, 'string')}" for n in SESSIONS.names))
    times = {name: fn.timestamp_micros(fn.col(name)) for name in ("started", "ended")}
    return made.withColumns(times).coalesce(1)


class Watched(list[Minute]):
    """Knows how often somebody went through it."""

    passes = 0

    def __iter__(self) -> Iterator[Minute]:
        self.passes += 1
        return super().__iter__()


def test_many_minutes_are_added_up_once_and_not_for_each_topic() -> None:
    minutes = Watched(
        Minute(f"topic-{n}", level, moment(0), n, 1) for n in range(20) for level in ("INFO", "ERROR")
    )
    (counts,) = sheets_of(Findings(minutes=minutes))
    assert counts.rows[3] == ("topic-11", "11", "11", "22", "2", "50.0%")
    assert minutes.passes <= 3


@pytest.mark.parametrize("rate", ["high", None, [1], True, 1, 10**400])
def test_an_alert_of_anybodys_is_no_mistake(tmp_path: Path, rate: Any) -> None:
    alerts = tuple(
        {"topic": "t", "minute": minute, "rate": rate, "usual_rate": rate}
        for minute in ("2026-01-31T12:00:00Z", "0001-01-01T00:00:00+05:00", None)
    )
    minute = Minute("t", "INFO", datetime(2026, 1, 31, 12, tzinfo=UTC), 1, 0)
    assert len(write_report(Findings(minutes=(minute,), alerts=alerts), tmp_path)) == 4


def test_clocks_that_were_never_set_are_on_no_time_axis(tmp_path: Path) -> None:
    unset = Minute("t", "INFO", datetime(1, 1, 1, tzinfo=UTC), 1, 0)
    assert [path.name for path in write_report(Findings(minutes=(unset,)), tmp_path)] == [
        "messages-by-topic.png",
        "report.html",
    ]
    told = [Minute("t", "INFO", datetime(2026, 1, 31, 12, each, tzinfo=UTC), 1, 0) for each in range(9)]
    assert len(write_report(Findings(minutes=(unset, *told)), tmp_path)) == 4


def test_nothing_found_is_no_mistake(tmp_path: Path) -> None:
    nothing = find(tmp_path)
    assert nothing == Findings()
    (page,) = write_report(nothing, tmp_path / "report")
    assert "0 messages" in page.read_text()


def test_findings_are_plain_values(found: Findings) -> None:
    assert json.loads(msgspec.json.encode(found))["alerts"] == [ALERT]


def test_what_is_no_alert_among_alerts_is_passed_over() -> None:
    deep = b'{"a":' + b"[" * 10_000
    assert _objects([b'{"a":1}', None, b"[]", b"{", b'{"a":"\xff"}', deep, b"{}"]) == ({"a": 1}, {})
