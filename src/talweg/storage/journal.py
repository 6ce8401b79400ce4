"""The journal: small appends to many logs, made durable by one sync instead of one for each.

An append goes to its segment as always. But where many groups have little to write at the same moment, a
sync of each segment costs far more than the bytes do. So what they appended goes into the journal as well,
in one write, and one sync is enough for all of them. Their segments are synced later (`checkpoint`), each
for everything that it got meanwhile.

After a crash the journal says which bytes stood where. To write them there once more puts every segment
right, before anybody looks at it (`recover`). Whoever cuts, replaces or deletes segments has the journal
forget them first, so that it never brings back what was to go.

Two files take turns: one is filled while the segments that the other speaks of are synced. Each is written
from its beginning, over what it held before, since a file that does not grow is synced more quickly. How
they look is in `journal_format`.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from talweg.storage.checked_file import is_unreadable, read_fully, sync_file, write_all
from talweg.storage.files import File, Files
from talweg.storage.journal_format import (
    EMPTY,
    HEAD_BYTES,
    JOURNAL_NAMES,
    Append,
    Head,
    batch,
    forget_record,
    read_journal,
    write_record,
)


class JournalFull(Exception):
    """There is no room in the journal, or it cannot be sure: every segment has to be synced by itself."""


class _Turn:
    """One of the two files, and what it holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.file: File | None = None
        self.generation = 0  # 0: nothing that counts
        self.before_end = 0  # where the batches of the generation before this one end
        self.end = 0  # of the last batch
        self.paths: set[str] = set()  # what a crash now would write again
        self.is_settled = True  # every segment among them is durable by itself


