"""Log lines: messages as typed columns, in whichever of the known formats they come.

A line that fits none, or whose time is none, keeps its place with an `error` and nothing else, so every
message is one row, whatever it says.
"""

from functools import lru_cache
from typing import Final

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from talweg.pipeline.formats import (
    JSON,
    PARTS,
    fields_of,
    format_of,
    parameters_of,
    part,
    parts_of,
    with_parameters,
)
from talweg.pipeline.json_lines import fields_of_object, object_of, parts_of_object, taken_of, whole_object
from talweg.pipeline.levels import level_of_bunyan, level_of_severity, level_of_status, level_of_word
from talweg.pipeline.messages import day
from talweg.pipeline.times import time_of, within_years

LINES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),  # when it was produced
        StructField("time", TimestampType()),  # when it happened; as `timestamp` if the line does not say
        StructField("format", StringType()),
        StructField("level", StringType()),
        StructField("host", StringType()),
        StructField("program", StringType()),
        StructField("message", StringType()),
        StructField("fields", MapType(StringType(), StringType())),
        StructField("error", StringType()),  # null: it was understood
        StructField("date", DateType()),  # of `timestamp`, as in the archive
    ]
)
BYTES_MAX: Final = 64 << 10  # of a line; regular expressions over more would hold up everybody else
PRIORITY_MAX: Final = 191  # of syslog: 24 facilities with 8 severities each
_TYPED: Final = ("time", "format", "level", "host", "program", "message", "fields")
_QUOTED_MAX: Final = 60  # characters of a line in an error
_PARAMETERS: Final = ("_names", "_values")
# Columns that are there only for those behind them.
_BETWEEN: Final = (
    "_line",
    "_format",
    "_whole",
    "_object",
    "_taken",
    "_parts",
    "_found",
    "_time",
    "_priority",
    "_fields",
    *_PARAMETERS,
)


def parse(messages: DataFrame) -> DataFrame:
    """Log lines of messages in Kafka's columns; other columns (key, value, headers) stay as they are."""
    for step in _steps(messages.sparkSession.sparkContext):
        messages = messages.withColumns(step)
    return messages.drop(*_BETWEEN)


@lru_cache(maxsize=1)
def _steps(_: SparkContext) -> tuple[dict[str, Column], ...]:
    """Columns that are added one after the other: each uses those before it more than once, and Spark then
    works them out once. They are kept: telling Spark of them takes longer than parsing a small batch.
    """
    value = fn.col("value").cast("binary")
    readable = (fn.octet_length(value) <= BYTES_MAX) & fn.is_valid_utf8(value.cast("string"))
    text = fn.rtrim(fn.ltrim(value.cast("string"), fn.lit("\ufeff")), fn.lit("\r\n "))
    line, form, object_, taken = (fn.col(name) for name in ("_line", "_format", "_object", "_taken"))
    parts, fields = fn.col("_parts"), fn.col("_fields")
    of_object = object_.isNotNull()
    return (
        {"_line": fn.when(readable, text)},
        {"_format": format_of(line)},
        {"_whole": fn.when(form == JSON, whole_object(line))},
        {"_object": object_of(fn.col("_whole"))},
        {"_taken": fn.when(of_object, taken_of(object_))},
        {"_parts": parts_of(line, form, fn.when(of_object, parts_of_object(object_, taken)))},
        {
            "_found": time_of(part(parts, "time"), fn.col("timestamp")),
            "_priority": part(parts, "priority").try_cast("int"),
            "_fields": fn.when(of_object, fields_of_object(object_, taken)).otherwise(fields_of(parts)),
        },
        {"_time": within_years(fn.col("_found"))},
        {"error": _error(), **dict(zip(_PARAMETERS, parameters_of(fields), strict=True))},
        {
            "time": fn.coalesce(fn.col("_time"), fn.col("timestamp")),
            "format": fn.col("_format"),
            "level": _level(),
            "host": part(parts, "host"),
            "program": part(parts, "program"),
            "message": fn.get(parts, fn.lit(PARTS.index("message"))),
            "fields": with_parameters(fields, *(fn.col(name) for name in _PARAMETERS)),
        },
        # Half a line is worse than none.
        {name: fn.when(fn.col("error").isNull(), fn.col(name)) for name in _TYPED},
    )


def lines_of(messages: DataFrame) -> DataFrame:
    """Every message as a row of LINES, those that could not be parsed included."""
    return parse(messages).withColumn("date", day(fn.col("timestamp"))).select(*LINES.names)


def understood(lines: DataFrame) -> DataFrame:
    """The lines that could be parsed."""
    return lines.where(fn.col("error").isNull())


def _level() -> Column:
    status = fn.col("_fields")["status"].try_cast("int")
    word, object_ = part(fn.col("_parts"), "level"), fn.col("_object")
    is_bunyan = object_["pid"].isNotNull() & object_["hostname"].isNotNull()
    return (
        fn.when(fn.col("_priority").isNotNull(), level_of_severity(fn.col("_priority") % 8))
        .when((fn.col("_format") == "access"), level_of_status(status))
        .when(is_bunyan, fn.coalesce(level_of_bunyan(word), level_of_word(word)))
        .otherwise(level_of_word(word))
    )


def _error() -> Column:
    """Why it could not be parsed; the first reason counts."""
    line, value = fn.col("_line"), fn.col("value")
    quoted = _quoted(line)
    time_text = part(fn.col("_parts"), "time")
    priority = fn.col("_priority").cast("string")
    return (
        fn.when(value.isNull(), "no value")
        .when(fn.octet_length(value.cast("binary")) > BYTES_MAX, f"line: more than {BYTES_MAX} bytes")
        .when(line.isNull(), "line: not UTF-8")
        .when(line == "", "line: empty")
        .when(fn.col("_format").isNull(), fn.concat(fn.lit("line: in no known format: "), quoted))
        .when((fn.col("_format") == JSON) & fn.col("_object").isNull(), "json: not one object, or cut off")
        .when(
            fn.col("_priority") > PRIORITY_MAX,
            fn.concat(fn.lit("syslog: priority "), priority, fn.lit(f" is beyond {PRIORITY_MAX}")),
        )
        .when(
            time_text.isNotNull() & fn.col("_time").isNull(),
            fn.concat(fn.lit("time: "), _quoted(time_text), fn.lit(" is none")),
        )
    )


def _quoted(text: Column) -> Column:
    return fn.concat(fn.lit("'"), fn.substring(text, 1, _QUOTED_MAX), fn.lit("'"))
