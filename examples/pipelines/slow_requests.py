"""Requests that took long, to a topic of their own.

talweg pipeline run examples/pipelines/slow_requests.py
"""

from pyspark.sql import DataFrame

from talweg.pipeline import pipeline


@pipeline(to_topic="slow")
def slow_requests(lines: DataFrame) -> DataFrame:
    """Lines that say `took N ms` with more than 50 of them."""
    took = "try_cast(regexp_extract(message, 'took ([0-9]+) ms', 1) AS INT)"
    return lines.where(f"{took} > 50").selectExpr("topic AS key", "message AS value")
