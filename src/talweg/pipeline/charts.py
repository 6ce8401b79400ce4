"""Charts of a report, drawn by matplotlib without a screen: each a PNG file of its own."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from talweg.pipeline.findings import ORDER, Findings, Minute, number_in
from talweg.pipeline.levels import GRAVE, NONE, UNPARSED

# Chosen so that people who do not see red, green or blue can tell them apart as well.
LEVEL_COLOURS: Final = {
    "TRACE": "#c7cfe0",
    "DEBUG": "#7fa8f0",
    "INFO": "#1f5fa8",
    "WARN": "#f0981e",
    "ERROR": "#c0402c",
    "FATAL": "#50131d",
    NONE: "#b3aa98",
    UNPARSED: "#7c656c",
}
LINE_COLOURS: Final = (
    "#2a5cdd", "#e8a90c", "#1ea364", "#b0380a", "#35bfe6", "#4a0e6f", "#a0899e", "#5f5d60",
)  # fmt: skip
_MARKERS: Final = "osD^PX*p"  # one for each line, so that its colour need not say it all
_MARKERS_MAX: Final = 40  # along a line
_RATE_MIN: Final = 0.05  # that an axis of rates goes up to: what hardly ever fails should look so
_MINUTE: Final = 1 / (24 * 60)  # in days, which is how matplotlib counts
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FAR: Final = datetime(2200, 1, 1, tzinfo=UTC)
_PARSED: Final = tuple(level for level in ORDER if level != UNPARSED)
_SIZE_INCHES: Final = (9.0, 4.2)
_TOPICS_MAX: Final = 8  # lines that can be told apart; more would only be a tangle
_BARS_MAX: Final = 20  # topics with a bar each
_BARS_MIN: Final = 4  # that there is room for: one alone would be as broad as the chart
_LABEL_MAX: Final = 32  # characters of a topic's name, which may have 249: the chart wants room, too
_STEPS_MAX: Final = 200  # along a time axis: narrower bars would be less than a pixel or two
_HOUR: Final = timedelta(hours=1)
_FAR_PART: Final = 100  # of so many messages one may be too far from the others, at either end of the axis
_FAR_TIMES: Final = 10  # only if that makes the axis so many times shorter
_LASTED: Final = (1, 5, 15, 30, 60, 180)  # minutes of sessions: where one bar ends and the next begins
# How long a step is, in minutes, and what it is called.
_STEPS: Final = {
    1: "minute",
    5: "5 minutes",
    15: "15 minutes",
    60: "hour",
    360: "6 hours",
    1440: "day",
    10_080: "week",
    43_200: "30 days",
}

Draw = Callable[[Findings, Axes], None]
Steps = dict[datetime, Counter[tuple[str, str]]]  # when each begins; messages by topic and level


def draw_charts(findings: Findings, directory: Path) -> list[Path]:
    """Write those charts for which there is something to show; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in _wanted(findings):
        path = directory / f"{name}.png"
        drawn(draw, findings).savefig(path, format="png", dpi=110)
        paths.append(path)
    return paths


def drawn(draw: Draw, findings: Findings) -> Figure:
    """One chart."""
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    draw(findings, axes)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _wanted(findings: Findings) -> Iterator[tuple[str, Draw]]:
    if _dated(findings):
        yield "messages-by-minute", _by_minute
    if findings.minutes:
        yield "messages-by-topic", _by_topic
    if _dated(findings):
        yield "error-rate", _error_rate
    if findings.visits:
        yield "sessions", _sessions


def _by_minute(findings: Findings, axes: Axes) -> None:
    step, counts, far = _by_step(findings)
    moments = sorted(counts)
    base = [0] * len(moments)
    for level in findings.levels:
        heights = [_sum(counts[moment], levels=(level,)) for moment in moments]
        axes.bar(
            _places(moments),
            heights,
            _MINUTE * step * 0.9,
            bottom=base,
            color=LEVEL_COLOURS[level],
            align="edge",
        )
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_title(f"Messages by {_STEPS[step]} and level" + _left_out(far=far))
    axes.set_ylabel("messages")
    _whole_numbers(axes.yaxis)
    _time_axis(axes, moments, step)
    _legend_of_levels(axes, findings.levels[::-1])  # from the top down, as they lie on one another


