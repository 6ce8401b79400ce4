"""What a benchmark yields: rows with a figure, and curves."""

from collections.abc import Callable
from pathlib import Path

import msgspec


class Bound(msgspec.Struct, frozen=True):
    """What is required of a figure. One of the two is given."""

    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` keeps it."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


class Row(msgspec.Struct, frozen=True):
    """One figure."""

    what: str
    value: float
    unit: str
    required: Bound | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether it is as good as required; None where nothing is."""
        return None if self.required is None else self.required.holds(self.value)

    @property
    def shown_value(self) -> str:
        """The figure for people."""
        return _shown(self.value, self.unit)

    @property
    def shown_bound(self) -> str:
        """What is required, for people."""
        if self.required is None:
            return ""
        if self.required.at_least is not None:
            return f"at least {_shown(self.required.at_least, self.unit)}"
        assert self.required.at_most is not None
        return f"at most {_shown(self.required.at_most, self.unit)}"


class Curve(msgspec.Struct, frozen=True):
    """A figure over time, at equal intervals."""

    what: str
    unit: str
    interval_seconds: float
    values: list[float]


Result = Row | Curve


class Missing(msgspec.Struct, frozen=True):
    """A benchmark, or a part of one, that could not be run here, and why."""

    what: str
    reason: str


Yielded = Result | Missing


class Scene(msgspec.Struct, frozen=True):
    """What a benchmark is given to work with."""

    directory: Path  # empty, on a real disk, removed afterwards
    tell: Callable[[str], None]  # what is being done now, for whoever watches


def _shown(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
