"""The formats of log lines that are understood: how each is recognised and taken apart.

All of it is built-in expressions, no Python for each row. One pass of a regular expression turns a line of
any format into the same row of parts, with a separator between them:

    time, priority, level, host, program, message, fields

so everything behind it is written, and compiled by Spark, once and not once for each format.
"""

from typing import Final

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as fn

from talweg.pipeline.levels import OPENING

# None of them is in a text that people write; one that is in a line all the same is replaced.
PART: Final = "\u0001"
FIELD: Final = "\u0002"
VALUE: Final = "\u0003"

PARTS: Final = ("time", "priority", "level", "host", "program", "message", "fields")
_NUMBER: Final = {name: number for number, name in enumerate(PARTS)}


class Format(msgspec.Struct, frozen=True):
    """A regular expression for the whole line, and which of its groups is which part or field."""

    pattern: str
    parts: dict[str, int]
    fields: dict[str, int] = {}

    def arrangement(self) -> str:
        """What the line is replaced by."""
        fields = FIELD.join(f"{name}{VALUE}${group}" for name, group in self.fields.items())
        groups = {name: f"${group}" for name, group in self.parts.items()} | {"fields": fields}
        return PART.join(groups.get(name, "") for name in PARTS)


_PRIORITY: Final = r"<(\d{1,3})>"
# Up to the first quote that is not escaped. Never a repeated group, as in (?:[^"\\]|\\.)*: Java calls itself
# for each turn of one, and a long line would overflow the stack, which ends the whole JVM.
_QUOTED: Final = r"\"(.*?)(?<!\\)\""

# In the order in which they are tried. In those whose message is the end of the line (`(?s)`), it may go on
# over several lines: a stack trace, say.
FORMATS: Final = {
    "syslog5424": Format(
        rf"(?s)^{_PRIORITY}1 (\S+) (\S+) (\S+) (\S+) (\S+) "
        r"(-|\[.*?(?<!\\)\])(?: \uFEFF?(.*))?$",
        {"priority": 1, "time": 2, "host": 3, "program": 4, "message": 8},
        {"process": 5, "kind": 6, "structured_data": 7},
    ),
    "syslog": Format(
        # A level where the host should be is a line of a logger's, which is plain.
        rf"(?s)^(?:{_PRIORITY}|(?!\S+ (?i:{OPENING}) ))"
        r"([A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}|\d{4}-\d{2}-\d{2}T\S+) "
        r"(\S+) ([^\s:\[]+)(?:\[([^\]]*)\])?: ?(.*)$",
        {"priority": 1, "time": 2, "host": 3, "program": 4, "message": 6},
        {"process": 5},
    ),
    "access": Format(
        r"^(\S+) (\S+) (\S+|\S+ \S+) \[([^\]]+)\] "
        rf"(?=\"(?:([A-Z]{{2,20}}) (\S+)(?: ([^\s\"]+))?\")?){_QUOTED} (\d{{3}}) (\d+|-)"
        rf"(?: {_QUOTED} {_QUOTED})?(?: (.*))?$",
        {"host": 1, "time": 4, "message": 8},
        {
            "user": 3,
            "method": 5,
            "path": 6,
            "protocol": 7,
            "status": 9,
            "bytes": 10,
            "referrer": 11,
            "agent": 12,
            "more": 13,
        },
    ),
    # Of the reference documents: time, message (which may begin with a level), tag, topic.
    "reference": Format(
        r"^(\d{1,2}:\d{2}:\d{2})\t+"
        rf"(?:\[?((?i:{OPENING}))\]?(?![^\s:])[ :]*)?([^\t]*)\t+((?:([^\t]+)-\d+|[^\t]+))\t+([^\t]+?)\t*$",
        {"time": 1, "level": 2, "message": 3, "program": 5},
        {"tag": 4, "log_topic": 6},
    ),
    # What their producers send: the message alone. And what many loggers write: a time before it.
    "plain": Format(
        r"(?s)^(?:\[?(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?)\]?"
        r"[ \t]+)?"
        rf"\[?((?i:{OPENING}))\]?(?:[ \t]*[:|\-]?[ \t]+(.*))?:?$",
        {"time": 1, "level": 2, "message": 3},
    ),
}
JSON: Final = "json"
NAMES: Final = (JSON, *FORMATS)

