"""Dead letters: messages that could not be parsed, set aside in `<topic>.dlq`, and the way back.

A dead letter is the message as it was: key, value and headers, with more of these that say where and when it
was written, and why it is here. Any message can be set aside: one that could not would end every run that
comes to it.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from talweg.pipeline.messages import HEADERS
from talweg.pipeline.names import SUFFIX, TOPIC_LENGTH_MAX, dead_letter_topic_of

ATTEMPTS_MAX: Final = 3  # after which a letter is sent back no more
HEADERS_MAX: Final = 10_000  # of a message
_PREFIX: Final = "talweg.dlq."
TOPIC, PARTITION, OFFSET, TIMESTAMP, ERROR, ATTEMPT = (
    f"{_PREFIX}{name}" for name in ("topic", "partition", "offset", "timestamp", "error", "attempt")
)
_OURS: Final = 6  # headers that a dead letter has of us
_COUNTED_MAX: Final = 2**31 - 2  # attempts; anybody may have written any number there
# What a topic can be called: a letter that somebody made may say anything of where it came from.
_TOPIC_NAME: Final = rf"\A(?!__)(?!\.{{1,2}}\z)[A-Za-z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}\z"


def dead_letters_of(parsed: DataFrame) -> DataFrame:
    """Those that have an error, as messages for `<topic>.dlq`. A dead letter's own errors go nowhere else."""
    before = fn.coalesce(header("headers", ATTEMPT).try_cast("int"), fn.lit(0))
    own, room = _others("headers"), HEADERS_MAX - _OURS
    left_out = fn.size(own) - room
    told = fn.concat(fn.lit("; without the last "), left_out.cast("string"), fn.lit(" of its own headers"))
    ours = {
        TOPIC: fn.col("topic"),
        PARTITION: fn.col("partition").cast("string"),
        OFFSET: fn.col("offset").cast("string"),
        TIMESTAMP: fn.unix_micros("timestamp").cast("string"),
        ERROR: fn.concat(fn.col("error"), fn.when(left_out > 0, told).otherwise("")),
        ATTEMPT: (fn.least(before, fn.lit(_COUNTED_MAX)) + 1).cast("string"),
    }
    assert len(ours) == _OURS
    return parsed.where(fn.col("error").isNotNull() & ~fn.col("topic").endswith(SUFFIX)).select(
        "key",
        "value",
        dead_letter_topic_of(fn.col("topic")).alias("topic"),
        fn.concat(fn.slice(own, 1, room), _headers(ours)).cast(HEADERS).alias("headers"),
    )


def may_go_back(attempts_max: int = ATTEMPTS_MAX) -> Column:
    """Whether a dead letter says where it came from, and was not set aside too often."""
    attempt = fn.coalesce(header("headers", ATTEMPT).try_cast("int"), fn.lit(1))
    return header("headers", TOPIC).rlike(_TOPIC_NAME) & (attempt <= attempts_max)


def redriven(letters: DataFrame, attempts_max: int = ATTEMPTS_MAX) -> DataFrame:
    """Dead letters as messages for the topics that they came from. The count of attempts goes along.

    With the timestamps that they had there, if they say so: a line that says no more than the time of day, or
    nothing, would be counted as of now.
    """
    kept = _headers({ATTEMPT: header("headers", ATTEMPT)})
    return letters.where(may_go_back(attempts_max)).select(
        "key",
        "value",
        header("headers", TOPIC).alias("topic"),
        fn.timestamp_micros(header("headers", TIMESTAMP).try_cast("bigint")).alias("timestamp"),
        fn.concat(_others("headers"), kept).cast(HEADERS).alias("headers"),
    )


def header(column: str, name: str) -> Column:
    """The text of the last header of that name; null if there is none."""
    found = fn.filter(fn.coalesce(fn.col(column), fn.array().cast(HEADERS)), lambda each: each["key"] == name)
    return fn.try_element_at(found, fn.lit(-1))["value"].cast("string")


def _headers(texts: Mapping[str, Column]) -> Column:
    pairs = (
        fn.struct(fn.lit(name).alias("key"), text.cast("binary").alias("value"))
        for name, text in texts.items()
    )
    return fn.array(*pairs)


def _others(column: str) -> Column:
    """The headers that the message had of its own."""
    all_ = fn.coalesce(fn.col(column), fn.array().cast(HEADERS))
    return fn.filter(all_, lambda each: ~each["key"].startswith(_PREFIX))
