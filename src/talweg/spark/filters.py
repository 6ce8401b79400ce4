"""Filters of a query that choose what is fetched at all: on topic, partition, offset and timestamp. Pure.

Those on topic, partition and offset are kept to the letter. One on timestamp only saves work: whole frames
are passed over, and Spark looks at the rest again, since timestamps need not rise with offsets.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from talweg.client.partition_log import Stretch

_MAX: Final = 2**63 - 1
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp")


class Bounds(msgspec.Struct, frozen=True):
    """What may be asked for, by column."""

    topics: frozenset[str] | None = None  # None: any
    partitions: frozenset[int] | None = None
    partition_min: int = 0
    partition_max: int = _MAX  # included, as below
    offset_min: int = 0
    offset_max: int = _MAX
    timestamp_min: int | None = None
    timestamp_max: int | None = None

    def cut(self, stretches: Iterable[Stretch]) -> list[Stretch]:
        """What of them may have rows that are wanted."""
        made = []
        for each in stretches:
            if not self._wants(each):
                continue
            begin, end = max(each.begin, self.offset_min), min(each.end, self.offset_max + 1)
            if begin < end:
                made.append(
                    msgspec.structs.replace(
                        each,
                        begin=begin,
                        end=end,
                        timestamp_min=self.timestamp_min,
                        timestamp_max=self.timestamp_max,
                    )
                )
        return made

    def _wants(self, stretch: Stretch) -> bool:
        return (
            (self.topics is None or stretch.topic in self.topics)
            and (self.partitions is None or stretch.partition in self.partitions)
            and self.partition_min <= stretch.partition <= self.partition_max
        )


def push(filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds that they mean together, and those that Spark has to look at still."""
    bounds = Bounds()
    left: list[Filter] = []
    for each in filters:
        pushed = _pushed(bounds, each)
        if pushed is not None:
            bounds = pushed
        if pushed is None or "timestamp" in each.attribute:  # type: ignore[attr-defined]
            left.append(each)
    return bounds, left


def _pushed(bounds: Bounds, each: Filter) -> Bounds | None:
    """The bounds with one filter more; None if it is not one of ours."""
    attribute: Sequence[str] = getattr(each, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _COLUMNS:
        return None
    column = attribute[0]
    if isinstance(each, IsNotNull):
        return bounds  # none of them ever is null
    if isinstance(each, In):
        values = [_number(column, value) for value in each.value]
        return None if None in values else _among(bounds, column, values)
    value = _number(column, getattr(each, "value", None))
    if value is None:
        return None
    if isinstance(each, EqualTo):
        return _among(bounds, column, [value])
    if column == "topic":
        return None
    return _ranged(bounds, column, each, value)


def _ranged(bounds: Bounds, column: str, each: Filter, value: int) -> Bounds | None:
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return _at_least(bounds, column, value + isinstance(each, GreaterThan))
    if isinstance(each, LessThan | LessThanOrEqual):
        return _at_most(bounds, column, value - isinstance(each, LessThan))
    return None


def _at_least(bounds: Bounds, column: str, value: int) -> Bounds:
    name = f"{column}_min"
    known = getattr(bounds, name)
    return msgspec.structs.replace(bounds, **{name: value if known is None else max(known, value)})


def _at_most(bounds: Bounds, column: str, value: int) -> Bounds:
    name = f"{column}_max"
    known = getattr(bounds, name)
    return msgspec.structs.replace(bounds, **{name: value if known is None else min(known, value)})


def _among(bounds: Bounds, column: str, values: list[Any]) -> Bounds | None:
    if column in ("topic", "partition"):
        name = f"{column}s"
        known = getattr(bounds, name)
        wanted = frozenset(values) if known is None else known & frozenset(values)
        return msgspec.structs.replace(bounds, **{name: wanted})
    if not values or (column == "offset" and len(set(values)) > 1):
        return None  # scattered offsets are Spark's to pick
    return _at_most(_at_least(bounds, column, min(values)), column, max(values))


def _number(column: str, value: Any) -> Any:
    """A filter's value as the bounds have it; None if it is nothing that can be compared."""
    if column == "topic":
        return value if isinstance(value, str) else None
    if column != "timestamp":
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
