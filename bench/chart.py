"""A curve as a few lines of text."""

from itertools import pairwise
from statistics import mean

from bench.results import Curve

_BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS_MAX = 60
ROWS = 4


def lines(curve: Curve) -> list[str]:
    """The curve from zero up, time from left to right."""
    values = _columns(curve.values)
    top = max(values, default=0.0) or 1.0
    seconds = len(curve.values) * curve.interval_seconds
    drawn = []
    for row in reversed(range(ROWS)):
        label = f"{top * (row + 1) / ROWS:8.0f} " if row in (0, ROWS - 1) else " " * 9
        drawn.append(label + "".join(_block(value / top * ROWS - row) for value in values))
    axis = f"{'0':<{max(len(values) - 6, 1)}}{seconds:4.0f} s"
    return [f"{curve.what} ({curve.unit})", *drawn, " " * 9 + axis]


def _block(height: float) -> str:
    return _BLOCKS[round(min(max(height, 0.0), 1.0) * (len(_BLOCKS) - 1))]


def _columns(values: list[float]) -> list[float]:
    count = min(len(values), COLUMNS_MAX)
    edges = [number * len(values) // count for number in range(count + 1)] if count else []
    return [mean(values[begin:end]) for begin, end in pairwise(edges)]
