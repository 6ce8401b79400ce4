"""Whose turn it is: which partition a consumer reads next, and which one is written next. Pure.

A consumer's turn follows from its positions: the partition least read so far is next, the lowest number
first. So any manager can answer the next consume, and none needs to keep a counter.
"""

from collections.abc import Iterable, Mapping, Sequence


def order_of_turns(positions: Mapping[int, int]) -> list[int]:
    """Partitions in the order in which they are to be read, by how far each was read."""
    return sorted(positions, key=lambda partition: (positions[partition], partition))


def first_with_messages(
    order: Iterable[int], positions: Mapping[int, int], ends: Mapping[int, int]
) -> int | None:
    """The first partition, in that order, that ends beyond where it was read."""
    return next((partition for partition in order if ends[partition] > positions[partition]), None)


def least_written(next_offsets: Sequence[int | None]) -> int:
    """Where round robin begins: the partition with the fewest messages, the lowest number first. One of
    which that is not known counts as full."""
    known = [(end, partition) for partition, end in enumerate(next_offsets) if end is not None]
    return min(known)[1] if known else 0
