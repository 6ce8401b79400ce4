"""Log pipelines on Spark: functions from DataFrame to DataFrame, and what runs them."""

from talweg.pipeline.archive import read_archive
from talweg.pipeline.catalogue import Pipeline, pipeline
from talweg.pipeline.counts import read_counts
from talweg.pipeline.lines import parse
from talweg.pipeline.session import open_session
from talweg.pipeline.sessions import read_sessions
from talweg.pipeline.standard import read_lines
from talweg.pipeline.table import read_table
from talweg.pipeline.whole_topic import whole_topic

__all__ = [
    "Pipeline",
    "open_session",
    "parse",
    "pipeline",
    "read_archive",
    "read_counts",
    "read_lines",
    "read_sessions",
    "read_table",
    "whole_topic",
]
