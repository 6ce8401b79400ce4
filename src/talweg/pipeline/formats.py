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
_STAMP: Final = r"[A-Z][a-z]{2} [ \d]?\d \d{2}:\d{2}:\d{2}"  # without a year
_TAG: Final = r"[^\s:\[]+(?:\[[^\]]*\])?:"


def _quoted(behind: str) -> str:
    """A quoted text: to the first quote that is not escaped and has `behind` it.

    What may be long is matched possessively (`*+`): what was taken is never given back. Else a line with
    many quotes is tried in every way in which they could pair off, which takes minutes for a kilobyte. And
    Java runs such a group as a loop; for each turn of any other it calls itself, and a long line would
    overflow the stack, which ends the whole JVM.
    """
    return rf"\"((?:[^\"\\\n]++|\\.|\"(?!{behind}))*+)\""


_REQUEST: Final = _quoted(r" \d{3} (?:\d|-)")
_REFERRER: Final = _quoted(r" \"")
_AGENT: Final = _quoted(" |$")

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
        # Without a tag it could be anything, unless it begins as nothing else does.
        rf"(?s)^(?=<|[A-Z]|\S+ \S+ {_TAG})"
        # A level where the host should be is a line of a logger's, which is plain.
        rf"(?:{_PRIORITY}|(?!(?:[A-Z]\S+ +\d+ )?\S+ \[?(?i:{OPENING})\]?(?:[\s:]|$)))"
        rf"({_STAMP}|\d{{4}}-\d{{2}}-\d{{2}}T\S+) "
        # What ends with a colon is a tag, and the host was left out.
        r"(?:(\S*[^\s:]) )?+(?:([^\s:\[]+)(?:\[([^\]]*)\])?: ?)?+(.*)$",
        {"priority": 1, "time": 2, "host": 3, "program": 4, "message": 6},
        {"process": 5},
    ),
    "access": Format(
        # Before the host may be the virtual host with its port; behind it the proxies that passed it on.
        r"^(?:(\S+:\d{1,5}) (?!- ))?([^\s,]+)(?:, ?([^\s,]+(?:, ?[^\s,]+)*+))?+ (\S+) (\S+|\S+ \S+) "
        r"\[([^\]]+)\] "
        rf"(?=\"(?:([A-Z]{{2,20}}) (\S+)(?: ([^\s\"]+))?\")?){_REQUEST} (\d{{3}}) (\d++|-)"
        rf"(?: {_REFERRER} {_AGENT})?+(?: (.*))?$",
        {"host": 2, "time": 6, "message": 10},
        {
            "virtual_host": 1,
            "proxies": 3,
            "user": 5,
            "method": 7,
            "path": 8,
            "protocol": 9,
            "status": 11,
            "bytes": 12,
            "referrer": 13,
            "agent": 14,
            "more": 15,
        },
    ),
    # Of the reference documents: time, message (which may begin with a level), tag, topic.
    "reference": Format(
        r"^(\d{1,2}:\d{2}:\d{2})"
        rf"(?:\t++(?:\[?((?i:{OPENING}))\]?(?![^\s:])[ :]*+)?([^\t]*+)\t++|\t\t++)"
        r"((?:([^\t]+)-\d+|[^\t]+))\t++([^\t]++)\t*+$",
        {"time": 1, "level": 2, "message": 3, "program": 5},
        {"tag": 4, "log_topic": 6},
    ),
    # What their producers send: the message alone. And what many loggers write: a time before it.
    "plain": Format(
        r"(?s)^(?:\[?(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}(?::?\d{2})?)?"
        rf"|{_STAMP})\]?[ \t]+)?"
        rf"\[?((?i:{OPENING}))\]?(?:[ \t]*[:|\-]?[ \t]+(.*))?:?$",
        {"time": 1, "level": 2, "message": 3},
    ),
}
JSON: Final = "json"
NAMES: Final = (JSON, *FORMATS)


def format_of(line: Column) -> Column:
    """The first format that fits, or null."""
    chosen = fn.when(fn.ltrim(line, fn.lit(" \t\r\n")).startswith("{"), JSON)
    for name, each in FORMATS.items():
        chosen = chosen.when(line.rlike(each.pattern), name)
    return chosen


def parts_of(line: Column, format_name: Column, of_object: Column) -> Column:
    """The parts as an array, empty texts where the line says nothing; those of a JSON line are given."""
    clean = fn.translate(line, PART + FIELD + VALUE, "\ufffd" * 3)
    arranged = fn.when(format_name == JSON, of_object)
    for name, each in FORMATS.items():
        parts = fn.split(fn.regexp_replace(clean, each.pattern, each.arrangement()), PART)
        arranged = arranged.when(format_name == name, parts)
    return arranged


def part(parts: Column, name: str) -> Column:
    """One part; null where the line says nothing, or `-`."""
    text = fn.get(parts, fn.lit(_NUMBER[name]))
    return fn.when(~text.isin("", "-"), text)


def fields_of(parts: Column) -> Column:
    """What is no part: a map from texts to texts."""
    fields = fn.str_to_map(fn.get(parts, fn.lit(_NUMBER["fields"])), fn.lit(FIELD), fn.lit(VALUE))
    return fn.map_filter(fields, lambda _, value: says(value))


def says(text: Column) -> Column:
    """Whether it is there, and says anything."""
    return text.isNotNull() & ~text.isin("", "-")


PARAMETERS_MAX: Final = 200  # of a line; each is looked for among all of them
# One of them. Its name begins where none could go on: else a long text without any would be tried from each
# letter on.
_PARAMETER: Final = r'(?<![^\s="\]\[])([^\s="\]\[]++)="((?:[^"\\]++|\\.)*+)"'


def parameters_of(fields: Column) -> tuple[Column, Column]:
    """The names that a line of syslog has in its structured data, and their values; null for other lines."""
    data = fields["structured_data"]
    names, values = (
        fn.slice(fn.regexp_extract_all(data, fn.lit(_PARAMETER), fn.lit(group)), 1, PARAMETERS_MAX)
        for group in (1, 2)
    )
    return names, values


def with_parameters(fields: Column, names: Column, values: Column) -> Column:
    """The fields, and the parameters as fields of their own. All three are columns, not expressions: they are
    looked at once for each name."""
    # A name that comes twice, or is one of ours, counts once: a map with both would fail the whole query.
    distinct = fn.array_except(fn.array_distinct(names), fn.map_keys(fields))
    found = fn.transform(
        distinct, lambda name: fn.get(values, fn.array_position(names, name).cast("int") - 1)
    )
    return fn.when(names.isNull(), fields).otherwise(
        fn.map_concat(fields, fn.map_from_arrays(distinct, found))
    )
