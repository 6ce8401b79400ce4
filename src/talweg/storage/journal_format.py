"""How the journal's files look, and what a crash left in them.

    batch    magic (4) · salt u64 · generation u64 · CRC-32C u32 · version u16 · reserved u16 ·
             body bytes u32 · needed u64 · before end u32 · body
    record   kind u8 · path bytes u16 · position u64 · data bytes u32 · path · data

A generation is one turn of a file. Its batches lie one after another from the beginning of the file; behind
them is what an earlier generation left. A batch is written when the one before it is durable, so only the
very last one may be torn. That a batch which was durable cannot be read any more shows in two ways: another
one of its generation lies behind it, or its generation ends before `before end`, which the next one notes.
`needed` is the oldest generation that a crash would need. A file that is emptied has zeros for its first
head, the older one before the newer one. Both files are there before the first batch is, so one that is
missing was lost. And what the disk cannot read is missed where a batch could lie, behind the last that can
be read; not in what an earlier generation left.

The salt is a number that nobody can guess, drawn anew with each start of a broker: no message can look like
a batch that belongs there. The checksum covers everything but itself and the magic.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from talweg.errors import NewerFormat
from talweg.storage.checked_file import FORMAT_VERSION, is_unreadable, read_fully
from talweg.storage.files import Files

# No group can have these names: they hold a character that is not allowed in one.
JOURNAL_NAMES = ("+journal-0", "+journal-1")

_MAGIC = b"TwJn"
_LIFE = struct.Struct("<4sQ")  # magic, salt: how every batch of a broker's life begins
_TURN = struct.Struct("<4sQQ")  # and the generation: how every batch of a turn begins
_HEAD = struct.Struct("<4sQQIHHIQI")
_COVERED = struct.Struct("<QQHHIQI")  # of the head
_RECORD = struct.Struct("<BHQI")
_WRITE, _FORGET = 0, 1
_PAGE_BYTES = 4096  # read at once: one that cannot be read leaves the others

HEAD_BYTES = _HEAD.size
EMPTY = bytes(HEAD_BYTES)  # how a file begins that was emptied


class Append(NamedTuple):
    """What was appended to a segment, and where."""

    path: str
    position: int
    frames: Sequence[bytes]
    doubts: int  # the journal's, before any of it was written to the segment


class Head(NamedTuple):
    """What a batch says of itself."""

    salt: int
    generation: int
    needed: int  # the oldest generation that a crash would need
    before_end: int  # where the batches of the generation before this one end


class Found(NamedTuple):
    """What a crash left in the journal."""

    generations: dict[str, int]  # by file; 0: it holds nothing
    writes: dict[str, list[tuple[int, bytes]]]  # by path: position and data, in order
    is_damaged: bool  # a batch that was durable cannot be read


class _Content(NamedTuple):
    """The bytes of a file."""

    data: bytes  # with zeros for what the disk cannot read
    unreadable: Sequence[int] = ()  # where the pages of those begin
    is_missing: bool = False

    def is_readable(self, first: int, end: int) -> bool:
        """Whether all of these bytes are what the disk has."""
        return not any(page < end and first < page + _PAGE_BYTES for page in self.unreadable)


class _File(NamedTuple):
    """One of the two files, as far as it can be read."""

    name: str
    content: _Content
    head: Head | None  # of the last batch
    bodies: list[bytes]
    end: int  # of the last batch

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return self.content.data

    @property
    def is_emptied(self) -> bool:
        """Whether it was, if only with the first byte: a crash may have come between."""
        return self.data.startswith(EMPTY[:1])

    @property
    def generation(self) -> int:
        """0: there is no batch."""
        return 0 if self.head is None else self.head.generation

    @property
    def may_hide_a_batch(self) -> bool:
        """Whether one may follow that the disk cannot read."""
        begin = self.end + HEAD_BYTES
        if not self.content.is_readable(self.end, begin):
            return True
        begins = _MAGIC if self.head is None else _TURN.pack(_MAGIC, self.head.salt, self.head.generation)
        if not self.data.startswith(begins, self.end) or begin > len(self.data):
            return False
        body_bytes = _HEAD.unpack_from(self.data, self.end)[6]
        return not self.content.is_readable(begin, begin + body_bytes)


# Writing


def batch(head: Head, body: bytes) -> bytes:
    """The bytes of a batch."""
    salt, generation, needed, before_end = head
    covered = _COVERED.pack(salt, generation, FORMAT_VERSION, 0, len(body), needed, before_end)
    checksum = crc32c(body, crc32c(covered))
    return (
        _HEAD.pack(_MAGIC, salt, generation, checksum, FORMAT_VERSION, 0, len(body), needed, before_end)
        + body
    )


def write_record(append: Append) -> Iterator[bytes]:
    """The parts of a record that says: these bytes stand there."""
    path = append.path.encode()
    yield _RECORD.pack(_WRITE, len(path), append.position, sum(map(len, append.frames)))
    yield path
    yield from append.frames


def forget_record(directory: str) -> bytes:
    """A record that says: nothing of what was said so far of the files in this directory holds."""
    path = directory.encode()
    return _RECORD.pack(_FORGET, len(path), 0, 0) + path


# Reading


def read_journal(files: Files) -> Found:
    """What would have to be written again after a crash. Raises OSError, NewerFormat."""
    older, newer = sorted((_read(files, name) for name in JOURNAL_NAMES), key=_generation)
    generations = {each.name: each.generation for each in (older, newer)}
    if newer.head is None:
        return Found(generations, {}, is_damaged=older.may_hide_a_batch or newer.may_hide_a_batch)
    needs_older = newer.head.needed < newer.generation and not older.is_emptied
    writes: dict[str, list[tuple[int, bytes]]] = {}
    for body in (*(older.bodies if needs_older else ()), *newer.bodies):
        for kind, path, position, data in _records(body):
            if kind == _WRITE:
                writes.setdefault(path, []).append((position, data))
            else:
                writes = {kept: parts for kept, parts in writes.items() if not kept.startswith(f"{path}/")}
    is_damaged = (
        (needs_older and (older.generation, older.end) != (newer.generation - 1, newer.head.before_end))
        or _goes_on(newer, newer.head)
        or newer.may_hide_a_batch
        or older.content.is_missing
        or (older.head is None and (_goes_on(older, newer.head) or older.may_hide_a_batch))
    )
    return Found(generations, writes, is_damaged)


def _generation(file: _File) -> int:
    return file.generation


def _content(files: Files, name: str) -> _Content:
    if not files.exists(name):
        return _Content(b"", is_missing=True)
    pages: list[bytes] = []
    unreadable: list[int] = []
    file = files.open(name)
    try:
        size = file.size()
        for position in range(0, size, _PAGE_BYTES):
            page_bytes = min(_PAGE_BYTES, size - position)
            try:
                pages.append(read_fully(file, page_bytes, position))
            except OSError as error:
                if not is_unreadable(error):
                    raise
                pages.append(bytes(page_bytes))
                unreadable.append(position)
    finally:
        file.close()
    return _Content(b"".join(pages), unreadable)


def _read(files: Files, name: str) -> _File:
    content = _content(files, name)
    data, head, bodies, end = content.data, None, list[bytes](), 0
    while (found := _sound_batch(data, end, name)) is not None:
        if head is not None and (found[0].salt, found[0].generation) != (head.salt, head.generation):
            break  # what an earlier turn left
        head, body = found
        bodies.append(body)
        end += HEAD_BYTES + len(body)
    return _File(name, content, head, bodies, end)


def _goes_on(file: _File, newest: Head) -> bool:
    """Whether behind what can be read there is a batch of the same turn. In a file of which nothing can be
    read: of one that is newer than the newest that can."""
    if file.head is not None:
        begins = _TURN.pack(_MAGIC, newest.salt, newest.generation)
    else:
        begins = _LIFE.pack(_MAGIC, newest.salt)
    at = file.data.find(begins, file.end)
    while at >= 0:
        found = _sound_batch(file.data, at, file.name)
        if found is not None and (file.head is not None or found[0].generation > newest.generation):
            return True
        at = file.data.find(begins, at + 1)
    return False


def _sound_batch(data: bytes, position: int, name: str) -> tuple[Head, bytes] | None:
    """The batch that begins at `position`, if there is one."""
    begin = position + HEAD_BYTES
    if not data.startswith(_MAGIC, position) or begin > len(data):
        return None
    _, salt, generation, checksum, version, reserved, body_bytes, needed, before_end = _HEAD.unpack_from(
        data, position
    )
    if begin + body_bytes > len(data):
        return None
    body = data[begin : begin + body_bytes]
    covered = _COVERED.pack(salt, generation, version, reserved, body_bytes, needed, before_end)
    if crc32c(body, crc32c(covered)) != checksum:
        return None
    if version > FORMAT_VERSION:
        raise NewerFormat(f"{name} has format {version}; this version knows formats up to {FORMAT_VERSION}")
    return Head(salt, generation, needed, before_end), body


def _records(body: bytes) -> Iterator[tuple[int, str, int, bytes]]:
    at = 0
    while at < len(body):
        kind, path_bytes, position, data_bytes = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        path = body[at : at + path_bytes].decode()
        at += path_bytes
        yield kind, path, position, body[at : at + data_bytes]
        at += data_bytes
