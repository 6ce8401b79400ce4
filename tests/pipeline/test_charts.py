"""Charts show what was found, whatever was found: nothing is cut off, and nothing left out unsaid."""

from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from pipeline.made import moment
from talweg.pipeline.charts import (
    LEVEL_COLOURS,
    LINE_COLOURS,
    Draw,
    _by_minute,
    _by_topic,
    _error_rate,
    _sessions,
    draw_charts,
    drawn,
)
from talweg.pipeline.findings import ORDER, Findings, Minute, Visit
from talweg.pipeline.levels import UNPARSED

HOUR = tuple(
    Minute(topic, level, moment(60 * n), messages, 0)
    for n in range(60)
    for topic in ("logs", "web")
    for level, messages in (("INFO", 9), ("ERROR", 1))
)


def axes_of(draw: Draw, findings: Findings) -> Axes:
    (axes,) = drawn(draw, findings).axes
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
    axes = axes_of(_by_minute, Findings(minutes=tuple(told)))
    assert axes.get_title() == f"Messages by {step} and level"
    bars = [bar for container in axes.containers for bar in container]
    assert len(bars) <= 2 * 240
    assert sum(bar.get_height() for bar in bars) == sum(each.messages for each in told)


@pytest.mark.parametrize("year", [1, 1970, 2025, 2199, 9999])
def test_a_few_times_far_from_all_others_are_left_out_and_that_is_said(year: int) -> None:
    found = Findings(minutes=(*HOUR, Minute("web", "INFO", datetime(year, 1, 1, tzinfo=UTC), 1, 0)))
    by_minute, error_rate = axes_of(_by_minute, found), axes_of(_error_rate, found)
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
    axes = axes_of(
        _by_minute, Findings(minutes=(Minute("web", "INFO", moment(0) - earlier, count, 0), *HOUR))
    )
    assert "left out" not in axes.get_title()
    assert height(axes) == 1200 + count


@pytest.mark.parametrize("rest", [HOUR, (Minute("web", "INFO", moment(0), 1200, 0),)], ids=["hour", "minute"])
def test_a_quiet_beginning_stays_where_a_few_others_are_left_out(rest: tuple[Minute, ...]) -> None:
    quiet = Minute("web", "INFO", moment(-1800), 1, 0)
    unset = Minute("web", "INFO", datetime(1970, 1, 1, tzinfo=UTC), 3, 0)
    axes = axes_of(_by_minute, Findings(minutes=(unset, quiet, *rest)))
    assert axes.get_title().endswith("(left out: 3 messages far off in time)")
    assert height(axes) == 1201


def named_in_legend(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_legend_names_every_topic_and_every_level() -> None:
    alert = {"minute": moment(60).isoformat(), "rate": 0.5}
    own = tuple(Minute("_own", each.level, each.minute, 1, 0) for each in HOUR)
    found = Findings(minutes=(*HOUR, *own), alerts=(alert,))
    assert named_in_legend(drawn(_error_rate, found)) == ["_own", "logs", "web", "alert"]
    assert named_in_legend(drawn(_error_rate, Findings(minutes=own))) == ["_own"]
    assert named_in_legend(drawn(_by_topic, found)) == ["INFO", "ERROR"]
    # From the top down, as the bars lie on one another.
    assert named_in_legend(drawn(_by_minute, found)) == ["ERROR", "INFO"]


LONG = "production.europe-west.payments-gateway.request-log." * 5


@pytest.mark.parametrize("messages", [1, 10**6, 10**12])
@pytest.mark.parametrize("length", [1, 33, 90, 249])
@pytest.mark.parametrize("draw", [_by_minute, _by_topic, _error_rate])
def test_nothing_is_cut_off_or_covered_and_most_of_a_chart_is_chart(
    draw: Draw, length: int, messages: int
) -> None:
    topics = (LONG[:length], LONG[: length - 1] + "x")
    minutes = (Minute(topic, level, moment(0), messages, 0) for topic in topics for level in ORDER)
    figure = drawn(draw, Findings(minutes=tuple(minutes)))
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    width, height = figure.get_size_inches()
    shown = figure.get_tightbbox()
    assert (shown.x0 >= 0, shown.y0 >= 0, shown.x1 <= width, shown.y1 <= height) == (True,) * 4
    assert axes.get_window_extent().width > 0.4 * figure.bbox.width
    assert not Bbox.intersection(legend.get_window_extent(), axes.get_tightbbox())


def test_topics_whose_names_look_alike_when_shortened_have_a_bar_each() -> None:
    alike = [f"{'a' * 50}{n}{'z' * 50}" for n in range(3)]
    minutes = (Minute(topic, "INFO", moment(0), 5, 0) for topic in alike)
    axes = axes_of(_by_topic, Findings(minutes=tuple(minutes)))
    (bars,) = axes.containers
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in bars] == [(0, 5), (1, 5), (2, 5)]
    assert {text.get_text() for text in axes.get_yticklabels()} == {f"{'a' * 16}…{'z' * 15}"}


