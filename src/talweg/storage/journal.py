"""The journal: small appends to many logs, made durable by one sync instead of one for each.

An append goes to its segment as always. But where many groups have little to write at the same moment, a
sync of each segment costs far more than the bytes do. So what they appended goes into the journal as well,
in one write, and one sync is enough for all of them. Their segments are synced later (`checkpoint`), each
for everything that it got meanwhile.

After a crash the journal says which bytes stood where. To write them there once more puts every segment
right, before anybody looks at it (`recover`). Whoever cuts, replaces or deletes segments has the journal
forget them first, so that it never brings back what was to go.

Two files take turns: one is filled while the segments that the other speaks of are synced. Each is written
from its beginning, over what it held before, since a file that does not grow is synced more quickly.

    batch    magic (4) · generation u64 · salt u64 · CRC-32C u32 · version u16 · reserved u16 ·
             body bytes u32 · body
    record   kind u8 · path bytes u16 · position u64 · data bytes u32 · path · data

A generation is one turn of a file, and its salt a number that nobody can guess: no message can look like a
batch that belongs there. The checksum covers everything but itself and the magic.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from talweg.errors import NewerFormat
from talweg.storage.checked_file import FORMAT_VERSION, read_file, write_all
from talweg.storage.files import File, Files

# No group can have these names: they hold a character that is not allowed in one.
JOURNAL_NAMES = ("+journal-0", "+journal-1")

_MAGIC = b"TwJn"
_TURN = struct.Struct("<4sQQ")  # magic, generation, salt: how every batch of a turn begins
_HEAD = struct.Struct("<4sQQIHHI")
_COVERED = struct.Struct("<QQHHI")  # of the head
_RECORD = struct.Struct("<BHQI")
_WRITE, _FORGET = 0, 1


class Append(NamedTuple):
    """What was appended to a segment, and where."""

    path: str
    position: int
    frames: Sequence[bytes]


class JournalFull(Exception):
    """There is no room in the journal: every segment has to be synced by itself."""


class Found(NamedTuple):
    """What a crash left in the journal."""

    generations: dict[str, int]  # by file; 0: it holds nothing
    writes: dict[str, list[tuple[int, bytes]]]  # by path: position and data, in order
    is_damaged: bool  # a batch that was durable cannot be read


class _Turn:
    """One of the two files, and what it holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.file: File | None = None
        self.generation = 0
        self.salt = 0
        self.end = 0  # of the last batch; 0: what the file holds has to go first
        self.paths: set[str] = set()  # what a crash now would write again
        self.is_settled = True  # every segment among them is durable by itself


