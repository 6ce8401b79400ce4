"""Finding and reading entries in segment files: by index, by offset, by timestamp.

A sparse index says where to begin, a few headers lead to the exact place. Where a read ended is
remembered, so whoever reads on in order is not made to look for the place again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from talweg.errors import OffsetOutOfRange
from talweg.raft import Entry
from talweg.records import Header, Kind
from talweg.storage.contents import Contents, Mark
from talweg.storage.frames import entry_of
from talweg.storage.index_cache import IndexCache
from talweg.storage.scan import Unsound, UnsoundEntry, frames, headers
from talweg.storage.segment import Segment
from talweg.storage.sparse_index import SparseIndex
from talweg.storage.view import Place, View

_SLACK_BYTES = 128 << 10  # read beyond what is asked for, so that a frame just over it is read at once
_End = tuple[Segment, int, int]  # where a read ended: the position, and the index of what begins there
_ENDS_MAX = 256  # places remembered; when there are more, all are forgotten


class _Walk:
    """Where a reader is: which segment, where in it, and the index of the entry that begins there."""

    __slots__ = ("index", "number", "position")

    def __init__(self, place: Place, index: int) -> None:
        self.number, self.position = place
        self.index = index

    def step_back(self, frame: bytes) -> None:
        """The frame given last was one too many."""
        self.position -= len(frame)
        self.index -= 1

    def end(self, view: View) -> _End:
        """To be remembered."""
        return view.segments[self.number], self.position, self.index


class Survey(NamedTuple):
    """What the log is like right after an entry."""

    place: Place  # of the next entry
    next_offset: int
    last_timestamp: int  # newest message so far
    points: int  # of the segment, up to here


class LogReader:
    """Reads from a `View`. Raises UnsoundEntry, FileGone, OSError; the store makes sense of them."""

    def __init__(self, cache: IndexCache) -> None:
        self._cache = cache
        self._ends_by_index: dict[int, _End] = {}
        self._ends_by_offset: dict[int, _End] = {}

    def entries(self, view: View, first_index: int, bytes_max: int, last_index: int) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` but at least one if there is one."""
        last_index = min(last_index, view.last_index)
        if first_index <= view.start_index:
            raise OffsetOutOfRange(f"entry {first_index} is below the log's start, {view.start_index + 1}")
        if first_index > last_index:
            return []
        found: list[Entry] = []
        total = 0
        walk = _Walk(self._place_of_index(view, first_index), first_index)
        try:
            for header, frame in self._frames(view, walk, bytes_max):
                total += len(frame)
                if header.index > last_index or (total > bytes_max and found):
                    walk.step_back(frame)
                    break
                found.append(entry_of(header, frame))
        except UnsoundEntry:
            if not found:
                raise  # otherwise whoever reads on will meet it
        _remember(self._ends_by_index, walk.index, walk.end(view))
        return found

    def record_frames(self, view: View, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of kind RECORDS from the one that holds `offset` on, up to `last_index`."""
        last_index = min(last_index, view.last_index)
        if offset < view.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is below the log's start, {view.start_offset}")
        if offset >= view.next_offset:
            return []
        found: list[bytes] = []
        total, next_offset = 0, offset
        walk = _Walk(*self._place_of_offset(view, offset))
        try:
            for header, frame in self._frames(view, walk, bytes_max):
                total += len(frame)
                if header.index > last_index or (total > bytes_max and found):
                    walk.step_back(frame)
                    break
                if header.kind is Kind.RECORDS:
                    found.append(frame)
                    next_offset = header.next_offset
        except UnsoundEntry:
            if not found:
                raise
        _remember(self._ends_by_offset, next_offset, walk.end(view))
        return found

    def offset_at(self, view: View, timestamp: int, last_index: int) -> int:
        """The first offset of the first batch that holds a message at or after `timestamp`."""
        last_index = min(last_index, view.last_index)
        for number, segment in enumerate(view.segments):
            if segment.base_index > last_index:
                break
            if segment.contents.timestamp_max < timestamp:
                continue
            points, count = self._points(view, number)
            if not count:
                continue  # of what it held, nothing is part of the log any more
            point = points.before_timestamp(timestamp, count)
            for _, header in self._headers(view, *_place_of_point(view, number, points, point)):
                if header.index > last_index:
                    break
                if header.kind is Kind.RECORDS and header.last_timestamp >= timestamp:
                    return header.first_offset
        return self.survey(view, last_index).next_offset

    def survey(self, view: View, index: int) -> Survey:
        """What the log is like right after the entry at `index`, which may be the one before its start."""
        assert index <= view.last_index
        if index <= view.start_index:
            position = view.start_at - view.segments[0].begins_at if view.segments else 0
            return Survey(Place(0, position), view.start_offset, view.start_timestamp, 0)
        number = view.holding_index(index)
        points, count = self._points(view, number)
        point = points.before_index(index, count)
        newest = max(
            view.start_timestamp,
            points.timestamps[point],
            *(segment.contents.timestamp_max for segment in view.segments[:number]),
        )
        for position, header in self._headers(view, *_place_of_point(view, number, points, point)):
            if header.kind is Kind.RECORDS:
                newest = max(newest, header.last_timestamp)
            if header.index == index:
                end = Place(number, position + header.frame_bytes)
                return Survey(end, header.next_offset, newest, point + 1)
        raise UnsoundEntry(index, "its segment ends before it")

    def contents_until(self, view: View, index: int) -> Contents:
        """What the segment that holds an entry would hold if it ended there."""
        survey = self.survey(view, index)
        number, position = survey.place
        contents = view.segments[number].contents
        mark = Mark(
            last_index=max(index, contents.first_index - 1),
            next_offset=survey.next_offset,
            log_bytes=position,
            timestamp_max=survey.last_timestamp,
            terms=sum(1 for first, _ in contents.terms if first <= index),
            configurations=sum(1 for at, _ in contents.configurations if at <= index),
            points=survey.points,
        )
        return contents.head(self._points(view, number)[0], mark)

    def forget(self) -> None:
        """Let go of remembered places, and of the segments that they hold on to."""
        self._ends_by_index.clear()
        self._ends_by_offset.clear()

    # Places

    def _place_of_index(self, view: View, index: int) -> Place:
        number = view.holding_index(index)
        end = self._ends_by_index.get(index)
        if end is not None and end[0] is view.segments[number]:
            return Place(number, end[1])
        points, count = self._points(view, number)
        point = points.before_index(index, count)
        for position, header in self._headers(view, *_place_of_point(view, number, points, point)):
            if header.index == index:
                return Place(number, position)
        raise UnsoundEntry(index, "its segment ends before it")

    def _place_of_offset(self, view: View, offset: int) -> tuple[Place, int]:
        # The frame that holds it, or one shortly before; and that frame's index.
        number = view.holding_offset(offset)
        end = self._ends_by_offset.get(offset)
        if end is not None and end[0] is view.segments[number]:
            return Place(number, end[1]), end[2]
        points, count = self._points(view, number)
        point = points.before_offset(offset, count)
        for position, header in self._headers(view, *_place_of_point(view, number, points, point)):
            if header.next_offset > offset:
                return Place(number, position), header.index
        last_index = view.segments[number].contents.last_index
        raise UnsoundEntry(last_index, f"its segment ends before offset {offset}")

    def _points(self, view: View, number: int) -> tuple[SparseIndex, int]:
        if number == len(view.segments) - 1:
            return view.points, view.points_count
        points = self._cache.points_of(view.segments[number])
        return points, len(points)

    # Going through files

    def _frames(self, view: View, walk: "_Walk", bytes_max: int) -> Iterator[tuple[Header, bytes]]:
        # From where `walk` is on, across segments. It is moved along, to after the frame that is given.
        for number in range(walk.number, len(view.segments)):
            if number != walk.number:
                walk.number, walk.position = number, 0
            segment, end = view.segments[number], view.end_of(number)
            try:
                with segment.log as file:
                    for header, frame in frames(file, walk.position, end, bytes_max + _SLACK_BYTES):
                        if header.index != walk.index:
                            raise UnsoundEntry(walk.index, f"entry {header.index} stands in its place")
                        walk.position += len(frame)
                        walk.index += 1
                        yield header, frame
            except (Unsound, FileNotFoundError) as error:
                raise UnsoundEntry(walk.index, f"in {segment.log.path}, {error}") from error

    def _headers(self, view: View, place: Place, index: int) -> Iterator[tuple[int, Header]]:
        # From a place to the end of its segment.
        segment = view.segments[place.number]
        try:
            with segment.log as file:
                for position, header in headers(file, place.position, view.end_of(place.number)):
                    if header.index != index:
                        raise UnsoundEntry(index, f"entry {header.index} stands in its place")
                    yield position, header
                    index += 1
        except (Unsound, FileNotFoundError) as error:
            raise UnsoundEntry(index, f"in {segment.log.path}, {error}") from error


def _place_of_point(view: View, number: int, points: SparseIndex, point: int) -> tuple[Place, int]:
    # Frames below the log's start may still be in the first file, but they are not part of the log.
    position = points.positions[point]
    start_position = view.start_at - view.segments[0].begins_at
    if number == 0 and position < start_position:
        return Place(0, start_position), view.start_index + 1
    return Place(number, position), points.indexes[point]


def _remember(ends: dict[int, _End], key: int, end: _End) -> None:
    if len(ends) >= _ENDS_MAX:
        ends.clear()
    ends[key] = end
