"""Filters that are handed down: nothing that is wanted is left out, nothing that is unwanted stays. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from talweg.client.partition_log import Stretch
from talweg.spark.filters import push

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX = 2**63 - 1

Column = tuple[str, ...]
TOPIC, PARTITION, OFFSET, TIMESTAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int  # microseconds since 1970


STRETCHES = [Stretch(topic, partition, 5, 15) for topic in "ab" for partition in range(3)]
# Timestamps that rise and fall, some of them before 1970; each row is a frame of its own, the sharpest case.
ROWS = [
    Row(each.topic, each.partition, offset, offset * 7919 % 50 - 10)
    for each in STRETCHES
    for offset in range(each.begin, each.end)
]


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def read(filters: Sequence[Filter]) -> list[Row]:
    """What a query has in the end: what is fetched, without what Spark throws away."""
    bounds, left = push(filters)
    fetched = []
    for stretch in bounds.cut(STRETCHES):
        for row in ROWS:
            early = stretch.timestamp_min is not None and row.timestamp < stretch.timestamp_min
            late = stretch.timestamp_max is not None and row.timestamp > stretch.timestamp_max
            here = (row.topic, row.partition) == (stretch.topic, stretch.partition)
            if here and stretch.begin <= row.offset < stretch.end and not early and not late:
                fetched.append(row)
    return [row for row in fetched if all(holds(each, row) for each in left)]


def wanted(filters: Sequence[Filter]) -> list[Row]:
    return [row for row in ROWS if all(holds(each, row) for each in filters)]


def holds(each: Filter, row: Row) -> bool | None:
    """As SQL has it: None if nobody can tell, since something is null."""
    if isinstance(each, Not):
        inner = holds(each.child, row)
        return None if inner is None else not inner
    if isinstance(each, IsNull | IsNotNull):
        return isinstance(each, IsNotNull)
    found = getattr(row, each.attribute[0])  # type: ignore[attr-defined]
    if isinstance(each, In):
        values = [plain(value) for value in each.value]
        return True if found in values else None if None in values else False
    value = plain(each.value)  # type: ignore[attr-defined]
    if isinstance(each, EqualNullSafe):
        return bool(found == value)
    return None if value is None else compared(each, found, value)


def compared(each: Filter, found: Any, value: Any) -> bool:
    outcomes = {
        EqualTo: lambda: found == value,
        GreaterThan: lambda: found > value,
        GreaterThanOrEqual: lambda: found >= value,
        LessThan: lambda: found < value,
        LessThanOrEqual: lambda: found <= value,
        StringContains: lambda: value in found,
        StringStartsWith: lambda: found.startswith(value),
    }
    return bool(outcomes[type(each)]())


def plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round((zoned - EPOCH) / timedelta(microseconds=1))


NUMBERS = st.sampled_from([-(2**63), -5, -1, 0, 1, 2, 5, 9, 14, 15, 2**31, MAX])
MOMENTS = st.integers(-15, 45).map(moment)
VALUES: dict[Column, st.SearchStrategy[Any]] = {
    TOPIC: st.none() | st.sampled_from("abc"),
    PARTITION: st.none() | NUMBERS,
    OFFSET: st.none() | NUMBERS,
    TIMESTAMP: st.none() | MOMENTS | MOMENTS.map(lambda zoned: zoned.replace(tzinfo=None)),
}
COMPARING = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(list(VALUES)))
    kinds: list[Any] = [*COMPARING, In, IsNull, IsNotNull]
    kind = draw(st.sampled_from(kinds + ([StringContains, StringStartsWith] if column == TOPIC else [])))
    if kind is In:
        made: Filter = In(column, tuple(draw(st.lists(VALUES[column], max_size=3))))
    elif kind in (IsNull, IsNotNull):
        made = kind(column)
    elif kind in (StringContains, StringStartsWith):
        made = kind(column, draw(st.sampled_from("abc")))
    else:
        made = kind(column, draw(VALUES[column]))
    return Not(made) if draw(st.integers(0, 4)) == 0 else made


@settings(max_examples=300)
@given(st.lists(filters(), min_size=1, max_size=3))
@example([In(PARTITION, (0, None))])
@example([Not(In(PARTITION, (0, None)))])
@example([EqualNullSafe(PARTITION, 1)])
@example([EqualNullSafe(PARTITION, None)])
@example([Not(EqualTo(OFFSET, 7))])
@example([EqualTo(PARTITION, -1)])
@example([GreaterThan(OFFSET, -5)])
@example([LessThan(OFFSET, 9), GreaterThan(OFFSET, 6)])
@example([LessThan(OFFSET, 9), LessThanOrEqual(OFFSET, 12)])
@example([GreaterThan(OFFSET, 9), GreaterThanOrEqual(OFFSET, 6)])
@example([LessThan(OFFSET, -(2**63))])
@example([GreaterThan(OFFSET, MAX)])
@example([LessThanOrEqual(OFFSET, MAX)])
@example([In(OFFSET, ())])
@example([In(OFFSET, (6, 12))])
@example([In(TIMESTAMP, (moment(3), moment(-4)))])
@example([EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")])
@example([GreaterThan(TIMESTAMP, moment(-3)), LessThan(TIMESTAMP, moment(9))])
def test_what_is_handed_down_changes_no_result(some: list[Filter]) -> None:
    assert read(some) == wanted(some)


def fetched(*some: Filter) -> list[tuple[str, int, int, int]]:
    return [(each.topic, each.partition, each.begin, each.end) for each in push(some)[0].cut(STRETCHES)]


def test_what_is_not_wanted_is_not_fetched() -> None:
    assert fetched(EqualTo(TOPIC, "b"), GreaterThan(PARTITION, 1)) == [("b", 2, 5, 15)]
    assert fetched(In(PARTITION, (0, 7)), LessThan(PARTITION, 5)) == [("a", 0, 5, 15), ("b", 0, 5, 15)]
    assert fetched(In(TOPIC, ("a",)), EqualTo(PARTITION, 1), EqualTo(OFFSET, 9)) == [("a", 1, 9, 10)]
    assert fetched(GreaterThanOrEqual(OFFSET, 15)) == []
    assert fetched(EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")) == []


def test_spark_looks_only_at_what_is_not_settled() -> None:
    exact = [EqualTo(PARTITION, 1), LessThan(OFFSET, 9), In(TOPIC, ("a", "b")), IsNotNull(TIMESTAMP)]
    # A moment only chooses frames; the rest cannot be told by what is known before reading.
    open_ = [
        GreaterThan(TIMESTAMP, moment(3)),
        In(OFFSET, (6, 9)),
        Not(EqualTo(PARTITION, 1)),
        EqualNullSafe(PARTITION, 1),
        In(PARTITION, (0, None)),
        EqualTo(("headers", "key"), "a"),
        EqualTo(("value",), b"x"),
    ]
    assert push(exact)[1] == [IsNotNull(TIMESTAMP)]  # which is true of every row
    assert push([*exact[:3], *open_])[1] == open_


@pytest.mark.parametrize(
    "same",
    [
        datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
        datetime(2026, 1, 31, 13, 30, 0, 5, tzinfo=timezone(timedelta(hours=1, minutes=30))),
        datetime(2026, 1, 31, 12, 0, 0, 5),  # noqa: DTZ001 - what has no zone is UTC
    ],
)
def test_moments_are_what_they_are_in_utc(same: datetime) -> None:
    bounds, _ = push([GreaterThanOrEqual(TIMESTAMP, same)])
    assert bounds.timestamp_min == 1_769_860_800_000_005
