"""Every message is counted once; late ones are counted, and told apart."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.made import NOON, frame, message
from talweg.pipeline.compaction import compact
from talweg.pipeline.counts import add_to_counts, counts_table, read_counts

pytestmark = pytest.mark.xdist_group("spark")


def line(level: str, seconds: float, offset: int, **more: Any) -> tuple[Any, ...]:
    return message(f"{level} x", offset, seconds=seconds, **more)


def counted(spark: SparkSession, archive: Path) -> dict[tuple[str, str, str], tuple[int, int, bool]]:
    return {
        (row.topic, row.level, row.minute.strftime("%H:%M")): (row.messages, row.late, row.closed)
        for row in read_counts(spark, archive).collect()
    }


def test_messages_are_counted_by_topic_level_and_minute(spark: SparkSession, archive: Path) -> None:
    rows = [line("INFO", 0, 0), line("INFO", 59, 1), line("ERROR", 60, 2), message("prose", 3, seconds=61)]
    rows += [line("INFO", 1, 0, topic="other"), message('{"msg":"m"}', 1, topic="other")]
    add_to_counts(archive, frame(spark, rows), {})
    assert counted(spark, archive) == {
        ("logs", "INFO", "12:00"): (2, 0, False),
        ("logs", "ERROR", "12:01"): (1, 0, False),
        ("logs", "UNPARSED", "12:01"): (1, 0, False),
        ("other", "INFO", "12:00"): (1, 0, False),
        ("other", "NONE", "12:00"): (1, 0, False),
    }


def test_what_comes_after_the_watermark_is_counted_as_late(spark: SparkSession, archive: Path) -> None:
    add_to_counts(archive, frame(spark, [line("INFO", 0, 0), line("INFO", 600, 1)]), {})
    # The watermark stands two minutes before 12:10; that of a topic which was not seen stands nowhere.
    late = [line("INFO", 479, 2), line("INFO", 481, 3), line("INFO", 30, 4), line("INFO", 0, 0, topic="new")]
    add_to_counts(archive, frame(spark, late), {})
    found = counted(spark, archive)
    assert found == {
        ("logs", "INFO", "12:00"): (2, 1, True),
        ("logs", "INFO", "12:07"): (1, 1, True),
        ("logs", "INFO", "12:08"): (1, 0, False),
        ("logs", "INFO", "12:10"): (1, 0, False),
        ("new", "INFO", "12:00"): (1, 0, False),
    }
    add_to_counts(archive, frame(spark, late), {})  # the batch comes again
    assert counted(spark, archive) == found
    for offset in (5, 6):
        add_to_counts(archive, frame(spark, [line("INFO", 600, offset)]), {})
    assert compact(spark, counts_table(archive)).files_after == 1
    after = counted(spark, archive)
    assert counts_table(archive).manifest().rows == len(after)  # what several batches counted is one row
    add_to_counts(archive, frame(spark, late), {})  # and is still known to be counted
    assert counted(spark, archive) == after
    assert after.pop(("logs", "INFO", "12:10")) == (3, 0, False)
    assert after == {key: value for key, value in found.items() if key[2] != "12:10"}


def test_a_clock_that_is_ahead_makes_nobody_late(spark: SparkSession, archive: Path) -> None:
    def now() -> float:
        return (datetime.now(UTC) - NOON).total_seconds()

    # The line's clock, and that of its producer.
    ahead = [
        message('{"time":"2999-01-01T00:00:00Z","level":"info"}', 0),
        line("INFO", 30 * 365 * 86_400, 0, topic="producer"),
    ]
    add_to_counts(archive, frame(spark, ahead), {})
    add_to_counts(archive, frame(spark, [line("INFO", 1, 1), line("INFO", now(), 1, topic="producer")]), {})
    counts = read_counts(spark, archive).groupBy("topic").sum("messages", "late").collect()
    assert {tuple(row) for row in counts} == {("logs", 2, 0), ("producer", 2, 0)}
