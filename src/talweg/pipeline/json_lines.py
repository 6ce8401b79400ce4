"""JSON lines: which of an object's names are a line's parts, and what is left as its fields.

People give the same thing many names, and one object may have several of them. The commonest that says
something is taken; the others stay among the fields.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

from talweg.pipeline.formats import PARTS, says
from talweg.pipeline.levels import NUMBERS, WORDS

_DATE: Final = "date"
# The commonest first.
_ALIASES: Final = {
    "time": ("time", "timestamp", "@timestamp", "ts", "datetime", _DATE),
    "level": ("level", "severity", "levelname", "log.level", "lvl", "loglevel"),
    "host": ("host", "hostname", "host.name"),
    "program": ("program", "service", "app", "application", "logger", "name"),
    "message": ("message", "msg", "text", "event"),
}
_NUMBER: Final = {name: number for number, name in enumerate((*_ALIASES, _DATE))}


def whole_object(line: Column) -> Column:
    """What `object_of` is made of: the object, and whether it is all that the line holds.

    Spark takes the first object of a text and passes over the rest. Inside another object the rest counts.
    """
    outer = fn.concat(fn.lit('{"line":'), line, fn.lit(',"end":true}'))
    return fn.from_json(outer, "line map<string,string>, end boolean")


def object_of(whole: Column) -> Column:
    """The map of a JSON line; null if it is not one object."""
    return fn.when(whole["end"], whole["line"])


def taken_of(object_: Column) -> Column:
    """The names from which the parts are taken, in the order of the aliases: null where there is none. Behind
    them `date`, where the time is one of day and the date stands for itself."""
    taken = {
        part: fn.coalesce(*(fn.when(_is_one(part, object_[alias]), alias) for alias in aliases))
        for part, aliases in _ALIASES.items()
    }
    of_day = object_[taken["time"]].rlike(r"^\d{1,2}:\d{2}") & object_[_DATE].rlike(r"^\d{4}-\d{2}-\d{2}$")
    return fn.array(*taken.values(), fn.when(of_day, _DATE))


def _is_one(part: str, text: Column) -> Column:
    if part == "level":  # "gold" is a level of something else
        return fn.coalesce(fn.upper(fn.trim(text)).isin(*WORDS, *NUMBERS), fn.lit(False))
    return text.isNotNull() & (text != "")


def parts_of_object(object_: Column, taken: Column) -> Column:
    """The parts as an array, empty texts where the object says nothing."""

    def text(name: str) -> Column:
        return object_[fn.get(taken, fn.lit(_NUMBER[name]))] if name in _NUMBER else fn.lit("")

    clock = fn.regexp_replace(text("time"), r"^(\d):", "0$1:")
    dated = fn.concat_ws("T", text(_DATE), clock)  # passes over a date that was not taken
    made = {name: dated if name == "time" else text(name) for name in PARTS}
    return fn.array(*(fn.coalesce(each, fn.lit("")) for each in made.values()))


def fields_of_object(object_: Column, taken: Column) -> Column:
    """What was not taken: a map from texts to texts."""
    return fn.map_filter(
        object_,
        lambda name, value: says(value) & ~fn.coalesce(fn.array_contains(taken, name), fn.lit(False)),
    )