class Journal:
    """Appends and `forget` may come from any thread. Nothing is written before the first append."""

    def __init__(self, files: Files, bytes_max: int, new_salt: Callable[[], int] | None = None) -> None:
        """`bytes_max` is the size of each of the two files; 0: there is never any room."""
        self._files = files
        self._bytes_max = bytes_max
        self._new_salt = new_salt or _random_salt
        self._lock = Lock()
        self._current, self._other = (_Turn(name) for name in JOURNAL_NAMES)
        self._generation = 0
        self._doubts = 0  # how often the sync of a segment has failed
        self._in_doubt = False  # what segments were given may not have reached the disk: see `doubt`

    # A crash

    def recover(self, lost: Callable[[], None]) -> None:
        """Put segments right after a crash. `lost` is called before the journal is emptied, if a part of it
        that was durable cannot be read. Raises OSError, NewerFormat."""
        found = read_journal(self._files)
        for turn in (self._current, self._other):
            turn.generation = found.generations[turn.name]
        self._generation = max(found.generations.values())
        self._rewrite(found.writes)
        if found.is_damaged:
            lost()
        if self._generation:
            self._invalidate()

    # Appending

    def append(self, appends: Iterable[Append]) -> None:
        """Durable when this returns. Raises JournalFull, OSError: then nothing of it is."""
        appends = list(appends)
        body = b"".join(part for append in appends for part in _write_record(append))
        with self._lock:
            self._put(body, {append.path for append in appends})

    def forget(self, directory: str) -> None:
        """Files in this directory are about to be cut, replaced or removed. What was appended to them is
        durable by itself, or no longer wanted. Raises OSError."""
        prefix = f"{directory}/"
        with self._lock:
            turns = (self._current, self._other)
            if not any(path.startswith(prefix) for turn in turns for path in turn.paths):
                return
            if self._in_doubt:
                self._settle()
            try:
                self._put(_forget_record(directory), set())
            except (JournalFull, OSError):
                # Taking no space, this works on a full disk.
                self._settle()
                self._invalidate()
            for turn in turns:
                turn.paths = {path for path in turn.paths if not path.startswith(prefix)}

    def _put(self, body: bytes, paths: set[str]) -> None:
        turn = self._current
        batch_bytes = _HEAD.size + len(body)
        if turn.end + batch_bytes > self._bytes_max:
            if batch_bytes > self._bytes_max or not self._other.is_settled:
                raise JournalFull
            turn = self._other
        begins = turn is self._other or turn.end == 0
        generation, salt, end = turn.generation, turn.salt, turn.end
        if begins:
            generation, salt, end = self._generation + 1, self._new_salt(), 0
        file = self._open(turn)
        write_all(file, _batch(generation, salt, body), end)
        file.sync()
        if turn is self._other:
            self._current, self._other = turn, self._current
        if begins:
            self._generation = turn.generation = generation
            turn.salt, turn.paths = salt, set()
        turn.end = end + batch_bytes
        turn.paths |= paths
        turn.is_settled = turn.is_settled and not paths

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
        return not self._other.is_settled or self._in_doubt

    def checkpoint(self) -> None:
        """Sync the segments that the file that was filled last speaks of, so that it may be used again. Takes
        long, and may run beside appends. Raises OSError; then it is still due."""
        with self._lock:
            if self._in_doubt:
                self._settle()
                return
            turn, doubts = self._other, self._doubts
            paths = sorted(turn.paths)
        try:
            _sync_files(self._files, paths)
        except OSError:
            self.doubt()
            raise
        with self._lock:
            # Not if a sync that failed meanwhile took for durable what ours should have written.
            if turn is self._other and self._doubts == doubts:
                turn.is_settled = True

    def doubt(self) -> None:
        """The sync of a segment has failed: the kernel may have dropped what the journal answers for, and
        call it durable next time. A checkpoint is due that writes all of it again."""
        with self._lock:
            self._doubts += 1
            self._in_doubt = bool(self._current.paths or self._other.paths)

    def close(self) -> None:
        """Every segment is durable by itself, and there is nothing to recover. Raises OSError."""
        with self._lock:
            try:
                self._settle()
                if self._current.end or self._other.end:
                    self._invalidate()
            finally:
                self.let_go()

    def let_go(self) -> None:
        """Close the files as they are."""
        for turn in (self._current, self._other):
            if turn.file is not None:
                turn.file.close()
                turn.file = None

    def _settle(self) -> None:
        turns = [turn for turn in (self._current, self._other) if not turn.is_settled]
        was_in_doubt, self._in_doubt = self._in_doubt, True  # until it has gone well
        if was_in_doubt:
            self._rewrite(read_journal(self._files).writes)
        else:
            _sync_files(self._files, sorted(path for turn in turns for path in turn.paths))
        self._in_doubt = False
        for turn in turns:
            turn.is_settled = True

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
            finally:
                file.close()

    def _invalidate(self) -> None:
        # The older file first: what the newer one forgets must not come back.
        turns = sorted((self._current, self._other), key=lambda turn: turn.generation)
        for turn in turns:
            if turn.generation:
                file = self._open(turn)
                write_all(file, bytes(_HEAD.size), 0)
                file.sync()
        for turn in turns:
            turn.generation, turn.end, turn.paths, turn.is_settled = 0, 0, set(), True


