"""What is known of one segment without reading it: where it ends, its terms, its configurations.

The writer keeps it up to date in memory. When a segment is sealed it is written beside it (the `.index`
file), so that opening a large log reads these few bytes and none of the messages.
"""

from bisect import bisect_left
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from talweg.errors import DamagedLog
from talweg.raft import Configuration, Entries, Entry, Run, beginning_at
from talweg.records import Header, Kind, Note, peek_stamp
from talweg.storage.checked_file import HEAD_BYTES, body_bytes_of, seal, unseal, write_all
from talweg.storage.files import File
from talweg.storage.frames import frame_of
from talweg.storage.sparse_index import SparseIndex

NO_MESSAGE = 0  # the newest timestamp where there is no message

_MAGIC = b"TwIx"
_FIRST_READ_BYTES = 4096  # all of a digest, unless there were very many elections
_RECORDS, _CONFIGURATION = int(Kind.RECORDS), int(Kind.CONFIGURATION)  # comparing with the enum is slow


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """The part of a segment's contents that an opening needs. On disk as MessagePack."""

    first_index: int
    first_position: int  # of the frame at first_index; above 0 when the head was dropped inside
    first_offset: int
    last_index: int  # == first_index - 1 when empty
    next_offset: int  # first offset not in this segment
    log_bytes: int  # the file's length
    timestamp_max: int
    terms: list[tuple[int, int]]  # (first index, term); begins anew in each segment
    configurations: list[tuple[int, Configuration]]
    points_bytes: int  # of the sparse index, which follows in the file
    points_crc: int


class Mark(NamedTuple):
    """A state of `Contents` to go back to when a write fails."""

    last_index: int
    next_offset: int
    log_bytes: int
    timestamp_max: int
    terms: int
    configurations: int
    points: int


