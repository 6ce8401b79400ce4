"""Dead letters: messages that could not be parsed, set aside in `<topic>.dlq`, and the way back.

A dead letter is the message as it was, key and value, with headers that say where it came from and why.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from talweg.pipeline.messages import HEADERS

SUFFIX: Final = ".dlq"
ATTEMPTS_MAX: Final = 3  # after which a letter is sent back no more
_PREFIX: Final = "talweg.dlq."
TOPIC, PARTITION, OFFSET, ERROR, ATTEMPT = (
    f"{_PREFIX}{name}" for name in ("topic", "partition", "offset", "error", "attempt")
)


def dead_letters_of(parsed: DataFrame) -> DataFrame:
    """Those that have an error, as messages for `<topic>.dlq`. A dead letter's own errors go nowhere else."""
    attempt = fn.coalesce(header("headers", ATTEMPT).try_cast("int"), fn.lit(0)) + 1
    ours = {
        TOPIC: fn.col("topic"),
        PARTITION: fn.col("partition").cast("string"),
        OFFSET: fn.col("offset").cast("string"),
        ERROR: fn.col("error"),
        ATTEMPT: attempt.cast("string"),
    }
    added = fn.array(
        *(
            fn.struct(fn.lit(name).alias("key"), text.cast("binary").alias("value"))
            for name, text in ours.items()
        )
    )
    return parsed.where(fn.col("error").isNotNull() & ~fn.col("topic").endswith(SUFFIX)).select(
        "key",
        fn.coalesce(fn.col("value"), fn.lit(b"")).alias("value"),
        fn.concat(fn.col("topic"), fn.lit(SUFFIX)).alias("topic"),
        fn.concat(_others("headers"), added).cast(HEADERS).alias("headers"),
    )


def may_go_back(attempts_max: int = ATTEMPTS_MAX) -> Column:
    """Whether a dead letter says where it came from, and was not set aside too often."""
    attempt = fn.coalesce(header("headers", ATTEMPT).try_cast("int"), fn.lit(1))
    return header("headers", TOPIC).isNotNull() & (attempt <= attempts_max)


def redriven(letters: DataFrame, attempts_max: int = ATTEMPTS_MAX) -> DataFrame:
    """Dead letters as messages for the topics that they came from. The count of attempts goes along."""
    attempt = header("headers", ATTEMPT)
    kept = fn.array(fn.struct(fn.lit(ATTEMPT).alias("key"), attempt.cast("binary").alias("value")))
    return letters.where(may_go_back(attempts_max)).select(
        "key",
        "value",
        header("headers", TOPIC).alias("topic"),
        fn.concat(_others("headers"), kept).cast(HEADERS).alias("headers"),
    )


def header(column: str, name: str) -> Column:
    """The text of the last header of that name; null if there is none."""
    found = fn.filter(fn.coalesce(fn.col(column), fn.array().cast(HEADERS)), lambda each: each["key"] == name)
    return fn.try_element_at(found, fn.lit(-1))["value"].cast("string")


def _others(column: str) -> Column:
    """The headers that the message had of its own."""
    all_ = fn.coalesce(fn.col(column), fn.array().cast(HEADERS))
    return fn.filter(all_, lambda each: ~each["key"].startswith(_PREFIX))