class Journal:
    """Calls may come from any thread. Nothing is written before the first append."""

    def __init__(self, files: Files, bytes_max: int, new_salt: Callable[[], int] | None = None) -> None:
        """`bytes_max` is the size of each of the two files; 0: there is never any room."""
        self._files = files
        self._bytes_max = bytes_max
        self._new_salt = new_salt or _random_salt
        self._salt = 0
        self._lock = Lock()
        self._current, self._other = (_Turn(name) for name in JOURNAL_NAMES)
        self._syncing: list[str] = []  # segments, or directories of them, see `sync_of_segments`
        self._settling: list[str] = []  # segments that a checkpoint is syncing
        self._doubts = 0  # how many syncs of segments have failed
        self._in_doubt = False  # what segments were given may not have reached the disk
        self._is_suspect = False  # the files may hold what we do not know of: emptied before they are used

    # A crash

    def recover(self, lost: Callable[[], None]) -> None:
        """Put segments right after a crash. `lost` is called before the journal is emptied, if a part of it
        that was durable cannot be read. Raises OSError, NewerFormat."""
        found = read_journal(self._files)
        for turn in (self._current, self._other):
            turn.generation = found.generations[turn.name]
        self._rewrite(found.writes)
        if found.is_damaged:
            lost()
        if found.is_damaged or any(found.generations.values()):
            self._invalidate()

    # Appending

    @property
    def doubts(self) -> int:
        """How often what segments were given may not have reached the disk. To be noted by whoever gives them
        something, and handed over with it."""
        return self._doubts

    def append(self, appends: Iterable[Append]) -> None:
        """Durable when this returns. Raises JournalFull, OSError: then nothing of it is."""
        appends = list(appends)
        body = b"".join(part for append in appends for part in write_record(append))
        with self._lock:
            # A sync that failed meanwhile may have dropped what its segment had been given. Were we to answer
            # for that, the next sync, by whoever opens the segment anew, would be believed.
            if self._is_suspect or any(append.doubts != self._doubts for append in appends):
                raise JournalFull
            if not self._current.generation:
                self._begin_life(len(body))
            self._put(body, {append.path for append in appends})

    def forget(self, directory: str) -> None:
        """Files in this directory are about to be cut, replaced or removed. What was appended to them is
        durable by itself, or no longer wanted. Raises OSError."""
        prefix = f"{directory}/"
        with self._lock:
            if any(path.startswith(prefix) for path in self._settling):
                # How that goes is not known yet. If it has failed, and the kernel has told only whoever
                # asked, then what was appended is nowhere but here.
                self._doubt()
            if self._in_doubt or self._is_suspect:
                self._empty()
            turns = (self._current, self._other)
            if not any(path.startswith(prefix) for turn in turns for path in turn.paths):
                return
            try:
                self._put(forget_record(directory), set())
            except (JournalFull, OSError):
                self._empty()  # which takes no space, and so works on a full disk
            for turn in turns:
                turn.paths = {path for path in turn.paths if not path.startswith(prefix)}

    def _begin_life(self, body_bytes: int) -> None:
        # A batch in the other file, so that neither depends on its own first one to be recognised. With a new
        # salt: what earlier lives left in the files must not be taken for ours.
        if 2 * HEAD_BYTES + body_bytes > self._bytes_max:
            raise JournalFull
        self._open(self._current)  # whoever finds one of the two may then miss the other
        self._salt = self._new_salt()
        self._write(self._other, 1, b"", begins=True)

    def _put(self, body: bytes, paths: set[str]) -> None:
        turn = self._current
        # There is always room for one more head: see `_note_settled`.
        batch_bytes, room = HEAD_BYTES + len(body), self._bytes_max - (HEAD_BYTES if body else 0)
        begins = not turn.generation
        if turn.end + batch_bytes > room:
            if batch_bytes > room or not self._other.is_settled:
                raise JournalFull
            turn, begins = self._other, True
        generation = 1 + max(self._current.generation, self._other.generation) if begins else turn.generation
        self._write(turn, generation, body, begins=begins)
        if turn is self._other:
            self._current, self._other = turn, self._current
        if paths:
            turn.paths |= paths
            turn.is_settled = False

    def _write(self, turn: _Turn, generation: int, body: bytes, *, begins: bool) -> None:
        before = self._other if turn is self._current else self._current
        before_end = (before.end if before.generation else 0) if begins else turn.before_end
        needed = generation if before.is_settled else before.generation
        end = 0 if begins else turn.end
        # Whatever goes wrong: a crash may find this batch in the file, or what it was written over.
        self._is_suspect = True
        file = self._open(turn)
        write_all(file, batch(Head(self._salt, generation, needed, before_end), body), end)
        file.sync()
        self._is_suspect = False
        if begins:
            turn.generation, turn.before_end, turn.paths = generation, before_end, set()
        turn.end = end + HEAD_BYTES + len(body)

    def _open(self, turn: _Turn) -> File:
        if turn.file is None:
            file = self._files.open(turn.name)
            try:
                # Its name is durable before anything in it counts. Whether it was before cannot be told.
                self._files.sync_directory("")
            except OSError:
                file.close()
                raise
            turn.file = file
        return turn.file

    # Settling

    @property
    def checkpoint_due(self) -> bool:
        """Whether `checkpoint` has anything to do."""
        return not self._other.is_settled or self._in_doubt or self._is_suspect

    def checkpoint(self) -> None:
        """Sync the segments that the file that was filled last speaks of, so that it may be used again. Takes
        long, and may run beside appends. Raises OSError; then it is still due."""
        with self._lock:
            if self._in_doubt or self._is_suspect:
                self._empty()
                return
            turn, generation, doubts = self._other, self._other.generation, self._doubts
            if turn.is_settled:
                return
            paths = sorted(turn.paths)
        with self._doubting(self._settling, paths):
            _sync_files(self._files, paths)
        with self._lock:
            # Not if the sync of one of them failed meanwhile, or may yet turn out to have failed: it took
            # what ours should have written. Nor if the file was emptied and filled again.
            certain = self._doubts == doubts and not any(map(self._is_syncing, paths))
            if certain and turn is self._other and turn.generation == generation and not turn.is_settled:
                self._note_settled()

    @contextmanager
    def sync_of_segments(self, path: str) -> Iterator[None]:
        """Around the sync of a segment that the journal answers for, or of those in a directory. If it fails,
        the kernel may have dropped what was to be written, and call it durable the next time. A checkpoint
        is due then that writes all of it again."""
        with self._doubting(self._syncing, [path]):
            yield

    @contextmanager
    def _doubting(self, under_way: list[str], paths: list[str]) -> Iterator[None]:
        with self._lock:
            under_way += paths
        try:
            yield
        except OSError:
            with self._lock:
                self._doubt()
            raise
        finally:
            with self._lock:
                for path in paths:
                    under_way.remove(path)

    def _doubt(self) -> None:
        self._doubts += 1
        self._in_doubt = True

    def _is_syncing(self, path: str) -> bool:
        return any(path.startswith(one) for one in self._syncing)

    def be_certain(self) -> None:
        """Before a segment is read to find out what it holds: all that the journal answers for is in it.
        Raises OSError."""
        with self._lock:
            if self._in_doubt:
                self._empty()

    def close(self) -> None:
        """Every segment is durable by itself, and there is nothing to recover. Raises OSError."""
        with self._lock:
            if self._current.generation or self._is_suspect:
                self._empty()

    def let_go(self) -> None:
        """Close the files as they are."""
        for turn in (self._current, self._other):
            if turn.file is not None:
                turn.file.close()
                turn.file = None

    def _note_settled(self) -> None:
        # Written down before it is used again: a first batch that is torn then leaves what nobody needs.
        self._other.is_settled = True
        try:
            self._put(b"", set())
        except OSError:
            self._other.is_settled = False
            raise

    def _empty(self) -> None:
        self._is_suspect = True  # until it has gone well
        try:
            if self._in_doubt:
                self._rewrite(self._read())
            else:
                _sync_files(self._files, sorted(self._current.paths | self._other.paths))
        except OSError:
            self._doubt()
            raise
        self._in_doubt = False
        self._invalidate()
        self._is_suspect = False

    def _read(self) -> dict[str, list[tuple[int, bytes]]]:
        found = read_journal(self._files)
        if found.is_damaged:
            # It stays as it is for the next start, which notices it too, and has every replica recover.
            raise OSError(errno.EIO, "nor can the journal be read; a restart has the replicas recover")
        return found.writes

    def _rewrite(self, writes: dict[str, list[tuple[int, bytes]]]) -> None:
        for path, parts in sorted(writes.items()):
            try:
                file = self._files.open(path, create=False)
            except FileNotFoundError:
                continue  # retention took it, or its group is gone
            try:
                for position, data in parts:
                    write_all(file, data, position)
                file.sync()
            except OSError:
                # A page that cannot be read cannot be written in part, either. Whoever opens the segment
                # meets it, at the first byte that is missing now or before, and recovers.
                if not _is_unreadable(file, parts):
                    raise
            finally:
                file.close()

    def _invalidate(self) -> None:
        # The older file first: what the newer one forgets must not come back.
        turns = sorted((self._current, self._other), key=lambda turn: turn.generation)
        for turn in turns:
            if self._files.exists(turn.name):
                file = self._open(turn)
                if file.size():
                    _write_empty(file)
                    file.sync()
        for turn in turns:
            turn.generation, turn.end, turn.paths, turn.is_settled = 0, 0, set(), True


def _sync_files(files: Files, paths: list[str]) -> None:
    for path in paths:
        sync_file(files, path)


def _write_empty(file: File) -> None:
    try:
        write_all(file, EMPTY, 0)
    except OSError as error:
        if not is_unreadable(error):
            raise
        file.truncate(0)  # the page cannot be read, and so not be written in part
        write_all(file, EMPTY, 0)


def _is_unreadable(file: File, parts: list[tuple[int, bytes]]) -> bool:
    try:
        for position, data in parts:
            read_fully(file, len(data), position)
    except OSError as error:
        return is_unreadable(error)
    return False


def _random_salt() -> int:
    return int.from_bytes(os.urandom(8), "little")