class Contents:
    """One segment, frame by frame. Changed by the writer alone; readers keep to what was published."""

    def __init__(
        self, first_index: int, first_offset: int, interval_bytes: int, first_position: int = 0
    ) -> None:
        self.first_index = first_index
        self.first_position = first_position
        self.first_offset = first_offset
        self.last_index = first_index - 1
        self.next_offset = first_offset
        self.log_bytes = first_position  # where the next frame goes
        self.timestamp_max = NO_MESSAGE
        self.terms: list[tuple[int, int]] = []
        self.configurations: list[tuple[int, Configuration]] = []
        self.points = SparseIndex()  # let go of when the segment is sealed
        self.interval_bytes = interval_bytes
        self._next_point = first_position  # a frame at or after this position becomes a point
        self._term: int | None = None  # of the last frame

    def mark(self) -> Mark:
        """Where things stand."""
        return Mark(
            self.last_index,
            self.next_offset,
            self.log_bytes,
            self.timestamp_max,
            len(self.terms),
            len(self.configurations),
            len(self.points),
        )

    def back_to(self, mark: Mark) -> None:
        """Forget what was added since."""
        self.last_index, self.next_offset, self.log_bytes, self.timestamp_max = mark[:4]
        del self.terms[mark.terms :]
        del self.configurations[mark.configurations :]
        self.continue_points(self.points.head(mark.points))

    def continue_points(self, points: SparseIndex) -> None:
        """Go on from these points."""
        self.points = points
        self._next_point = points.positions[-1] + self.interval_bytes if len(points) else self.first_position
        self._term = self.terms[-1][1] if self.terms else None

    def add(self, header: Header, position: int) -> None:
        """One more frame. If it is a configuration, `add_configuration` is called as well."""
        if position >= self._next_point or header.term != self._term:
            self._mark(header.index, header.term, header.first_offset, position)
        if header.last_timestamp > self.timestamp_max and header.kind == _RECORDS:
            self.timestamp_max = header.last_timestamp
        self.last_index = header.index
        self.next_offset = header.next_offset
        self.log_bytes = position + header.frame_bytes

    def _mark(self, index: int, term: int, first_offset: int, position: int) -> None:
        # What is remembered of only some of the frames.
        if position >= self._next_point:
            self.points.add(index, first_offset, self.timestamp_max, position)
            self._next_point = position + self.interval_bytes
        if term != self._term:
            self._term = term
            self.terms.append((index, term))

    def add_configuration(self, index: int, body: bytes) -> None:
        """The frame just added is a configuration."""
        self.configurations.append((index, Configuration.from_bytes(body)))

    def take(self, entries: Entries, bytes_max: int) -> tuple[list[bytes], Entries]:
        """Add entries until the segment has `bytes_max` bytes: their frames, those of a run in one piece; and
        the entries that are left."""
        frames: list[bytes] = []
        for place, entry in enumerate(entries):
            if self.log_bytes >= bytes_max:
                return frames, entries[place:]
            assert entry.index == self.last_index + 1, "the log has no gaps"
            if isinstance(entry, Run):
                # Whatever begins before the segment is full.
                count = 1 + bisect_left(entry.ends, bytes_max - self.log_bytes, hi=len(entry.ends) - 1)
                taken = entry.part(entry.index, entry.index + count - 1)
                self._take_run(taken)
                frames.append(taken.payload)
                if taken is not entry:
                    return frames, beginning_at(entries[place:], taken.last_index + 1)
            else:
                frames.append(self._take_one(entry))
        return frames, ()

    def _take_one(self, entry: Entry) -> bytes:
        frame = frame_of(entry, self.next_offset)
        index, term, first_offset, count, last_timestamp = peek_stamp(frame)
        assert (index, term) == (entry.index, entry.term), "the frame is not stamped"
        assert first_offset == self.next_offset, "offsets have no gaps"
        if self.log_bytes >= self._next_point or term != self._term:
            self._mark(index, term, first_offset, self.log_bytes)
        if last_timestamp > self.timestamp_max and entry.kind == _RECORDS:
            self.timestamp_max = last_timestamp
        if entry.kind == _CONFIGURATION:
            self.add_configuration(index, entry.payload)
        self.last_index, self.next_offset = index, first_offset + count
        self.log_bytes += len(frame)
        return frame

    def _take_run(self, run: Run) -> None:
        notes: list[Note] = run.notes
        for note, index in ((notes[0], run.index), (notes[-1], run.last_index)):
            assert (note[1], note[2]) == (index, run.term), "the frames are not stamped"
        begins_at = position = self.log_bytes
        offset, newest = self.next_offset, self.timestamp_max
        for (_, index, term, first_offset, count, _, _, last_timestamp), kind, end in zip(
            notes, run.kinds, run.ends, strict=True
        ):
            assert first_offset == offset, "offsets have no gaps"
            if position >= self._next_point or term != self._term:
                self.timestamp_max = newest
                self._mark(index, term, offset, position)
            if last_timestamp > newest and kind == _RECORDS:
                newest = last_timestamp
            offset += count
            position = begins_at + end
        self.last_index, self.next_offset, self.log_bytes = run.last_index, offset, position
        self.timestamp_max = newest

    def head(self, points: SparseIndex, mark: Mark) -> "Contents":
        """A copy that ends at an earlier state. The points are given: a sealed segment lets go of its own."""
        copy = Contents(self.first_index, self.first_offset, self.interval_bytes, self.first_position)
        copy.terms = self.terms[:]
        copy.configurations = self.configurations[:]
        copy.points = points
        copy.back_to(mark)
        return copy

    # The file beside a sealed segment

    def write_index(self, file: File) -> None:
        """Write the digest and the points. Not synced: a torn index is rebuilt, not believed."""
        points = self.points.to_bytes()
        digest = Digest(
            self.first_index,
            self.first_position,
            self.first_offset,
            self.last_index,
            self.next_offset,
            self.log_bytes,
            self.timestamp_max,
            self.terms,
            self.configurations,
            len(points),
            crc32c(points),
        )
        file.truncate(0)
        write_all(file, seal(_MAGIC, msgspec.msgpack.encode(digest)) + points, 0)


def read_digest(file: File, path: str) -> Digest:
    """The first part of an index file. Raises DamagedLog where it is not sound."""
    data = file.read_at(_FIRST_READ_BYTES, 0)
    wanted = HEAD_BYTES + body_bytes_of(data)
    if wanted > len(data):
        data += file.read_at(min(wanted, file.size()) - len(data), len(data))
    try:
        return msgspec.msgpack.decode(unseal(_MAGIC, data, path), type=Digest)
    except msgspec.MsgspecError as error:
        raise DamagedLog(f"{path} is not what was written: {error}") from error


def read_points(file: File, path: str) -> tuple[Digest, SparseIndex]:
    """All of an index file. Raises DamagedLog where it is not sound."""
    digest = read_digest(file, path)
    position = HEAD_BYTES + body_bytes_of(file.read_at(HEAD_BYTES, 0))
    data = file.read_at(digest.points_bytes, position)
    if len(data) != digest.points_bytes or crc32c(data) != digest.points_crc:
        raise DamagedLog(f"{path} is not what was written")
    return digest, SparseIndex.from_bytes(data)


def contents_of(digest: Digest, interval_bytes: int) -> Contents:
    """What the digest says, without the points."""
    contents = Contents(digest.first_index, digest.first_offset, interval_bytes, digest.first_position)
    contents.last_index = digest.last_index
    contents.next_offset = digest.next_offset
    contents.log_bytes = digest.log_bytes
    contents.timestamp_max = digest.timestamp_max
    contents.terms = list(digest.terms)
    contents.configurations = list(digest.configurations)
    contents.continue_points(SparseIndex())
    return contents