def read_journal(files: Files) -> Found:
    """What would have to be written again after a crash. Raises OSError, NewerFormat."""
    turns: list[tuple[int, str, list[bytes]]] = []
    is_damaged = False
    for name in JOURNAL_NAMES:
        turn, bodies, some_are_missing = _bodies(read_file(files, name), name)
        turns.append((_TURN.unpack(turn)[1] if turn else 0, name, bodies))
        is_damaged |= some_are_missing
    writes: dict[str, list[tuple[int, bytes]]] = {}
    for _, _, bodies in sorted(turns):
        for kind, path, position, data in (record for body in bodies for record in _records(body)):
            if kind == _WRITE:
                writes.setdefault(path, []).append((position, data))
            else:
                writes = {kept: parts for kept, parts in writes.items() if not kept.startswith(f"{path}/")}
    return Found({name: generation for generation, name, _ in turns}, writes, is_damaged)


def _bodies(data: bytes, name: str) -> tuple[bytes, list[bytes], bool]:
    """How the batches of this turn begin, their bodies, and whether some are missing."""
    bodies: list[bytes] = []
    turn, end = b"", 0
    while (body := _sound_body(data, end, turn, name)) is not None:
        turn = data[end : end + _TURN.size]
        end += _HEAD.size + len(body)
        bodies.append(body)
    # The last batch may be torn, and nobody has counted on it then. One that another follows was durable.
    later = data.find(turn, end) if turn else -1
    while later >= 0 and _sound_body(data, later, turn, name) is None:
        later = data.find(turn, later + 1)
    return turn, bodies, later >= 0


def _sound_body(data: bytes, position: int, turn: bytes, name: str) -> bytes | None:
    """The body of the batch at `position`, if there is one of this turn (or, without one, of any)."""
    if not data.startswith(turn or _MAGIC, position) or position + _HEAD.size > len(data):
        return None
    _, generation, salt, checksum, version, reserved, body_bytes = _HEAD.unpack_from(data, position)
    begin = position + _HEAD.size
    body = data[begin : begin + body_bytes]
    covered = _COVERED.pack(generation, salt, version, reserved, body_bytes)
    if len(body) != body_bytes or crc32c(body, crc32c(covered)) != checksum:
        return None
    if version > FORMAT_VERSION:
        raise NewerFormat(f"{name} has format {version}; this version knows formats up to {FORMAT_VERSION}")
    return body


def _batch(generation: int, salt: int, body: bytes) -> bytes:
    checksum = crc32c(body, crc32c(_COVERED.pack(generation, salt, FORMAT_VERSION, 0, len(body))))
    return _HEAD.pack(_MAGIC, generation, salt, checksum, FORMAT_VERSION, 0, len(body)) + body


def _write_record(append: Append) -> Iterator[bytes]:
    path = append.path.encode()
    yield _RECORD.pack(_WRITE, len(path), append.position, sum(map(len, append.frames)))
    yield path
    yield from append.frames


def _forget_record(directory: str) -> bytes:
    path = directory.encode()
    return _RECORD.pack(_FORGET, len(path), 0, 0) + path


def _records(body: bytes) -> Iterator[tuple[int, str, int, bytes]]:
    at = 0
    while at < len(body):
        kind, path_bytes, position, data_bytes = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        path = body[at : at + path_bytes].decode()
        at += path_bytes
        yield kind, path, position, body[at : at + data_bytes]
        at += data_bytes


def _sync_files(files: Files, paths: list[str]) -> None:
    for path in paths:
        try:
            file = files.open(path, create=False)
        except FileNotFoundError:
            continue  # gone, and so is what it held
        try:
            file.sync()
        finally:
            file.close()


def _random_salt() -> int:
    return int.from_bytes(os.urandom(8), "little")
