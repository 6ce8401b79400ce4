"""One segment file: its names, what it holds, and the writer's side of the last one.

Only the last segment is written to. It is sealed, that is durable to its last byte, before the next one
is made; so whatever is missing from a sealed segment was lost later, and is damage, never a torn tail.
"""

from collections.abc import Sequence

from talweg.storage.checked_file import write_all, write_all_parts
from talweg.storage.contents import Contents, Mark
from talweg.storage.files import File
from talweg.storage.frames import LARGE_FRAME_BYTES, gathered
from talweg.storage.handles import Handles
from talweg.storage.journal_format import Append

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"

_JOINED_BYTES_MAX = 1 << 20  # smaller frames are joined up to this size, to be written at once
_PARTS_MAX = 256  # of one call, if any is large; Linux takes 1,024


def log_name(base_index: int) -> str:
    """The name of the file whose first frame is `base_index`."""
    return f"{base_index:020}{LOG_SUFFIX}"


def index_name(base_index: int) -> str:
    """The name of what is written beside it when it is sealed."""
    return f"{base_index:020}{INDEX_SUFFIX}"


class Segment:
    """A file of the log. Bytes below a published end never change; a cut makes a new Segment."""

    def __init__(
        self,
        handles: Handles,
        directory: str,
        base_index: int,
        contents: Contents,
        begins_at: int,
        *,
        create: bool = False,
    ) -> None:
        self.base_index = base_index
        self.contents = contents
        self.begins_at = begins_at  # bytes of the log before this file, counted from wherever it was opened
        self.log = handles.handle(f"{directory}/{log_name(base_index)}", create=create)
        self.index_path = f"{directory}/{index_name(base_index)}"

    @property
    def ends_at(self) -> int:
        """Like `begins_at`, after the last byte."""
        return self.begins_at + self.contents.log_bytes


class Tail:
    """The writer's side of the last segment: group commit, and the way back when a write fails.

    Frames are kept in memory until they are durable. After a failed fdatasync the kernel may call the
    pages clean though they never reached the disk, and the next fdatasync would succeed without them;
    so they are written once more before fdatasync is believed again. (A process that dies before that
    leaves the next opening no choice but to believe the kernel.)
    """

    def __init__(self, segment: Segment, *, is_new: bool = False) -> None:
        self.segment = segment
        self.unsynced_bytes = 0
        self._unsynced: list[bytes] = []  # the frames from _durable_bytes on, in order
        self._doubts = 0  # the journal's, before the first of them was written
        self._durable_bytes = segment.contents.log_bytes
        self._in_doubt = False  # a sync failed: what is unsynced has to be written again
        # After the last frame there may be bytes: of a failed write, or in a file that was to be removed.
        self._overhang = is_new
        self._file: File | None = None  # kept open while there is something to sync
        self._uncached_bytes = self._durable_bytes  # from here on it may be in the page cache
        self.is_journaled = False  # the journal answers for some of what is durable, not the file

    @property
    def contents(self) -> Contents:
        """Of the segment."""
        return self.segment.contents

    def prepare(self) -> None:
        """Be ready to write."""
        if self._file is None:
            self._file = self.segment.log.acquire()
        self.mend()

    def mend(self) -> None:
        """Put right what an earlier failure left behind, if there is anything. Raises OSError."""
        if not (self._overhang or self._in_doubt):
            return
        if self._file is None:
            self._file = self.segment.log.acquire()
        if self._in_doubt:
            # From where it is known to be durable: the kernel may believe in more than the disk has.
            self._file.truncate(self._durable_bytes)
            write_frames(self._file, self._unsynced, self._durable_bytes)
        else:
            self._file.truncate(self.contents.log_bytes)
        self._in_doubt = self._overhang = False

    def write(self, frames: Sequence[bytes], position: int, doubts: int) -> None:
        """Write frames, which are in `contents` already, at `position`, where the file ended.

        Raises OSError; then `roll_back`.
        """
        assert self._file is not None, "prepare comes first"
        if not self._unsynced:
            self._doubts = doubts
        write_frames(self._file, frames, position)
        self._unsynced.extend(frames)
        self.unsynced_bytes += self.contents.log_bytes - position

    def roll_back(self, mark: Mark) -> None:
        """Forget everything since `mark`; `mend` then cuts the file."""
        self.contents.back_to(mark)
        self._durable_bytes = min(self._durable_bytes, mark.log_bytes)
        kept, kept_bytes = 0, 0
        while kept_bytes < mark.log_bytes - self._durable_bytes:
            kept_bytes += len(self._unsynced[kept])
            kept += 1
        del self._unsynced[kept:]
        self.unsynced_bytes = kept_bytes
        self._overhang = True

    def sync(self) -> None:
        """Make everything written durable. Raises OSError; then nothing unsynced counts as on disk."""
        self.mend()
        if self._file is None:
            return
        try:
            self._file.sync()
        except OSError:
            self._in_doubt = True
            raise
        self.is_journaled = False
        self._settle()

    def sync_in_place(self) -> None:
        """The same, so that the file needs no journal. Raises OSError."""
        if self.is_journaled and self._file is None:
            self._file = self.segment.log.acquire()
        self.sync()

    def unsynced(self) -> Append | None:
        """What the next `sync` would make durable; None if that is nothing, or there is more to it."""
        if self._in_doubt or self._overhang or not self._unsynced:
            return None
        return Append(self.segment.log.path, self._durable_bytes, self._unsynced[:], self._doubts)

    def journaled(self) -> None:
        """The journal has all that was written since the last sync. It answers for it from now on."""
        self.is_journaled = True
        self._settle()

    def uncache(self) -> None:
        """What is durable need not be kept in memory. Raises OSError."""
        with self.segment.log as file:
            file.uncache(self._uncached_bytes, self._durable_bytes - self._uncached_bytes)
        self._uncached_bytes = self._durable_bytes

    def _settle(self) -> None:
        self._unsynced.clear()
        self.unsynced_bytes = 0
        self._durable_bytes = self.contents.log_bytes
        self.close()

    def close(self) -> None:
        """Let go of the file, synced or not."""
        if self._file is not None:
            self._file = None
            self.segment.log.release()


def write_frames(file: File, frames: Sequence[bytes], position: int) -> None:
    """Write frames one after another: in as few calls as possible, without a copy of what is large.

    Few, because after each of them this thread waits for the interpreter, which others are busy with.
    """
    largest_bytes = max(map(len, frames), default=1)
    if largest_bytes < LARGE_FRAME_BYTES:
        count = _JOINED_BYTES_MAX // largest_bytes
        for first in range(0, len(frames), count):
            joined = b"".join(frames[first : first + count])
            write_all(file, joined, position)
            position += len(joined)
        return
    for first in range(0, len(frames), _PARTS_MAX):
        parts = gathered(frames[first : first + _PARTS_MAX])
        write_all_parts(file, parts, position)
        position += sum(map(len, parts))
