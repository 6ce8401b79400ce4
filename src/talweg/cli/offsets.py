"""Offsets as people write them. Pure: what a place means in a partition is for whoever knows its offsets.

There are places, and ranges from one place to another:

    start    the first message that is kept
    end      behind the last one
    100      that very offset
    -10      ten before the end
    @2026-01-31T12:00
             the first message not older than that moment; a date alone is its midnight, and what has no
             zone (`Z`, `+02:00`) is UTC
    100:200  from one place to another, which is not included; either may be left out
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from talweg.errors import BadRequest

OFFSET_MAX: Final = 2**63 - 1
EXPECTED: Final = (
    "start, end, 100, -10, @2026-01-31T12:00, or two of them with a colon between, as in 100:200"
)

_PLACE: Final = (
    r"start|end|-?\d{1,19}|"
    r"@\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?"
)
_RANGE: Final = re.compile(rf"(?P<first>{_PLACE})?(?P<rest>:(?P<stop>{_PLACE})?)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Place(msgspec.Struct, frozen=True):
    """A place in a partition, or in each partition of a topic."""

    kind: Literal["start", "end", "offset", "before_end", "moment"]
    number: int = 0  # an offset, how many before the end, or microseconds since 1970

    def offset_in(self, start_offset: int, next_offset: int, at_moment: int | None = None) -> int:
        """Its offset in a partition that keeps what lies from the one to below the other.

        For a moment, `at_moment` is what the partition's leader says. An offset may lie outside of what is
        kept: it is what was asked for.
        """
        match self.kind:
            case "start":
                return start_offset
            case "end":
                return next_offset
            case "before_end":
                return max(next_offset - self.number, start_offset)
            case "moment":
                assert at_moment is not None
                return at_moment
            case "offset":
                return self.number


class Range(msgspec.Struct, frozen=True):
    """From a place on; to another, which is not included, or as far as there are messages."""

    first: Place
    stop: Place | None = None

    @property
    def last_count(self) -> int | None:
        """How many of the last messages, if it is that which is asked for."""
        last = self.first.kind == "before_end" and (self.stop is None or self.stop.kind == "end")
        return self.first.number if last else None


START: Final = Place("start")
END: Final = Place("end")


def read_place(text: str) -> Place:
    """A single place; raises BadRequest."""
    found = read_range(text)
    match = _RANGE.fullmatch(text)
    if match is None or match["rest"] is not None:
        raise BadRequest(
            f"{text!r} is a range of offsets; expected a single place, {EXPECTED.split(', or')[0]}"
        )
    return found.first


def read_range(text: str) -> Range:
    """A place, or a range; raises BadRequest."""
    match = _RANGE.fullmatch(text)
    if text.startswith("--") or re.match("-[a-zA-Z]", text):
        raise BadRequest(f"no such option: {text}; --help names all")
    if match is None or not text:
        raise BadRequest(f"{text!r} is not an offset; expected {EXPECTED}")
    first = START if match["first"] is None else _place(match["first"])
    stop = None if match["stop"] is None else _place(match["stop"])
    if stop is not None and first.kind == stop.kind and _backwards(first, stop):
        raise BadRequest(f"{text!r} ends before it begins")
    return Range(first, stop)


def _backwards(first: Place, stop: Place) -> bool:
    if first.kind == "before_end":
        return stop.number > first.number
    return stop.number < first.number


def _place(text: str) -> Place:
    if text == "start":
        return START
    if text == "end":
        return END
    if text.startswith("@"):
        return Place("moment", _microseconds(text))
    number = int(text)
    if abs(number) > OFFSET_MAX:
        raise BadRequest(f"{text} is beyond the greatest offset, {OFFSET_MAX}")
    return Place("before_end", -number) if text.startswith("-") else Place("offset", number)


def _microseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text[1:])
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        # Timestamps of messages are never below 0 where offsets are looked up by them.
        return max((moment - _EPOCH) // timedelta(microseconds=1), 0)
    except (ValueError, OverflowError):
        raise BadRequest(f"{text} is no moment: no such day or time") from None


def moment_of(microseconds: int) -> datetime:
    """A timestamp as clients take it."""
    return _EPOCH + timedelta(microseconds=microseconds)


def moment_text(microseconds: int) -> str:
    """A timestamp for people, in UTC; one that no calendar has, as the number that it is."""
    try:
        moment = moment_of(microseconds)
    except OverflowError:
        return f"{microseconds} us"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
