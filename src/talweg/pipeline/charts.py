"""Charts of a report, drawn by matplotlib without a screen: each a PNG file of its own."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from talweg.pipeline.findings import Findings
from talweg.pipeline.levels import GRAVE, NONE, UNPARSED

_COLOURS: Final = {
    "TRACE": "#d0d7de",
    "DEBUG": "#9fb3c8",
    "INFO": "#3a7ca5",
    "WARN": "#f2b134",
    "ERROR": "#d1495b",
    "FATAL": "#7b1e3b",
    NONE: "#b8b8b8",
    UNPARSED: "#5b5b5b",
}
_LINES: Final = ("#3a7ca5", "#d1495b", "#edae49", "#00798c", "#6d597a", "#66a182", "#8d6a4f", "#5b5b5b")
_MINUTE: Final = 1 / (24 * 60)  # in days, which is how matplotlib counts
_SIZE_INCHES: Final = (9.0, 4.2)
_TOPICS_MAX: Final = 8  # lines that can be told apart; more would only be a tangle
_BARS_MAX: Final = 20  # topics with a bar each

Draw = Callable[[Findings, Axes], None]


def draw_charts(findings: Findings, directory: Path) -> list[Path]:
    """Write those charts for which there is something to show; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in _wanted(findings):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        draw(findings, axes)
        axes.spines[["top", "right"]].set_visible(False)
        path = directory / f"{name}.png"
        figure.savefig(path, format="png", dpi=110)
        paths.append(path)
    return paths


def _wanted(findings: Findings) -> Iterator[tuple[str, Draw]]:
    if findings.minutes:
        yield "messages-by-minute", _by_minute
        yield "messages-by-topic", _by_topic
        yield "error-rate", _error_rate
    if findings.visits:
        yield "sessions", _sessions


def _by_minute(findings: Findings, axes: Axes) -> None:
    minutes = sorted({each.minute for each in findings.minutes})
    place = {minute: number for number, minute in enumerate(minutes)}
    base = [0] * len(minutes)
    for level in findings.levels:
        heights = [0] * len(minutes)
        for each in findings.minutes:
            if each.level == level:
                heights[place[each.minute]] += each.messages
        axes.bar(
            _places(minutes),
            heights,
            _MINUTE * 0.9,
            bottom=base,
            color=_COLOURS[level],
            label=level,
            align="edge",
        )
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_title("Messages by minute and level")
    axes.set_ylabel("messages")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _time_axis(axes, minutes)
    _legend(axes)


def _by_topic(findings: Findings, axes: Axes) -> None:
    topics = sorted(findings.topics, key=findings.messages)[-_BARS_MAX:]
    base = [0] * len(topics)
    for level in findings.levels:
        widths = [findings.messages(topic, level) for topic in topics]
        axes.barh(topics, widths, left=base, color=_COLOURS[level], label=level)
        base = [before + width for before, width in zip(base, widths, strict=True)]
    for place, total in enumerate(base):
        axes.annotate(f" {total:,}", (total, place), va="center")
    axes.margins(x=0.12)
    left_out = len(findings.topics) - len(topics)
    axes.set_title(
        "Messages by topic and level" + (f" ({left_out} smaller topics left out)" if left_out else "")
    )
    axes.set_xlabel("messages")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("topic")
    _legend(axes)


def _error_rate(findings: Findings, axes: Axes) -> None:
    topics = sorted(findings.topics, key=findings.messages)[-_TOPICS_MAX:]
    for topic, colour in zip(sorted(topics), _LINES, strict=False):
        minutes, rates = _rates(findings, topic)
        axes.plot(_places(minutes), rates, marker="o", markersize=3, linewidth=1.2, color=colour, label=topic)
    spikes = [(minute, float(each.get("rate", 0))) for each in findings.alerts if (minute := _minute(each))]
    if spikes:
        places = _places([minute for minute, _ in spikes])
        axes.scatter(
            places, [rate for _, rate in spikes], marker="v", s=90, color="#111111", zorder=5, label="alert"
        )
    axes.set_title("Errors among the parsed messages, by minute")
    axes.set_ylabel("error rate")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.05)
    _time_axis(axes, sorted({each.minute for each in findings.minutes}))
    _legend(axes)


def _rates(findings: Findings, topic: str) -> tuple[list[datetime], list[float]]:
    parsed: dict[datetime, int] = {}
    errors: dict[datetime, int] = {}
    for each in findings.minutes:
        if each.topic == topic and each.level != UNPARSED:
            parsed[each.minute] = parsed.get(each.minute, 0) + each.messages
            errors[each.minute] = errors.get(each.minute, 0) + each.messages * (each.level in GRAVE)
    minutes = sorted(parsed)
    return minutes, [errors[minute] / parsed[minute] for minute in minutes]


def _sessions(findings: Findings, axes: Axes) -> None:
    axes.hist(
        [visit.minutes for visit in findings.visits], bins=20, color=_COLOURS["INFO"], edgecolor="white"
    )
    axes.set_title(f"How long sessions lasted ({len(findings.visits):,} of them)")
    axes.set_xlabel("minutes from the first request to the last")
    axes.set_ylabel("sessions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _minute(alert: dict[str, object]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(alert.get("minute"))).astimezone(UTC)
    except ValueError:
        return None


def _time_axis(axes: Axes, minutes: list[datetime]) -> None:
    # A single minute would else be drawn as broad as a year.
    places = _places(minutes)
    axes.set_xlim(places[0] - 2 * _MINUTE, places[-1] + 3 * _MINUTE)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time (UTC)")


def _places(moments: list[datetime]) -> list[float]:
    return [float(date2num(moment)) for moment in moments]  # type: ignore[no-untyped-call]


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
