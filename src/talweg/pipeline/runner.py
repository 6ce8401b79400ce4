"""The runner: pipelines as streaming queries of one session, watched until they end or are told to."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from talweg.errors import PipelineFailed, TalwegError
from talweg.pipeline.archive import check_incarnations
from talweg.pipeline.catalogue import Pipeline
from talweg.pipeline.compaction import compact
from talweg.pipeline.lines import lines_of, parse, understood
from talweg.pipeline.places import Sink, Source
from talweg.pipeline.table import Table, check_columns

COMPACT_EVERY: Final = 50  # batches of a pipeline that goes on
_LOOK_SECONDS: Final = 0.2
# Spark waits some seconds for a Python process of its own, and on a busy machine gives up; and queries of one
# session now and then serialise what they share while it changes. Nothing is wrong with the query then, and
# whatever it did is not done twice, so it is started again; but not for ever.
_NOT_ITS_FAULT: Final = ("Python worker failed to connect back", "Task not serializable")
RESTARTS_MAX: Final = 3


def is_sparks_fault(error: BaseException) -> bool:
    """Whether a query failed by no fault of its own, so that it may be started again."""
    return any(text in str(error) for text in _NOT_ITS_FAULT)


class RunSettings(msgspec.Struct, frozen=True):
    """Where a run keeps what it makes and how far it came, and when it ends."""

    archive: Path
    checkpoints: Path
    follow: bool = False  # else: until everything that is there now has been read
    every_seconds: float = 2.0  # between batches, when it goes on


class Progress(msgspec.Struct, frozen=True):
    """How far a pipeline has come."""

    pipeline: str
    batch: int = -1  # the last one; -1: none yet
    batch_rows: int = 0  # that it read
    rows: int = 0  # in all batches of this run
    seconds: float = 0.0  # that the last batch took
    lag: int | None = None  # messages that are there and were not read; None: not known
    left_out: int = 0  # of what it groups by time, in all batches of this run: too far behind the watermark
    state: str = "starts"  # runs, starts again, done, failed


class Run:
    """Some pipelines at work. `close` stops them."""

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Sequence[Pipeline],
        source: Source,
        sink: Sink,
        settings: RunSettings,
    ) -> None:
        self._spark = spark
        self._pipelines = {each.name: each for each in pipelines}
        self._source = source
        self._sink = sink
        self._settings = settings
        self._queries: dict[str, StreamingQuery] = {}
        self._tables: dict[str, Table] = {}
        self._progress = {name: Progress(name) for name in self._pipelines}
        self._seen: dict[str, int] = dict.fromkeys(self._pipelines, -1)  # the last batch that was told
        self._looked: dict[str, tuple[Any, str]] = {}  # which report of which query was the last
        self._restarts: dict[str, int] = dict.fromkeys(self._pipelines, 0)
        self._incarnations: Mapping[str, int] = {}

    def start(self) -> None:
        """Start all of them; raises what is wrong with any, and then none runs."""
        self._incarnations = self._source.incarnations()
        try:
            for each in self._pipelines.values():
                if each.table is not None:
                    check_incarnations(each.table(self._settings.archive), self._incarnations)
                self._queries[each.name] = self._start(each, self._incarnations)
        except BaseException:
            self.close()
            raise

    def _start(self, each: Pipeline, incarnations: Mapping[str, int]) -> StreamingQuery:
        """Raises PipelineFailed for whatever a user's function or Spark has to say against it."""
        while True:
            try:
                return self._start_once(each, incarnations)
            except TalwegError:
                raise
            except Exception as error:
                if not self._may_restart(each.name, error):
                    kind = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
                    raise PipelineFailed(f"pipeline {each.name}: {reason(f'{kind}{error}')}") from error
                self._restarts[each.name] += 1

    def _start_once(self, each: Pipeline, incarnations: Mapping[str, int]) -> StreamingQuery:
        settings = self._settings
        rows = each.transform(_given(each, self._source.open(self._spark, each.name)))
        if not isinstance(rows, DataFrame):
            raise PipelineFailed(f"pipeline {each.name}: it returned {type(rows).__name__}, not a DataFrame")
        checkpoint = settings.checkpoints / each.name
        if each.to_topic is not None:
            writer = self._sink.writer(rows, each.to_topic)
        else:
            writer = rows.writeStream.foreachBatch(self._adder(each, rows, checkpoint, incarnations))
        if settings.follow:
            writer = writer.trigger(processingTime=f"{settings.every_seconds} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def _adder(
        self, each: Pipeline, rows: DataFrame, checkpoint: Path, incarnations: Mapping[str, int]
    ) -> Callable[[DataFrame, int], None]:
        """What adds a batch to the pipeline's table."""
        archive = self._settings.archive
        if each.table is not None:
            table = each.table(archive)
        else:
            assert each.to_table is not None
            table = Table(archive / each.to_table, rows.schema)
            check_columns(self._spark, table)
        self._tables[each.name] = table

        def add(batch: DataFrame, number: int) -> None:
            if each.to_archive is not None:
                lives = {**incarnations, **incarnations_of(checkpoint, number)}
                # With --skip-lost it outlives a topic, and the next of that name has other messages.
                check_incarnations(table, lives, since=incarnations)
                each.to_archive(archive, batch, lives)
            else:
                table.add_batch(batch, _query_id(checkpoint), number)
            if number % COMPACT_EVERY == COMPACT_EVERY - 1:
                compact(batch.sparkSession, table)

        return add

    def watch(self, told_to_stop: threading.Event) -> Iterator[list[Progress]]:
        """How things are, whenever something is new, until all have ended or it is told to stop.

        Raises PipelineFailed when one has failed. Small files of what they wrote are merged at the end.
        """
        yield list(self._progress.values())
        while not told_to_stop.is_set():
            running = any(query.isActive for query in self._queries.values())
            if self._look():
                yield list(self._progress.values())
            if not self._restart_or_raise() and not running:
                break
            told_to_stop.wait(_LOOK_SECONDS)
        self.close()
        self._look()
        for table in self._tables.values():
            self._compact(table)
        yield list(self._progress.values())

    def _compact(self, table: Table) -> None:
        try:
            compact(self._spark, table)
        except TalwegError:
            raise
        except Exception as error:  # Spark's own, or Java's
            raise PipelineFailed(
                f"{table.directory}: its small files cannot be merged: {reason(str(error))}"
            ) from error

    def _look(self) -> bool:
        """Whether anything is new."""
        before = dict(self._progress)
        for name, query in self._queries.items():
            active = query.isActive
            last = query.lastProgress  # all of them are a lot to ask for, several times a second
            news = last is not None and (last.runId, last.timestamp) != self._looked.get(name)
            for told in query.recentProgress if news else ():
                self._looked[name] = (told.runId, told.timestamp)
                # A query that waits reports, too, under the number of the batch that is still to come.
                if told.batchId > self._seen[name] and "addBatch" in told.durationMs:
                    self._note(name, told)
            state = "runs" if active else self._end(name, query.exception())
            self._progress[name] = msgspec.structs.replace(self._progress[name], state=state)
        return before != self._progress

    def _end(self, name: str, error: BaseException | None) -> str:
        if error is None:
            return "done"
        return "starts again" if self._may_restart(name, error) else "failed"

    def _note(self, name: str, told: Any) -> None:
        known = self._progress[name]
        self._seen[name] = told.batchId
        self._progress[name] = msgspec.structs.replace(
            known,
            batch=told.batchId,
            batch_rows=told.numInputRows,
            rows=known.rows + told.numInputRows,
            seconds=told.batchDuration / 1000,
            lag=_lag(told),
            left_out=known.left_out + sum(each.numRowsDroppedByWatermark for each in told.stateOperators),
        )

    def _restart_or_raise(self) -> bool:
        """Whether one was started again. Raises PipelineFailed for one that failed and is not."""
        restarted = False
        for name, query in tuple(self._queries.items()):
            error = query.exception()
            if error is None:
                continue
            if not self._may_restart(name, error):
                raise PipelineFailed(f"pipeline {name}: {reason(str(error))}")
            self._restarts[name] += 1
            self._queries[name] = self._start(self._pipelines[name], self._incarnations)
            restarted = True
        return restarted

    def _may_restart(self, name: str, error: BaseException) -> bool:
        return is_sparks_fault(error) and self._restarts[name] < RESTARTS_MAX

    def close(self) -> None:
        """Stop what runs; a batch under way is given up, and done again by the next run."""
        for query in self._queries.values():
            if query.isActive:
                query.stop()


