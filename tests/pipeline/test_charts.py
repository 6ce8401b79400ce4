"""Charts show what was found, whatever was found: nothing is cut off, and nothing left out unsaid."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.made import moment
from talweg.pipeline.charts import _by_minute, _error_rate
from talweg.pipeline.findings import Findings, Minute

HOUR = tuple(
    Minute(topic, level, moment(60 * n), messages, 0)
    for n in range(60)
    for topic in ("logs", "web")
    for level, messages in (("INFO", 9), ("ERROR", 1))
)


def drawn(draw: Callable[[Findings, Axes], None], findings: Findings) -> Axes:
    axes = Figure().add_subplot()
    draw(findings, axes)
    return axes


def height(axes: Axes) -> float:
    """Of all bars together."""
    return sum(bar.get_height() for container in axes.containers for bar in container)


@pytest.mark.parametrize(
    ("minutes", "step"),
    [(1, "minute"), (180, "minute"), (1440, "15 minutes"), (10_080, "hour"), (10**7, "30 days")],
)
def test_a_time_axis_has_as_many_steps_as_can_be_told_apart(minutes: int, step: str) -> None:
    told = [
        Minute("logs", level, moment(60 * n * minutes // 500), n, 0)
        for n in range(500)
        for level in ("INFO", "ERROR")
    ]
    axes = drawn(_by_minute, Findings(minutes=tuple(told)))
    assert axes.get_title() == f"Messages by {step} and level"
    bars = [bar for container in axes.containers for bar in container]
    assert len(bars) <= 2 * 240
    assert sum(bar.get_height() for bar in bars) == sum(each.messages for each in told)


@pytest.mark.parametrize("year", [1, 1970, 2025, 2199, 9999])
def test_a_few_times_far_from_all_others_are_left_out_and_that_is_said(year: int) -> None:
    found = Findings(minutes=(*HOUR, Minute("web", "INFO", datetime(year, 1, 1, tzinfo=UTC), 1, 0)))
    by_minute, error_rate = drawn(_by_minute, found), drawn(_error_rate, found)
    for axes in (by_minute, error_rate):
        title, left_out = axes.get_title().splitlines()
        assert "by minute" in title
        assert left_out == "(left out: 1 message far off in time)"
    assert height(by_minute) == 1200
    assert [len(line.get_xdata()) for line in error_rate.lines] == [60, 60]


@pytest.mark.parametrize(
    ("count", "earlier"),
    [
        pytest.param(1, timedelta(hours=3), id="not far"),
        pytest.param(13, timedelta(days=400), id="not few"),
        pytest.param(1200, timedelta(days=400), id="half of them"),
    ],
)
def test_what_is_not_far_or_not_little_stays_on_the_axis(count: int, earlier: timedelta) -> None:
    axes = drawn(_by_minute, Findings(minutes=(Minute("web", "INFO", moment(0) - earlier, count, 0), *HOUR)))
    assert "left out" not in axes.get_title()
    assert height(axes) == 1200 + count


@pytest.mark.parametrize("rest", [HOUR, (Minute("web", "INFO", moment(0), 1200, 0),)], ids=["hour", "minute"])
def test_a_quiet_beginning_stays_where_a_few_others_are_left_out(rest: tuple[Minute, ...]) -> None:
    quiet = Minute("web", "INFO", moment(-1800), 1, 0)
    unset = Minute("web", "INFO", datetime(1970, 1, 1, tzinfo=UTC), 3, 0)
    axes = drawn(_by_minute, Findings(minutes=(unset, quiet, *rest)))
    assert axes.get_title().endswith("(left out: 3 messages far off in time)")
    assert height(axes) == 1201
