"""How grave a line is: the words and numbers of many loggers as six levels."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
GRAVE: Final = ("ERROR", "FATAL")  # what counts as an error in rates
NONE: Final = "NONE"  # in counts: a line that names no level
UNPARSED: Final = "UNPARSED"  # in counts: no line at all

WORDS: Final = {
    "TRACE": "TRACE", "FINEST": "TRACE", "FINER": "TRACE", "VERBOSE": "TRACE",
    "DEBUG": "DEBUG", "DBG": "DEBUG", "D": "DEBUG", "FINE": "DEBUG",
    "INFO": "INFO", "INFORMATION": "INFO", "INFORMATIONAL": "INFO", "NOTICE": "INFO", "I": "INFO",
    "WARN": "WARN", "WARNING": "WARN", "W": "WARN",
    "ERROR": "ERROR", "ERR": "ERROR", "SEVERE": "ERROR", "E": "ERROR",
    "FATAL": "FATAL", "CRITICAL": "FATAL", "CRIT": "FATAL", "ALERT": "FATAL", "EMERG": "FATAL",
    "EMERGENCY": "FATAL", "PANIC": "FATAL",
}  # fmt: skip
# Words that may open a line; single letters and rarer words could be anything there.
OPENING: Final = "|".join(sorted((word for word in WORDS if len(word) > 2), key=len, reverse=True))

_SYSLOG: Final = ("FATAL", "FATAL", "FATAL", "ERROR", "WARN", "INFO", "INFO", "DEBUG")  # by severity
# What Python's logging and the loggers of other languages call levels by number.
NUMBERS: Final = {"10": "DEBUG", "20": "INFO", "30": "WARN", "40": "ERROR", "50": "FATAL", "60": "FATAL"}
# The same numbers in Bunyan and Pino, which name the process and the host in every line.
_BUNYAN: Final = {"10": "TRACE", "20": "DEBUG", "30": "INFO", "40": "WARN", "50": "ERROR", "60": "FATAL"}


def level_of_bunyan(number: Column) -> Column:
    """A level from the numbers of Bunyan and Pino; null if it is none of them."""
    return fn.create_map(*(fn.lit(text) for pair in _BUNYAN.items() for text in pair))[fn.trim(number)]


def level_of_word(word: Column) -> Column:
    """A level from a logger's word or number, in any case; null if it is none."""
    table = [fn.lit(text) for pair in (WORDS | NUMBERS).items() for text in pair]
    return fn.create_map(*table)[fn.upper(fn.trim(word))]


def level_of_severity(severity: Column) -> Column:
    """A level from syslog's 0 to 7."""
    return fn.get(fn.array(*(fn.lit(level) for level in _SYSLOG)), severity)


def level_of_status(status: Column) -> Column:
    """A level from an HTTP status."""
    return fn.when(status >= 500, "ERROR").when(status >= 400, "WARN").otherwise("INFO")


def is_grave(level: Column) -> Column:
    """Whether it counts as an error."""
    return fn.coalesce(level.isin(*GRAVE), fn.lit(False))