# JSON: the names that people give to the same thing, the commonest first.
_ALIASES: Final = {
    "time": ("time", "timestamp", "@timestamp", "ts", "datetime", "date"),
    "level": ("level", "severity", "levelname", "log.level", "lvl", "loglevel"),
    "host": ("host", "hostname", "host.name"),
    "program": ("program", "service", "app", "application", "logger", "name"),
    "message": ("message", "msg", "text", "event"),
}
_OBJECT: Final = r"(?s)^\s*\{.*\}\s*$"


def format_of(line: Column) -> Column:
    """The first format that fits, or null."""
    chosen = fn.when(fn.ltrim(line).startswith("{"), JSON)
    for name, each in FORMATS.items():
        chosen = chosen.when(line.rlike(each.pattern), name)
    return chosen


def parts_of(line: Column, format_name: Column, object_: Column) -> Column:
    """The parts as an array, empty texts where the line says nothing."""
    clean = fn.translate(line, PART + FIELD + VALUE, "\ufffd" * 3)
    arranged = fn.when(format_name == JSON, fn.array(*(_aliased(object_, name) for name in PARTS)))
    for name, each in FORMATS.items():
        parts = fn.split(fn.regexp_replace(clean, each.pattern, each.arrangement()), PART)
        arranged = arranged.when(format_name == name, parts)
    return arranged


def part(parts: Column, name: str) -> Column:
    """One part; null where the line says nothing, or `-`."""
    text = fn.get(parts, fn.lit(_NUMBER[name]))
    return fn.when(~text.isin("", "-"), text)


def object_of(line: Column, format_name: Column) -> Column:
    """The map of a JSON line; null if it is no object."""
    whole = (format_name == JSON) & line.rlike(_OBJECT)
    return fn.from_json(fn.when(whole, line), "map<string,string>")


def fields_of(parts: Column, object_: Column) -> Column:
    """What is no part: a map from texts to texts."""
    known = fn.array(*(fn.lit(alias) for aliases in _ALIASES.values() for alias in aliases))
    of_parts = fn.str_to_map(fn.get(parts, fn.lit(_NUMBER["fields"])), fn.lit(FIELD), fn.lit(VALUE))
    fields = fn.when(object_.isNotNull(), object_).otherwise(of_parts)
    return fn.map_filter(
        fields,
        lambda name, value: (
            (value.isNotNull())
            & ~value.isin("", "-")
            & ~(object_.isNotNull() & fn.array_contains(known, name))
        ),
    )


def structured_data(fields: Column) -> Column:
    """The parameters that a line of syslog names in its structured data, as fields of their own."""
    data = fields["structured_data"]
    pair = r'([^\s="\]\[]+)="(.*?)(?<!\\)"'
    names, values = (fn.regexp_extract_all(data, fn.lit(pair), fn.lit(group)) for group in (1, 2))
    # A name that comes twice, or is one of ours, counts once: a map with both would fail the whole query.
    distinct = fn.array_except(fn.array_distinct(names), fn.map_keys(fields))
    return fn.map_concat(
        fields,
        fn.map_from_arrays(
            distinct,
            fn.transform(
                distinct, lambda name: fn.get(values, fn.array_position(names, name).cast("int") - 1)
            ),
        ),
    )


def _aliased(object_: Column, name: str) -> Column:
    aliases = _ALIASES.get(name, ())
    if not aliases:
        return fn.lit("")
    return fn.coalesce(*(fn.nullif(object_[alias], fn.lit("")) for alias in aliases), fn.lit(""))