@pytest.mark.parametrize(("draw", "axis"), [(_by_minute, "yaxis"), (_by_topic, "xaxis")])
def test_millions_are_written_out(draw: Draw, axis: str) -> None:
    figure = drawn(draw, Findings(minutes=(Minute("logs", "INFO", moment(0), 4_000_000, 0),)))
    figure.draw_without_rendering()
    numbers = getattr(figure.axes[0], axis)
    assert "2,000,000" in {text.get_text() for text in numbers.get_ticklabels()}
    assert numbers.get_offset_text().get_text() == ""


def test_sessions_are_told_by_how_long_they_lasted_however_long_one_did() -> None:
    lasted = (0, 0, 0.9, 1, 4.9, 30, 59, 180, 34_000_000)
    figure = drawn(_sessions, Findings(visits=tuple(Visit(minutes, 1, 0) for minutes in lasted)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (bars,) = axes.containers
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert dict(zip(names, (bar.get_height() for bar in bars), strict=True)) == {
        "below 1": 3,
        "1 to 5": 2,
        "5 to 15": 0,
        "15 to 30": 0,
        "30 to 60": 2,
        "60 to 180": 0,
        "180 and more": 2,
    }
    assert [text.get_text() for text in axes.texts] == ["3", "2", "0", "0", "2", "0", "2"]
    assert axes.get_title() == "How long sessions lasted (9 of them)"


@pytest.mark.parametrize(("percent", "highest"), [(0, 5), (1, 5), (40, 40), (100, 100)])
def test_an_axis_of_rates_is_as_high_as_the_highest(percent: int, highest: int) -> None:
    levels = (("INFO", 100 - percent), ("ERROR", percent))
    minutes = (Minute("logs", level, moment(0), messages, 0) for level, messages in levels)
    bottom, top = axes_of(_error_rate, Findings(minutes=tuple(minutes))).get_ylim()
    assert bottom < 0
    assert highest / 100 <= top <= 1.2 * highest / 100


@pytest.mark.parametrize("rate", [-3, 1e300, 10**400, True, None, "high"])
def test_an_alerts_rate_is_drawn_as_a_rate_whatever_it_says(rate: object) -> None:
    axes = axes_of(_error_rate, Findings(minutes=HOUR, alerts=({"minute": str(moment(0)), "rate": rate},)))
    (alerts,) = axes.collections
    ((_, height),) = alerts.get_offsets()
    assert height in (0, 1)
    assert axes.get_ylim()[1] <= 1.1


@pytest.mark.parametrize("topics", [1, 3, 20, 30])
def test_one_topic_alone_is_no_broader_than_one_of_four(topics: int) -> None:
    minutes = (Minute(f"t{n}", "INFO", moment(0), 5, 0) for n in range(topics))
    axes = axes_of(_by_topic, Findings(minutes=tuple(minutes)))
    bottom, top = axes.get_ylim()
    (bars,) = axes.containers
    assert all(bar.get_height() <= (top - bottom) / 4 for bar in bars)
    assert all(bottom < bar.get_y() < bar.get_y() + bar.get_height() < top for bar in bars)


# What those see who lack one sort of cones, in linear light (Machado, Oliveira, Fernandes 2009).
SEEN = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def lab(colour: str, seen: str) -> np.ndarray:
    """A colour as CIELAB has it, where distances are what eyes tell apart."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light = np.clip(np.array(SEEN[seen]) @ linear, 0, 1)
    to_xyz = np.array(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)))
    x, y, z = np.cbrt(np.maximum(to_xyz @ light / np.array((0.9505, 1, 1.089)), 1e-9))
    return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("colours", [(*LEVEL_COLOURS.values(), "white"), (*LINE_COLOURS, "white", "#111111")])
def test_colours_can_be_told_apart_by_everybody(colours: tuple[str, ...], seen: str) -> None:
    places = [lab(colour, seen) for colour in colours]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2)) > 15


TOLD = Findings(
    minutes=tuple(
        Minute(topic, level, moment(60 * minute), messages, 0)
        for topic, level, minute, messages in (
            ("logs", "INFO", 0, 6),
            ("logs", "ERROR", 0, 1),
            ("logs", "FATAL", 0, 1),
            ("logs", UNPARSED, 0, 12),
            ("logs", "INFO", 2, 3),
            ("logs", "ERROR", 2, 1),
            ("web", "INFO", 1, 30),
            ("web", UNPARSED, 2, 9),
        )
    ),
    alerts=(
        {"topic": "logs", "minute": moment(0).isoformat(), "rate": 0.25},
        {"topic": "web", "minute": moment(120).isoformat(), "rate": 0.5},
        {"topic": "web", "minute": "soon", "rate": 0.5},
    ),
)


def bars(axes: Axes) -> dict[str, list[tuple[float, float, float, float]]]:
    """Of each colour: left, bottom, width, height."""
    return {
        to_hex(container[0].get_facecolor()): [
            (*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in container
        ]
        for container in axes.containers
    }


def test_bars_of_time_stand_on_one_another_with_the_messages_of_their_level() -> None:
    axes = axes_of(_by_minute, TOLD)
    found = {
        colour: [(num2date(left), bottom, height) for left, bottom, _, height in each]
        for colour, each in bars(axes).items()
    }
    times = [moment(0), moment(60), moment(120)]
    assert found == {
        LEVEL_COLOURS[level]: list(zip(times, bottoms, heights, strict=True))
        for level, bottoms, heights in (
            ("INFO", (0, 0, 0), (6, 30, 3)),
            ("ERROR", (6, 30, 3), (1, 0, 1)),
            ("FATAL", (7, 30, 4), (1, 0, 0)),
            (UNPARSED, (8, 30, 4), (12, 0, 9)),
        )
    }
    assert all(0 < width < 1 / (24 * 60) for each in bars(axes).values() for _, _, width, _ in each)


def test_bars_of_topics_lie_behind_one_another_with_the_messages_of_their_level() -> None:
    axes = axes_of(_by_topic, TOLD)
    assert {colour: [(left, width) for left, _, width, _ in each] for colour, each in bars(axes).items()} == {
        LEVEL_COLOURS["INFO"]: [(0, 9), (0, 30)],
        LEVEL_COLOURS["ERROR"]: [(9, 2), (30, 0)],
        LEVEL_COLOURS["FATAL"]: [(11, 1), (30, 0)],
        LEVEL_COLOURS[UNPARSED]: [(12, 12), (30, 9)],
    }
    assert [text.get_text() for text in axes.get_yticklabels()] == ["logs", "web"]
    assert [(text.get_text().strip(), *text.xy) for text in axes.texts] == [("24", 24, 0), ("39", 39, 1)]


def test_lines_are_rates_among_what_was_parsed_and_alerts_stand_at_theirs() -> None:
    axes = axes_of(_error_rate, TOLD)
    assert [
        (to_hex(line.get_color()), [*zip(num2date(line.get_xdata()), line.get_ydata(), strict=True)])
        for line in axes.lines
    ] == [
        (LINE_COLOURS[0], [(moment(0), 0.25), (moment(120), 0.25)]),
        (LINE_COLOURS[1], [(moment(60), 0.0)]),  # nothing of its last minute could be parsed
    ]
    (alerts,) = axes.collections
    assert [(num2date(place), rate) for place, rate in alerts.get_offsets()] == [
        (moment(0), 0.25),
        (moment(120), 0.5),
    ]


def test_each_chart_is_in_the_file_of_its_name(tmp_path: Path) -> None:
    told = msgspec.structs.replace(TOLD, visits=(Visit(2.0, 3, 0),))
    draws = {
        "messages-by-minute": _by_minute,
        "messages-by-topic": _by_topic,
        "error-rate": _error_rate,
        "sessions": _sessions,
    }
    paths = draw_charts(told, tmp_path)
    assert [path.stem for path in paths] == list(draws)
    for path in paths:
        alone = BytesIO()
        drawn(draws[path.stem], told).savefig(alone, format="png", dpi=110)
        assert path.read_bytes() == alone.getvalue()
