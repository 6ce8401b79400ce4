"""What readers see of a log: an immutable picture that the writer replaces as a whole.

A reader takes the picture once and works from it without a lock. Bytes that a picture shows never
change under it; files that are removed or cut meanwhile are noticed, and the reader looks again.
"""

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from talweg.storage.segment import Segment
from talweg.storage.sparse_index import SparseIndex


class Place(NamedTuple):
    """Where a frame begins, or the log ends."""

    number: int  # of the segment in the view
    position: int


class View(msgspec.Struct, frozen=True):
    """Entries start_index + 1 .. last_index, and where they are."""

    segments: tuple[Segment, ...]  # by base index; the last one may be growing
    start_index: int
    start_term: int
    start_offset: int
    start_timestamp: int  # newest message before the start
    start_at: int  # bytes, on the scale of Segment.begins_at
    last_index: int
    next_offset: int
    end_position: int  # in the last segment: what lies beyond is not (yet) part of the log
    points: SparseIndex  # of the last segment
    points_count: int  # how many of them may be looked at

    @property
    def end_at(self) -> int:
        """Where the log ends, on the scale of `start_at`."""
        return self.segments[-1].begins_at + self.end_position if self.segments else self.start_at

    def at(self, place: Place) -> int:
        """A place on the scale of `start_at`."""
        return self.segments[place.number].begins_at + place.position if self.segments else self.start_at

    def end_of(self, number: int) -> int:
        """Where the segment with this number ends, in its file."""
        is_last = number == len(self.segments) - 1
        return self.end_position if is_last else self.segments[number].contents.log_bytes

    def holding_index(self, index: int) -> int:
        """The number of the segment that holds an entry of the log."""
        return bisect_right(self.segments, index, key=_base_index) - 1

    def term(self, index: int) -> int:
        """Of an entry of the log, or of the one before its start."""
        if index <= self.start_index:
            return self.start_term
        terms = self.segments[self.holding_index(index)].contents.terms
        return terms[bisect_right(terms, index, key=_first_index) - 1][1]

    def holding_offset(self, offset: int) -> int:
        """The number of the segment that holds an offset of the log."""
        # The first one begins before the log's start when the head was dropped inside it.
        return max(bisect_right(self.segments, offset, key=_first_offset) - 1, 0)


def _base_index(segment: Segment) -> int:
    return segment.base_index


def _first_offset(segment: Segment) -> int:
    return segment.contents.first_offset


def _first_index(run: tuple[int, int]) -> int:
    return run[0]
