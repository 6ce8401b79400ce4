"""How much of each partition: splitting stretches into more tasks, and a limit into shares. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

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


def share(limit: int, available: Mapping[K, int], lengths: Mapping[K, float] | None = None) -> dict[K, int]:
    """How many messages each may have, so that all of them together are no longer than the limit. A message
    counts as long as `lengths` says for its name, or as 1.

    One for each first, in the order in which they are given, as far as the limit goes: beside one that is far
    behind, the share of another may be less than a message for ever. The very first may be longer than the
    limit, or a long message would stop everything. What is left is shared in proportion to what each has, so
    that partitions that are behind catch up together and event times stay near each other.
    """
    lengths = lengths or dict.fromkeys(available, 1)
    shares = dict.fromkeys(available, 0)
    left: float = limit

    def give(name: K, count: int) -> None:
        nonlocal left
        shares[name] += count
        left -= count * lengths[name]

    def takes_more(name: K) -> bool:
        return shares[name] < available[name] and lengths[name] <= left

    for name, count in available.items():
        if takes_more(name) or (count and left == limit):
            give(name, 1)
    # Again for those whose messages are short enough, as long as there are any.
    while wanted := {
        name: (available[name] - shares[name]) * lengths[name] for name in available if takes_more(name)
    }:
        there, total = left, max(sum(wanted.values()), left)
        cut_off = {}  # by rounding down to whole messages: who loses most gets one more, if there is room
        for name, length in wanted.items():
            whole, cut_off[name] = divmod(there * length, total * lengths[name])
            give(name, int(whole))
        for name in sorted(wanted, key=lambda each: cut_off[each], reverse=True):
            if takes_more(name):
                give(name, 1)
    return shares


class Turns(Generic[K]):
    """Who comes first where a limit leaves nothing for some: whoever has waited longest. So nobody waits for
    more micro-batches than there are partitions, however much the others have."""

    def __init__(self) -> None:
        self._batches = 0
        self._served: dict[K, int] = {}  # in which batch each had something last

    def in_turn(self, available: Mapping[K, int]) -> dict[K, int]:
        """The same, in the order of their turns."""
        return dict(sorted(available.items(), key=lambda each: self._served.get(each[0], 0)))

    def note(self, shares: Mapping[K, int]) -> None:
        """These are had in the next batch."""
        self._batches += 1
        self._served.update((name, self._batches) for name, count in shares.items() if count)
