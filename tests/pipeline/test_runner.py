"""Pipelines as queries: they go on where they were left, fail with a reason, and anybody can add one."""

import json
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from pipeline.made import NOON, FileSink, FileSource, message, moment, offsets
from talweg.errors import InvalidSetting, PipelineFailed, StorageError
from talweg.pipeline import pipeline, read_archive, read_counts, read_lines, read_sessions, read_table
from talweg.pipeline.archive import add_to_archive, archive_table
from talweg.pipeline.catalogue import RESERVED, Pipeline, choose
from talweg.pipeline.manifest import read_manifest
from talweg.pipeline.runner import Progress, Run, RunSettings, reason, run_to_end
from talweg.pipeline.standard import STANDARD
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


class Stage:
    """Messages fed by a test, and pipelines run over them to the end."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.source = FileSource(directory / "source")
        self.sink = FileSink(directory / "topics")
        self.settings = RunSettings(directory / "archive", directory / "checkpoints")
        self.archive = self.settings.archive

    def feed(self, *rows: tuple[Any, ...]) -> None:
        self.source.feed(rows)

    def run(self, *pipelines: str | Pipeline) -> list[Progress]:
        chosen = [STANDARD[each] if isinstance(each, str) else each for each in pipelines]
        self.shown: list[list[Progress]] = []
        run_to_end(
            Run(self.spark, chosen, self.source, self.sink, self.settings),
            self.shown.append,
            threading.Event(),
        )
        return self.shown[-1]

    def states(self) -> set[str]:
        """Those that the last run was seen in."""
        return {each.state for progress in self.shown for each in progress}


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Stage:
    return Stage(spark, tmp_path)


def test_a_run_ends_with_what_is_there_and_the_next_goes_on_with_or_without_checkpoints(stage: Stage) -> None:
    stage.feed(*(message(f"INFO {n}", n) for n in range(5)))
    stage.feed(*(message("prose" if n == 6 else f"ERROR {n}", n, seconds=60) for n in range(5, 8)))
    progress = stage.run("archive", "parse", "count", "dead-letters")
    assert [(each.state, each.rows) for each in progress] == [("done", 8)] * 4
    shutil.rmtree(stage.settings.checkpoints / "count")
    stage.feed(message("WARN 8", 8))
    # Who lost its checkpoint begins again, and counts nothing twice.
    assert [each.rows for each in stage.run("parse", "count")] == [1, 9]
    shutil.rmtree(stage.settings.checkpoints / "archive")
    assert [each.rows for each in stage.run("archive")] == [9]
    everything = [("logs", 0, n) for n in range(9)]
    assert offsets(read_archive(stage.spark, str(stage.archive), "logs")) == everything
    lines = read_lines(stage.spark, str(stage.archive))
    assert offsets(lines) == everything
    assert [row.offset for row in lines.where("error IS NOT NULL").collect()] == [6]
    levels = read_counts(stage.spark, str(stage.archive)).groupBy("level").sum("messages").collect()
    assert {row[0]: row[1] for row in levels} == {"INFO": 5, "ERROR": 2, "UNPARSED": 1, "WARN": 1}
    (letter,) = stage.sink.read(stage.spark, "")
    assert (letter.topic, bytes(letter.value)) == ("logs.dlq", b"prose")


def hit(offset: int, seconds: float, host: str, path: str, status: int = 200) -> tuple[Any, ...]:
    clock = f"{12 + int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    line = f'{host} - - [31/Jan/2026:{clock} +0000] "GET {path} HTTP/1.1" {status} 10 "-" "agent"'
    return message(line, offset, topic="web", seconds=seconds)


def test_sessions_end_with_a_pause_and_come_once(stage: Stage) -> None:
    stage.feed(hit(0, 0, "a", "/in"), hit(1, 600, "a", "/out", 500), hit(2, 30, "b", "/"))
    stage.run("sessions")
    assert read_sessions(stage.spark, stage.archive).count() == 0  # they may go on
    stage.feed(hit(3, 4000, "a", "/again"))
    stage.feed(hit(4, 4001, "c", "/"))
    stage.run("sessions")
    found = read_sessions(stage.spark, str(stage.archive)).collect()
    assert {(row.host, row.requests, row.errors, row.first_path, row.last_path) for row in found} == {
        ("a", 2, 1, "/in", "/out"),
        ("b", 1, 0, "/", "/"),
    }
    shutil.rmtree(stage.settings.checkpoints)
    with pytest.raises(PipelineFailed, match="was written by another query"):
        stage.run("sessions")
    assert read_sessions(stage.spark, stage.archive).count() == 2


def test_a_leap_of_the_error_rate_is_told_once(stage: Stage) -> None:
    def minute(number: int, errors: int, total: int) -> list[tuple[Any, ...]]:
        return [
            message(f"{'ERROR' if n < errors else 'INFO'} x", 100 * number + n, seconds=60 * number + n / 2)
            for n in range(total)
        ]

    # A minute in twenty with an error is usual; the sixth has a third of them; the eighth too few to say.
    quiet = [row for number in range(5) for row in minute(number, 1, 20)]
    stage.feed(*quiet, *minute(5, 10, 30), *minute(6, 1, 20), *minute(7, 4, 4))
    stage.feed(message("INFO later", 9000, seconds=3600))
    stage.run("alert")
    stage.feed(message("INFO later still", 9001, seconds=7200))
    (progress,) = stage.run("alert")
    assert progress.left_out == 0
    stage.feed(message("ERROR far too late", 9002, seconds=60))
    (progress,) = stage.run("alert")
    assert progress.left_out == 1
    (alert,) = stage.sink.read(stage.spark, "alerts")
    assert bytes(alert.key) == b"logs"
    assert json.loads(bytes(alert.value)) == {
        "kind": "error_rate",
        "topic": "logs",
        "minute": "2026-01-31T12:05:00Z",
        "errors": 10,
        "messages": 30,
        "rate": 0.3333,
        "usual_rate": 0.05,
    }


def test_a_producer_whose_clock_is_ahead_makes_nobody_too_late(stage: Stage) -> None:
    ahead, now = 30 * 365 * 86_400, (datetime.now(UTC) - NOON).total_seconds()
    for offset, seconds in enumerate(
        (ahead, now, now)
    ):  # a batch each; a watermark holds from the next but one
        clock = moment(seconds).strftime("%d/%b/%Y:%H:%M:%S +0000")
        stage.feed(message(f'h - - [{clock}] "GET / HTTP/1.1" 500 10 "-" "agent"', offset, seconds=seconds))
    progress = stage.run("alert", "sessions")
    assert [(each.rows, each.left_out) for each in progress] == [(3, 0), (3, 0)]


def test_anybody_adds_a_pipeline_with_a_file(stage: Stage) -> None:
    (slow,) = choose([str(ROOT / "examples/pipelines/slow_requests.py")], STANDARD)
    stage.feed(message("WARN request 1 took 19 ms", 0), message("WARN request 2 took 83 ms", 1))
    stage.run(slow)
    (row,) = stage.sink.read(stage.spark, "slow")
    assert (row.key, row.value) == ("logs", "request 2 took 83 ms")


def test_a_users_table_grows_once_for_each_batch(stage: Stage) -> None:
    @pipeline(to_table="sizes", source="messages")
    def sizes(messages: Any) -> Any:
        return messages.selectExpr("offset", "length(value) AS bytes")

    stage.feed(message("four", 0))
    stage.run(sizes)
    stage.feed(message("sixsix", 1))
    stage.run(sizes)
    # As Spark does after a crash before it noted its last batch.
    last = max(
        (stage.settings.checkpoints / "sizes" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    stage.run(sizes)
    assert sorted(map(tuple, read_table(stage.spark, stage.archive, "sizes").collect())) == [(0, 4), (1, 6)]
    with pytest.raises(StorageError, match="size: no table"):
        read_table(stage.spark, stage.archive, "size")


def test_a_users_table_keeps_the_columns_that_a_later_version_does_not_write(stage: Stage) -> None:
    def version(*columns: str) -> Pipeline:
        return Pipeline("mine", "", lambda lines: lines.selectExpr(*columns), "messages", to_table="mine")

    text = "CAST(value AS STRING)"
    for number in range(3):  # each a batch and a file, and too few to be merged
        stage.feed(message(f"row {number}", number))
    stage.run(version("offset", f"{text} AS text"))
    for number in range(3, 7):
        stage.feed(message(f"row {number}", number))
    stage.run(version("offset", f"upper({text}) AS loud"))
    rows = read_table(stage.spark, stage.archive, "mine").orderBy("offset").select("text", "loud").collect()
    assert [tuple(row) for row in rows] == [
        *((f"row {number}", None) for number in range(3)),
        *((None, f"ROW {number}") for number in range(3, 7)),
    ]
    assert len(read_manifest(stage.archive / "mine").files) == 4  # those of the second version are one
    for name in ("offset", "OFFSET"):  # Spark could not tell them apart
        with pytest.raises(
            StorageError, match=f"mine: column {name} is bigint there, and would be string now"
        ):
            stage.run(version(f"CAST(offset AS STRING) AS {name}"))


def test_a_pipeline_that_fails_says_why_and_the_others_stop(stage: Stage) -> None:
    @pipeline(to_topic="out")
    def broken(lines: Any) -> Any:
        return lines.selectExpr("raise_error('no bread today') AS value")

    stage.feed(message("INFO x", 0))
    with pytest.raises(PipelineFailed, match=r"pipeline broken: .*no bread today"):
        stage.run("count", broken)
    assert list(stage.spark.streams.active) == []


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda lines: lines.select("colour"), "colour.* cannot be resolved"),
        (lambda lines: lines.groupBy("level").count(), "output mode"),
        (lambda lines: lines.nonsense, "AttributeError|ATTRIBUTE"),
        (lambda lines: {}["level"], "KeyError: 'level'"),
        (lambda lines: None, "it returned NoneType, not a DataFrame"),
    ],
)
def test_a_mistake_in_a_users_pipeline_is_told_in_a_line(stage: Stage, mistake: Any, said: str) -> None:
    stage.feed(message("INFO x", 0))
    with pytest.raises(PipelineFailed, match=rf"pipeline mistaken: .*({said})") as caught:
        stage.run("count", Pipeline("mistaken", "", mistake, to_table="mistaken"))
    assert "\n" not in str(caught.value)
    assert list(stage.spark.streams.active) == []


def test_a_batch_after_a_while_of_waiting_is_told_of(stage: Stage) -> None:
    interval = "spark.sql.streaming.noDataProgressEventInterval"  # in which a query says that it waits
    before = stage.spark.conf.get(interval)
    stage.spark.conf.set(interval, "50")
    settings = msgspec.structs.replace(stage.settings, follow=True, every_seconds=0.05)
    running = Run(stage.spark, [STANDARD["archive"]], stage.source, stage.sink, settings)
    told_to_stop = threading.Event()
    running.start()
    try:
        (query,) = stage.spark.streams.active
        for number in range(2):
            stage.feed(message(f"INFO {number}", number))
            wait_until(lambda: waits_for(query, number + 1), "it to wait for more", 240)  # noqa: B023
        told_to_stop.set()
        *_, last = running.watch(told_to_stop)
    finally:
        running.close()
        stage.spark.conf.set(interval, before)
    assert [(each.batch, each.rows) for each in last] == [(1, 2)]


def waits_for(query: Any, batch: int) -> bool:
    last = query.lastProgress
    return last is not None and last.batchId == batch and "addBatch" not in last.durationMs


TOO_LATE = "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("why", "failures", "ends_well"),
    [(TOO_LATE, 2, True), ("Task not serializable", 1, True), (TOO_LATE, 4, False)],
)
def test_a_query_that_failed_by_no_fault_of_its_own_is_started_again(
    stage: Stage, why: str, failures: int, ends_well: bool
) -> None:
    calls: list[int] = []

    def add(directory: Path, batch: Any, incarnations: Any) -> int:
        calls.append(1)
        if len(calls) <= failures:
            raise RuntimeError(why)
        return add_to_archive(directory, batch, incarnations)

    late = Pipeline("late", "", lambda frame: frame, "messages", table=archive_table, to_archive=add)
    stage.feed(message("INFO x", 0))
    if ends_well:
        assert [(each.state, each.rows) for each in stage.run(late)] == [("done", 1)]
        assert offsets(read_archive(stage.spark, stage.archive)) == [("logs", 0, 0)]
        assert "failed" not in stage.states()
    else:
        with pytest.raises(PipelineFailed, match="pipeline late: Python worker failed to connect back"):
            stage.run(late)
        assert "failed" in stage.states()
    assert len(calls) == min(failures, 3) + 1


def test_files_and_names_that_make_no_pipeline_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("import nothing_of_the_sort\n")
    for name, expected in [
        ("archiv", "archiv: no such pipeline; expected archive, parse"),
        (str(tmp_path / "gone.py"), "gone.py: no such Python file"),
        (str(tmp_path / "empty.py"), "empty.py: makes no pipeline"),
        (str(tmp_path / "broken.py"), "broken.py: ModuleNotFoundError: No module named"),
    ]:
        with pytest.raises(InvalidSetting, match=expected):
            choose([name], STANDARD)
    with pytest.raises(InvalidSetting, match="count: more than one pipeline"):
        choose(["count", "count"], STANDARD)
    with pytest.raises(InvalidSetting, match="either to_topic or to_table"):
        pipeline()
    (tmp_path / "taken.py").write_text(
        "from talweg.pipeline import pipeline\n\n"
        "@pipeline(to_topic='t', name='count')\ndef mine(lines):\n    return lines\n"
    )
    with pytest.raises(InvalidSetting, match="count: there is a pipeline of that name"):
        choose([str(tmp_path / "taken.py")], STANDARD)


def test_a_file_may_have_dataclasses_and_is_no_module_afterwards(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from talweg.pipeline import pipeline\n\n@dataclass\nclass Limit:\n    ms: int = 50\n\n"
        "@pipeline(to_topic='slow')\ndef slow(lines):\n    return lines.where(f'ms > {Limit().ms}')\n"
    )
    (slow,) = choose([str(tmp_path / "json.py")], STANDARD)
    assert slow.transform.__module__ not in sys.modules
    assert sys.modules["json"] is json


def test_a_file_that_needs_spark_to_be_loaded_is_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "from pyspark.sql.functions import udf\n\n@udf('string')\ndef loud(text):\n    return text.upper()\n"
    )
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    tried = (  # here Spark runs, for the other tests
        "import sys; from pathlib import Path; from talweg.errors import InvalidSetting\n"
        "from talweg.pipeline.catalogue import load_file, needs_session\n"
        "for name in sys.argv[1:]:\n"
        "    try: load_file(Path(name))\n"
        "    except InvalidSetting as error: print(needs_session(error))\n"
    )
    files = [str(tmp_path / name) for name in ("loud.py", "wrong.py")]
    found = subprocess.run([sys.executable, "-c", tried, *files], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("name", ["", "../outside", "/etc/talweg", "a/b", ".hidden", "_manifests", "x" * 101])
def test_names_that_could_not_be_directories_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match=r"to_table .*: expected up to 100 letters"):
        pipeline(to_table=name)
    if name:  # without one, the function's
        with pytest.raises(InvalidSetting, match=r"name .*: expected up to 100 letters"):
            pipeline(to_topic="t", name=name)(lambda lines: lines)


def test_no_table_of_a_user_takes_the_place_of_ours(tmp_path: Path) -> None:
    ours = {each.table(tmp_path).directory.name for each in STANDARD.values() if each.table is not None}
    ours |= {each.to_table for each in STANDARD.values() if each.to_table is not None}
    assert ours < RESERVED
    for name in RESERVED:
        with pytest.raises(InvalidSetting, match=f"to_table '{name}' is taken"):
            pipeline(to_table=name)


def test_what_belongs_to_a_pipeline_runs_with_it() -> None:
    assert [each.name for each in choose(["parse"], STANDARD)] == ["parse", "dead-letters"]
    assert [each.name for each in choose(["dead-letters", "parse"], STANDARD)] == ["dead-letters", "parse"]


def test_the_reason_is_what_was_raised_last() -> None:
    text = (
        "[X] Reason: Traceback (most recent call last):\n  File\ntalweg.errors.StorageError: a b\n\nat java"
    )
    assert reason(text) == "a b"
    assert reason("[SPARK] first line\nmore") == "[SPARK] first line"
    assert reason("") == "it does not say why"