def _by_topic(findings: Findings, axes: Axes) -> None:
    topics = sorted(findings.topics, key=findings.messages)[-_BARS_MAX:]
    base = [0] * len(topics)
    for level in findings.levels:
        widths = [findings.messages(topic, level) for topic in topics]
        axes.barh(range(len(topics)), widths, left=base, color=LEVEL_COLOURS[level])
        base = [before + width for before, width in zip(base, widths, strict=True)]
    for place, total in enumerate(base):
        axes.annotate(f" {total:,}", (total, place), va="center")
    axes.set_yticks(range(len(topics)), map(_shortened, topics))
    middle, half = (len(topics) - 1) / 2, max(len(topics), _BARS_MIN) / 2
    axes.set_ylim(middle - half, middle + half)
    axes.set_title("Messages by topic and level" + _left_out(topics=len(findings.topics) - len(topics)))
    axes.set_xlabel("messages")
    _whole_numbers(axes.xaxis)
    _legend_of_levels(axes, findings.levels)


def _error_rate(findings: Findings, axes: Axes) -> None:
    step, counts, far = _by_step(findings)
    topics = sorted(sorted(findings.topics, key=findings.messages)[-_TOPICS_MAX:])
    for topic, colour, marker in zip(topics, LINE_COLOURS, _MARKERS, strict=False):
        moments, rates = _rates(counts, topic)
        every = 1 + len(moments) // _MARKERS_MAX
        axes.plot(
            _places(moments), rates, marker=marker, markevery=every, markersize=5, linewidth=1.2, color=colour
        )
    shown, names = list[Artist](axes.lines), [*map(_shortened, topics)]
    if spikes := _spikes(findings):
        places, rates = _places([moment for moment, _ in spikes]), [rate for _, rate in spikes]
        shown.append(axes.scatter(places, rates, marker="v", s=90, color="#111111", zorder=5))
        names.append("alert")
    title = f"Errors among the parsed messages, by {_STEPS[step]}"
    axes.set_title(title + _left_out(topics=len(findings.topics) - len(topics), far=far))
    axes.set_ylabel("error rate")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    highest = max(_RATE_MIN, axes.get_ylim()[1])
    axes.set_ylim(-highest / 50, highest)  # all of a marker at zero is seen
    _time_axis(axes, sorted(counts), step)
    _legend(axes, shown, names)


def _spikes(findings: Findings) -> list[tuple[datetime, float]]:
    """When there was an alert, and the rate it tells of: as a rate, whatever anybody wrote there."""
    rates = ((_minute(each), number_in(each, "rate")) for each in findings.alerts)
    return [(minute, min(max(rate, 0.0), 1.0)) for minute, rate in rates if minute is not None]


def _rates(counts: Steps, topic: str) -> tuple[list[datetime], list[float]]:
    """When a topic had messages that could be parsed, and what part of them were errors."""
    parsed = {moment: _sum(each, topic, _PARSED) for moment, each in sorted(counts.items())}
    moments = [moment for moment, count in parsed.items() if count]
    return moments, [_sum(counts[moment], topic, GRAVE) / parsed[moment] for moment in moments]


def _sum(counts: Counter[tuple[str, str]], topic: str | None = None, levels: Sequence[str] = ORDER) -> int:
    return sum(count for (name, level), count in counts.items() if topic in (None, name) and level in levels)


def _sessions(findings: Findings, axes: Axes) -> None:
    # Bars of equal breadth would be one bar: most visitors stay for minutes, and some program all day.
    counts = Counter(bisect(_LASTED, visit.minutes) for visit in findings.visits)
    between = (f"{begin} to {end}" for begin, end in pairwise(_LASTED))
    names = (f"below {_LASTED[0]}", *between, f"{_LASTED[-1]} and more")
    bars = axes.bar(names, [counts[place] for place in range(len(names))], color=LEVEL_COLOURS["INFO"])
    axes.bar_label(bars, fmt="{:,.0f}")
    axes.set_title(f"How long sessions lasted ({len(findings.visits):,} of them)")
    axes.set_xlabel("minutes from the first request to the last")
    axes.set_ylabel("sessions")
    _whole_numbers(axes.yaxis)


