"""Where in a segment to begin looking: one point for every so many bytes.

Each point names a frame: its index, its first offset, its position, and the newest timestamp of any
message *before* it in the segment. All four only ever grow, so each can be searched by halving.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right

_COLUMNS = 4
_WIDTH = 8


class SparseIndex:
    """The points of one segment. Added to by the writer; readers say how many they may look at."""

    __slots__ = ("indexes", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.offsets = array("Q")
        self.timestamps = array("q")
        self.positions = array("Q")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, index: int, offset: int, timestamp: int, position: int) -> None:
        """The frame at `position` becomes a point."""
        self.indexes.append(index)
        self.offsets.append(offset)
        self.timestamps.append(timestamp)
        self.positions.append(position)

    def before_index(self, index: int, count: int) -> int:
        """The last of the first `count` points at or before the entry; there must be one."""
        return bisect_right(self.indexes, index, 0, count) - 1

    def before_offset(self, offset: int, count: int) -> int:
        """The last point whose frame begins at or before the offset."""
        return bisect_right(self.offsets, offset, 0, count) - 1

    def before_timestamp(self, timestamp: int, count: int) -> int:
        """The last point before which every message is older than `timestamp`."""
        return max(bisect_left(self.timestamps, timestamp, 0, count) - 1, 0)

    def head(self, count: int) -> "SparseIndex":
        """A copy of the first `count` points."""
        copy = SparseIndex()
        copy.indexes = self.indexes[:count]
        copy.offsets = self.offsets[:count]
        copy.timestamps = self.timestamps[:count]
        copy.positions = self.positions[:count]
        return copy

    def to_bytes(self) -> bytes:
        """Column by column, little-endian."""
        return b"".join(
            _little_endian(column).tobytes()
            for column in (self.indexes, self.offsets, self.timestamps, self.positions)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "SparseIndex":
        """Read back what `to_bytes` wrote; raises ValueError for anything else."""
        if len(data) % (_COLUMNS * _WIDTH):
            raise ValueError(f"{len(data)} bytes are no whole number of points")
        size = len(data) // _COLUMNS
        read = cls()
        columns = (read.indexes, read.offsets, read.timestamps, read.positions)
        for number, column in enumerate(columns):
            column.frombytes(data[number * size : (number + 1) * size])
        if sys.byteorder != "little":
            for column in columns:
                column.byteswap()
        return read


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
