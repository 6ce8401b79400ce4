"""Topics as DataFrames: `format("talweg")`, batch and streaming. `pyspark_talweg.py` lets Spark find it."""

from talweg.spark.source import TalwegSource

__all__ = ["TalwegSource"]