def _by_step(findings: Findings) -> tuple[int, Steps, int]:
    """Minutes that are drawn as one, so that a month can be read as well as an hour: how many, what they add
    up to, and how many messages are left out, because their times are too far from all others."""
    first, last = _middle(_dated(findings))
    step = next(
        (step for step in _STEPS if (last - first) / timedelta(minutes=step) < _STEPS_MAX), max(_STEPS)
    )
    counts: Steps = defaultdict(Counter)
    for each in findings.minutes:
        if first <= each.minute <= last:
            counts[_floor(each.minute, step)][each.topic, each.level] += each.messages
    return step, counts, findings.messages() - sum(each.total() for each in counts.values())


def _dated(findings: Findings) -> list[Minute]:
    """What can stand on a time axis. A time before 1970 is a clock that was never set, such as Go's of the
    year 1, one far ahead a number in the wrong unit: they would leave a single bar for everything else."""
    return [each for each in findings.minutes if _EPOCH <= each.minute < _FAR]


def _middle(dated: list[Minute]) -> tuple[datetime, datetime]:
    """The first and the last minute that are shown. A clock that begins with 1970 whenever its machine does,
    or that is a year off, leaves a single bar for everything else as well. Its times are possible ones: what
    gives it away is how few messages have them, and how far they are from all the rest."""
    counts: Counter[datetime] = Counter()
    for each in dated:
        counts[each.minute] += each.messages
    moments = sorted(counts)
    first, last = _behind_the_few(moments, counts), _behind_the_few(moments[::-1], counts)
    # What is near to most of them stays, however little it is.
    margin = max(last - first, _HOUR)
    near = [moment for moment in moments if first - margin <= moment <= last + margin]
    whole, shorter = moments[-1] - moments[0], max(near[-1] - near[0], _HOUR)
    return (near[0], near[-1]) if whole > _FAR_TIMES * shorter else (moments[0], moments[-1])


def _behind_the_few(moments: Sequence[datetime], counts: Counter[datetime]) -> datetime:
    """Where so many messages have come by that they are more than a few."""
    few = counts.total() // _FAR_PART
    sums = accumulate(counts[moment] for moment in moments)
    return next((moment for moment, so_far in zip(moments, sums, strict=True) if so_far > few), moments[0])


def _left_out(*, topics: int = 0, far: int = 0) -> str:
    """What a title says of that, in a line of its own."""
    parts = []
    if topics:
        parts.append(f"{topics:,} smaller topic{'s' if topics > 1 else ''}")
    if far:
        parts.append(f"{far:,} message{'s' if far > 1 else ''} far off in time")
    return f"\n(left out: {', '.join(parts)})" if parts else ""


def _floor(minute: datetime, step: int) -> datetime:
    """When the step began that a minute is in."""
    return minute - (minute - _EPOCH) % timedelta(minutes=step)


def _minute(alert: dict[str, object]) -> datetime | None:
    try:
        minute = datetime.fromisoformat(str(alert.get("minute"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return minute if _EPOCH <= minute < _FAR else None


def _time_axis(axes: Axes, moments: list[datetime], step: int) -> None:
    # A single minute would else be drawn as broad as a year.
    places = _places(moments)
    axes.set_xlim(places[0] - 2 * step * _MINUTE, places[-1] + 3 * step * _MINUTE)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time (UTC)")


def _places(moments: list[datetime]) -> list[float]:
    return [float(date2num(moment)) for moment in moments]  # type: ignore[no-untyped-call]


def _whole_numbers(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _shortened(name: str) -> str:
    """Names of one system often begin alike, and their ends alone may be alike too: both are kept."""
    half = _LABEL_MAX // 2
    return name if len(name) <= _LABEL_MAX else f"{name[:half]}…{name[1 - half :]}"


def _legend_of_levels(axes: Axes, levels: Sequence[str]) -> None:
    _legend(axes, [Patch(color=LEVEL_COLOURS[level]) for level in levels], levels)


def _legend(axes: Axes, shown: Sequence[Artist], names: Sequence[str]) -> None:
    """Beside the chart and whatever sticks out of it. One that matplotlib puts together by itself lacks names
    that begin with an underscore."""
    axes.figure.legend(shown, names, loc="outside right upper", frameon=False)
