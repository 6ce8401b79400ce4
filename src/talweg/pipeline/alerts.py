"""Alerts: minutes in which a topic's error rate leaps far above what it was in the quarter of an hour before.

Spark's own windows here, not the counts: a minute is judged once, when the watermark has passed it, and the
streaming writer puts it into the topic exactly once.
"""

from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from talweg.pipeline.counts import DELAY_SECONDS, event_time
from talweg.pipeline.levels import is_grave

TOPIC: Final = "alerts"


class Spike(msgspec.Struct, frozen=True):
    """From when on it is one. All three must hold."""

    errors_min: int = 5  # in the minute: one failure of two requests is no spike
    rate_min: float = 0.1  # of the minute's messages
    factor_min: float = 3.0  # of the usual rate
    usual_minutes: int = 15  # before the minute, of which the usual rate is taken
    delay_seconds: int = DELAY_SECONDS


def rates_of(lines: DataFrame, delay_seconds: int = DELAY_SECONDS) -> DataFrame:
    """Messages and errors of each topic by minute, once the minute is over."""
    return (
        lines.where(fn.col("error").isNull())
        .withColumn("happened", event_time())
        .withWatermark("happened", f"{delay_seconds} seconds")
        .groupBy(fn.window("happened", "1 minute").alias("minute"), "topic")
        .agg(fn.count("*").alias("messages"), fn.count_if(is_grave(fn.col("level"))).alias("errors"))
    )


def spikes_of(lines: DataFrame, spike: Spike | None = None) -> DataFrame:
    """Each minute that is a spike: its errors, messages and rate, and the usual rate before it."""
    spike = spike or Spike()
    length = spike.usual_minutes + 1
    within = rates_of(lines, spike.delay_seconds).withColumn("begin", fn.col("minute.start"))
    # A window for each minute, which ends with it: one aggregation sees the minute and what was before.
    windows = fn.window(fn.window_time(fn.col("minute")), f"{length} minutes", "1 minute")
    ends = fn.col("stretch.end") - fn.expr("INTERVAL 1 MINUTE")
    judged = (
        within.groupBy(windows.alias("stretch"), "topic")
        .agg(fn.collect_list(fn.struct("begin", "messages", "errors")).alias("minutes"))
        .withColumn("minute", ends)
        .withColumns(
            {
                "now": fn.filter("minutes", lambda each: each["begin"] == fn.col("minute")),
                "before": fn.filter("minutes", lambda each: each["begin"] < fn.col("minute")),
            }
        )
        .withColumns(
            {
                "messages": fn.get("now", fn.lit(0))["messages"],
                "errors": fn.get("now", fn.lit(0))["errors"],
                "usual_messages": _sum("before", "messages"),
                "usual_errors": _sum("before", "errors"),
            }
        )
        .withColumns(
            {
                "rate": fn.col("errors") / fn.col("messages"),
                "usual_rate": fn.coalesce(fn.try_divide("usual_errors", "usual_messages"), fn.lit(0.0)),
            }
        )
    )
    return judged.where(
        (fn.col("errors") >= spike.errors_min)
        & (fn.col("rate") >= spike.rate_min)
        & (fn.col("rate") >= spike.factor_min * fn.col("usual_rate"))
    ).select("topic", "minute", "errors", "messages", "rate", "usual_rate")


def alerts_of(lines: DataFrame, spike: Spike | None = None) -> DataFrame:
    """Spikes as messages: JSON, under the name of the topic that they are about."""
    told = fn.struct(
        fn.lit("error_rate").alias("kind"),
        fn.col("topic"),
        fn.date_format("minute", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("minute"),
        fn.col("errors"),
        fn.col("messages"),
        fn.round("rate", 4).alias("rate"),
        fn.round("usual_rate", 4).alias("usual_rate"),
    )
    return spikes_of(lines, spike).select(
        fn.col("topic").cast("binary").alias("key"), fn.to_json(told).cast("binary").alias("value")
    )


def _sum(minutes: str, name: str) -> Column:
    return fn.aggregate(minutes, fn.lit(0).cast("bigint"), lambda total, each: total + each[name])
