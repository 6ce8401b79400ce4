"""Times as logs write them, as expressions of Spark: none of them fails, what is no time is null.

What has no zone is UTC, whatever the session's time zone. What lacks a year gets the one that brings it
nearest to when the message was produced; what lacks a date, the last one before that. A time outside the
years 1 to 9999 is none: Spark could keep it, and nobody else could read it.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

_ISO: Final = (
    r"^(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2})?)(?:[.,](\d{1,9}))? ?(Z|z|[+-]\d{2}(?::?\d{2})?)?$"
)
_DATE: Final = r"^\d{4}-\d{2}-\d{2}$"
# Spark writes a large fraction of JSON with an exponent.
_EPOCH: Final = r"^(?:\d{9,19}(?:\.\d{1,9})?|\d(?:\.\d{1,18})?E(?:8|9|1\d))$"
_ACCESS: Final = r"^\d{2}/[A-Z][a-z]{2}/\d{4}:"
_CLOCK: Final = r"^\d{1,2}:\d{2}:\d{2}$"
_YEARLESS: Final = r"^[A-Z][a-z]{2} [ \d]?\d "
_MICROS: Final = 1_000_000

FIRST_US: Final = -62_135_596_800 * _MICROS  # the year 1 begins
LAST_US: Final = 253_402_300_800 * _MICROS - 1  # the year 9999 ends


def time_of(text: Column, near: Column) -> Column:
    """A time in any of the spellings below, of any year; null if it is none of them, or does not exist."""
    near = bounded(near)
    return (
        fn.when(text.rlike(_ISO), iso_time(text))
        .when(text.rlike(_DATE), fn.concat(text, fn.lit("T00:00:00Z")).try_cast("timestamp"))
        .when(text.rlike(_ACCESS), access_time(text))
        .when(text.rlike(_CLOCK), clock_time(text, near))
        .when(text.rlike(_YEARLESS), yearless_time(text, near))
        .when(text.rlike(_EPOCH), epoch_time(text))
    )


def within_years(moment: Column) -> Column:
    """The same if it lies in the years 1 to 9999, else null. A column, no expression: it is asked twice."""
    return fn.when(fn.unix_micros(moment).between(FIRST_US, LAST_US), moment)


def bounded(moment: Column) -> Column:
    """The same, or the end of the years 1 to 9999 that it lies beyond: anybody may give a message any
    timestamp, and at the ends of 64 bits Spark's arithmetic fails the whole query."""
    micros = fn.greatest(fn.least(fn.unix_micros(moment), fn.lit(LAST_US)), fn.lit(FIRST_US))
    return fn.timestamp_micros(micros)


def iso_time(text: Column) -> Column:
    """`2026-01-31T12:00:00.123Z`, with a blank for the T, a comma, or no zone."""
    # Spark takes any zone in the end, so UTC is put behind whatever has none.
    zoned = fn.regexp_replace(fn.regexp_replace(text, _ISO, "$1T$2.$3$4"), r"\.(?=$|[Zz+-])", ".0")
    return fn.regexp_replace(zoned, r"(T[\d:.]+)$", "$1Z").try_cast("timestamp")


def epoch_time(text: Column) -> Column:
    """A number of seconds, milliseconds, microseconds or nanoseconds since 1970, told by its size."""
    number = text.try_cast("decimal(29,9)")
    micros = (
        fn.when(number < fn.lit(10**11), number * _MICROS)
        .when(number < fn.lit(10**14), number * 1000)
        .when(number < fn.lit(10**17), number)
        .otherwise(number / 1000)
    )
    return fn.timestamp_micros(micros.try_cast("bigint"))


def access_time(text: Column) -> Column:
    """`10/Oct/2026:13:55:36 -0700`."""
    return fn.try_to_timestamp(text, fn.lit("dd/MMM/yyyy:HH:mm:ss Z"))


def clock_time(text: Column, near: Column) -> Column:
    """`21:52:23`, on the last day that does not put it after the message was produced."""
    whole = fn.concat(fn.lit("1970-01-01T"), fn.lpad(text, 8, "0"), fn.lit("Z"))
    clock = fn.unix_micros(whole.try_cast("timestamp"))
    day = fn.lit(86_400 * _MICROS)
    # An hour's grace: clocks differ, and a line of just now is not one of yesterday.
    latest = fn.unix_micros(near) + 3_600 * _MICROS
    days = fn.floor((latest - clock) / day).cast("bigint")
    return fn.timestamp_micros(clock + days * day)


def yearless_time(text: Column, near: Column) -> Column:
    """`Oct 11 22:14:15` or `Oct  1 22:14:15`, in the year that brings it nearest."""
    tidy = fn.concat(fn.lit(" "), fn.regexp_replace(text, r" +", " "), fn.lit(" Z"))
    return fn.array_min(
        fn.transform(
            fn.array(fn.lit(-1), fn.lit(0), fn.lit(1)),
            lambda shift: _away(
                fn.try_to_timestamp(
                    fn.concat((fn.year(near) + shift).cast("string"), tidy), fn.lit("yyyy MMM d HH:mm:ss X")
                ),
                near,
            ),
        )
    )["time"]


def _away(time: Column, near: Column) -> Column:
    distance = fn.abs(fn.unix_micros(time) - fn.unix_micros(near))
    return fn.when(time.isNotNull(), fn.struct(distance.alias("away"), time.alias("time")))
