"""The pipelines that come with Talweg."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from talweg.pipeline.alerts import TOPIC, alerts_of
from talweg.pipeline.archive import add_to_archive, archive_table
from talweg.pipeline.catalogue import Pipeline
from talweg.pipeline.counts import add_to_counts, counts_table
from talweg.pipeline.dead_letters import dead_letters_of
from talweg.pipeline.lines import LINES, lines_of
from talweg.pipeline.manifest import Manifest
from talweg.pipeline.messages import offsets_in
from talweg.pipeline.sessions import sessions_of
from talweg.pipeline.table import Table


def lines_table(directory: Path) -> Table:
    """The table of parsed lines below an archive directory, those that could not be parsed included."""
    return Table(directory / "lines", LINES, by=("topic", "date"))


def add_to_lines(directory: Path, batch: DataFrame, incarnations: Mapping[str, int]) -> int:
    """Parse those messages of a batch that were not parsed yet; returns the number of lines."""

    def make(messages: DataFrame, _: Manifest) -> DataFrame:
        return lines_of(messages)

    return lines_table(directory).add_messages(batch, make, offsets_in, incarnations=incarnations)


def read_lines(spark: SparkSession, directory: Path | str, topic: str | None = None) -> DataFrame:
    """Every line that pipelines parsed, or those of a topic; with an `error` if it could not be."""
    rows = lines_table(Path(directory)).read(spark, topic)
    return rows if topic is None else rows.where(fn.col("topic") == topic)


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


STANDARD: Final = {
    each.name: each
    for each in (
        Pipeline(
            "archive",
            "Every message to Parquet, by topic and date.",
            _as_it_is,
            "messages",
            table=archive_table,
            to_archive=add_to_archive,
        ),
        Pipeline(
            "parse",
            "Log lines to typed columns; what cannot be parsed is marked.",
            _as_it_is,
            "messages",
            table=lines_table,
            with_=("dead-letters",),
            to_archive=add_to_lines,
        ),
        Pipeline(
            "dead-letters",
            "What cannot be parsed to TOPIC.dlq, with its origin and the error.",
            dead_letters_of,
            "parsed",
            to_topic="",
        ),
        Pipeline(
            "count",
            "Messages by topic, level and minute, late ones told apart.",
            _as_it_is,
            "messages",
            table=counts_table,
            to_archive=add_to_counts,
        ),
        Pipeline("alert", "Leaps of the error rate to the topic alerts.", alerts_of, "lines", to_topic=TOPIC),
        Pipeline(
            "sessions",
            "What each visitor did without a long pause.",
            sessions_of,
            "lines",
            to_table="sessions",
        ),
    )
}