def _given(each: Pipeline, messages: DataFrame) -> DataFrame:
    if each.source == "messages":
        return messages
    return parse(messages) if each.source == "parsed" else understood(lines_of(messages))


def _query_id(checkpoint: Path) -> str:
    """Of the query that has this checkpoint: the same after every restart."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def incarnations_of(checkpoint: Path, batch: int) -> dict[str, int]:
    """Which life of each topic a batch is of, as Spark noted before it began; empty for other sources."""
    noted = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    return {
        topic: each["incarnation"]
        for topic, each in noted.items()
        if isinstance(each, dict) and "incarnation" in each
    }


def _lag(told: Any) -> int | None:
    """Messages between where a batch ended and where topics ended then."""
    lag = 0
    for source in told.sources:
        try:
            read, there = json.loads(source.endOffset), json.loads(source.latestOffset)
            for topic, ends in there.items():
                done = read.get(topic, {}).get("partitions", {})
                lag += sum(max(end - done.get(number, 0), 0) for number, end in ends["partitions"].items())
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
    return lag


_PYTHON_ERROR: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w+: (.+)$")


def reason(text: str) -> str:
    """The one line of a Spark error that says why: what Python raised last, or else what Spark says first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    traced = [number for number, line in enumerate(lines) if "Traceback (most" in line]
    for line in lines[traced[-1] :] if traced else []:
        if match := _PYTHON_ERROR.match(line):
            return match[1]
    return lines[0] if lines else "it does not say why"


def run_to_end(run: Run, show: Callable[[list[Progress]], None], told_to_stop: threading.Event) -> float:
    """Start and watch a run; returns the seconds that it took."""
    began = time.monotonic()
    try:
        run.start()
        for progress in run.watch(told_to_stop):
            show(progress)
    finally:
        run.close()
    return time.monotonic() - began
