"""Sessions: what one visitor did without a long pause, from access logs.

Sessions rather than deduplication: producers here are idempotent and every sink writes once, so there is
little left to deduplicate, while counts by the minute cannot say how long people stay and where they leave.
"""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from talweg.pipeline.counts import DELAY_SECONDS, event_time
from talweg.pipeline.levels import is_grave
from talweg.pipeline.table import Table

PAUSE_MINUTES: Final = 30  # without a request, and a session is over

SESSIONS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("host", StringType()),
        StructField("agent", StringType()),
        StructField("started", TimestampType()),
        StructField("ended", TimestampType()),
        StructField("requests", LongType()),
        StructField("errors", LongType()),
        StructField("first_path", StringType()),
        StructField("last_path", StringType()),
    ]
)


def sessions_table(directory: Path) -> Table:
    """The table of sessions below an archive directory."""
    return Table(directory / "sessions", SESSIONS)


def sessions_of(
    lines: DataFrame, pause_minutes: int = PAUSE_MINUTES, delay_seconds: int = DELAY_SECONDS
) -> DataFrame:
    """One row for each session, once it is over. A visitor is an address with an agent."""
    return (
        lines.where(fn.col("format") == "access")
        .withColumns(
            {
                "happened": event_time(),
                "path": fn.col("fields")["path"],
                # Grouping by null would hold sessions together as well, but reads worse.
                "agent": fn.coalesce(fn.col("fields")["agent"], fn.lit("-")),
            }
        )
        .withWatermark("happened", f"{delay_seconds} seconds")
        .groupBy(fn.session_window("happened", f"{pause_minutes} minutes"), "topic", "host", "agent")
        .agg(
            fn.min("happened").alias("started"),
            fn.max("happened").alias("ended"),
            fn.count("*").alias("requests"),
            fn.count_if(is_grave(fn.col("level"))).alias("errors"),
            fn.min_by("path", "happened").alias("first_path"),
            fn.max_by("path", "happened").alias("last_path"),
        )
        .select(*SESSIONS.names)
    )


def read_sessions(spark: SparkSession, directory: Path | str) -> DataFrame:
    """Every session that is over."""
    return sessions_table(Path(directory)).read(spark)
