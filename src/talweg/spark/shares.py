"""How much of each partition: splitting stretches into more tasks, and a limit into shares. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from talweg.client.partition_log import Stretch

K = TypeVar("K")


def split(stretches: Sequence[Stretch], tasks_min: int | None) -> list[Stretch]:
    """The same messages in at least so many stretches (if there are as many), those of a kind of length."""
    kept = [stretch for stretch in stretches if len(stretch) > 0]
    if tasks_min is None or len(kept) >= tasks_min:
        return kept
    # Each stretch is a task already; those that are left go, one by one, to where tasks are longest.
    wanted = min(tasks_min, sum(map(len, kept)))
    parts = [1] * len(kept)
    for _ in range(wanted - len(kept)):
        longest = max(range(len(kept)), key=lambda number: len(kept[number]) / parts[number])
        parts[longest] += 1
    return [piece for stretch, count in zip(kept, parts, strict=True) for piece in _cut(stretch, count)]


def _cut(stretch: Stretch, count: int) -> list[Stretch]:
    bounds = [stretch.begin + len(stretch) * number // count for number in range(count + 1)]
    return [
        msgspec.structs.replace(stretch, begin=begin, end=end) for begin, end in itertools.pairwise(bounds)
    ]


def share(limit: int, available: Mapping[K, int]) -> dict[K, int]:
    """What each may have so that it is no more than the limit in all, and in proportion to what it has.

    In proportion, so that partitions that are behind catch up together and event times stay near each other.
    """
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    shares = {name: limit * count // total for name, count in available.items()}
    left = limit - sum(shares.values())
    by_remainder = sorted(available, key=lambda name: limit * available[name] % total, reverse=True)
    for name in by_remainder[:left]:
        shares[name] += 1
    return shares
