"""Offsets as people write them: what each means, and what is refused."""

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talweg.cli.offsets import END, START, Place, Range, moment_text, read_place, read_range
from talweg.errors import BadRequest


def at(*moment: int) -> Place:
    return Place("moment", int(datetime(*moment, tzinfo=UTC).timestamp()) * 1_000_000)  # type: ignore[misc,arg-type]


NOON = at(2026, 1, 31, 12)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", START),
        ("end", END),
        ("0", Place("offset", 0)),
        ("100", Place("offset", 100)),
        (str(2**63 - 1), Place("offset", 2**63 - 1)),
        ("-10", Place("before_end", 10)),
        ("-0", Place("before_end", 0)),
        ("@2026-01-31T12:00", NOON),
        ("@2026-01-31 12:00", NOON),
        ("@2026-01-31T12:00:00", NOON),
        ("@2026-01-31T12:00Z", NOON),
        ("@2026-01-31T14:00+02:00", NOON),
        ("@2026-01-31T06:30:00-05:30", NOON),
        ("@2026-01-31", at(2026, 1, 31)),
        ("@2026-01-31T12:00:30", at(2026, 1, 31, 12, 0, 30)),
        ("@2026-01-31T12:00:00.25", Place("moment", NOON.number + 250_000)),
        ("@1969-07-20", Place("moment", 0)),
    ],
)
def test_a_place_is_read(text: str, place: Place) -> None:
    assert read_place(text) == place
    assert read_range(text) == Range(place)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100:200", Range(Place("offset", 100), Place("offset", 200))),
        ("100:100", Range(Place("offset", 100), Place("offset", 100))),
        ("start:end", Range(START, END)),
        (":200", Range(START, Place("offset", 200))),
        ("100:", Range(Place("offset", 100))),
        (":", Range(START)),
        ("-10:-5", Range(Place("before_end", 10), Place("before_end", 5))),
        ("@2026-01-31T12:00:@2026-02-01", Range(NOON, at(2026, 2, 1))),
        (
            "@2026-01-31T12:00:30:@2026-02-01T00:00:01",
            Range(at(2026, 1, 31, 12, 0, 30), at(2026, 2, 1, 0, 0, 1)),
        ),
        ("@2026-01-31:@2026-02-01", Range(at(2026, 1, 31), at(2026, 2, 1))),
        ("@2026-01-31T12:00+02:00:@2026-01-31T12:00", Range(at(2026, 1, 31, 10), NOON)),
        ("@2026-01-31T12:00:end", Range(NOON, END)),
        ("start:@2026-01-31T12:00", Range(START, NOON)),
        # Two digits behind a minute are its seconds; three can only be an offset.
        ("@2026-01-31T12:00:100", Range(NOON, Place("offset", 100))),
    ],
)
def test_a_range_is_read(text: str, expected: Range) -> None:
    assert read_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "Start",
        "--json",
        "-",
        "-x",
        "1.5",
        "1e3",
        "+5",
        " 5",
        "5 ",
        "5\n",
        "٣",
        "startend",
        "1:2:3",
        "::",
        "@",
        "@soon",
        "@2026",
        "@2026-13-01",
        "@2026-02-30",
        "@2026-01-31T25:00",
        "@2026-01-31T12",
        "@2026-01-31T12:00:61",
        "2026-01-31",
        "9" * 19 + "0",
        str(2**63),
        "200:100",
        "-5:-10",
        "end:start:",
        "@2026-02-01:@2026-01-01",
    ],
)
def test_what_is_no_range_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_range(text)
    assert text.strip()[:10] in str(refused.value)


@pytest.mark.parametrize("text", ["1:2", "1:", ":1", ":", "start:end"])
def test_a_range_is_no_place(text: str) -> None:
    with pytest.raises(BadRequest, match="a single place"):
        read_place(text)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(read_range(text), Range)


def test_places_mean_offsets_of_a_partition() -> None:
    kept = (100, 200)
    assert START.offset_in(*kept) == 100
    assert END.offset_in(*kept) == 200
    assert Place("offset", 7).offset_in(*kept) == 7
    assert Place("before_end", 10).offset_in(*kept) == 190
    assert Place("before_end", 0).offset_in(*kept) == 200
    assert NOON.offset_in(*kept, at_moment=150) == 150


def test_more_than_there_are_before_the_end_is_the_start() -> None:
    assert Place("before_end", 1_000).offset_in(100, 200) == 100


@pytest.mark.parametrize(
    ("text", "count"), [("-10", 10), ("-10:end", 10), ("-10:-5", None), ("10", None), ("start", None)]
)
def test_the_last_messages_are_known_as_such(text: str, count: int | None) -> None:
    assert read_range(text).last_count == count


def test_a_timestamp_is_told_in_utc() -> None:
    assert moment_text(NOON.number + 1_500) == "2026-01-31T12:00:00.001Z"
    assert moment_text(2**62) == f"{2**62} us"
    assert moment_text(0) == "1970-01-01T00:00:00.000Z"
