"""Opening a log: what is there, what was torn by a crash and is cut, what is damaged and is not.

Up to the stable index all of it was durable once: what is missing there, or not sound, is damage. Behind it
the end of the last segment may be torn: `torn_tail` tells by its looks, and it is cut. Damage is reported and
left alone until the replica is known to be recovering.

Sealed segments are not read: their `.index` says what they hold. Bodies are checked when somebody reads
them. The last segment is checked to its last byte.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from talweg.errors import StorageError
from talweg.records import Header, Kind
from talweg.storage.checked_file import remove_quietly
from talweg.storage.contents import Contents, Digest, contents_of, read_digest, read_points
from talweg.storage.contract import Damage
from talweg.storage.files import File, Files
from talweg.storage.frames import entry_of
from talweg.storage.handles import Handles
from talweg.storage.meta_file import Meta
from talweg.storage.scan import READ_BYTES_MAX, Unsound, UnsoundEntry, frames, headers
from talweg.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, index_name, log_name
from talweg.storage.snapshot_file import SNAPSHOT_SUFFIX, snapshot_name
from talweg.storage.sparse_index import SparseIndex
from talweg.storage.stable_file import read_stable_index
from talweg.storage.torn_tail import is_torn

STAGED_SUFFIX = ".staged"
TEMPORARY_SUFFIX = ".temporary"


class Start(msgspec.Struct, frozen=True):
    """What the first frame to be read must be, and where."""

    index: int
    offset: int
    term: int  # this one or a later one
    position: int


class OpenedSegments(NamedTuple):
    """The sound part of a log."""

    segments: list[Segment]
    damage: Damage | None  # what follows the last of `segments`
    torn_bytes: int  # that were cut


def sweep(files: Files, directory: str, meta: Meta) -> tuple[list[int], list[int]]:
    """Remove what interrupted changes left behind: then the segments' base indexes, and the snapshots'."""
    names = files.list(directory)
    bases, snapshots = numbered(names, LOG_SUFFIX), numbered(names, SNAPSHOT_SUFFIX)
    leftovers = [name for name in names if name.endswith((STAGED_SUFFIX, TEMPORARY_SUFFIX))]
    # The head was dropped by the meta file; its files may still have been there when we stopped.
    leftovers += [log_name(base) for base in bases if base < meta.start_base_index]
    leftovers += [snapshot_name(index) for index in snapshots if index < meta.start_index]
    bases = [base for base in bases if base >= meta.start_base_index]
    leftovers += [index_name(base) for base in numbered(names, INDEX_SUFFIX) if base not in bases]
    for name in leftovers:
        remove_quietly(files, f"{directory}/{name}")
    return bases, [index for index in snapshots if index >= meta.start_index]


def numbered(names: list[str], suffix: str) -> list[int]:
    """The numbers of the files with this suffix, sorted."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal() and stem.isascii())


def open_segments(
    handles: Handles, directory: str, meta: Meta, bases: list[int], interval_bytes: int
) -> OpenedSegments:
    """Go through the segment files in order, until the end or the first damage."""
    stable_index = read_stable_index(handles.files, directory, meta.changes)
    opened = OpenedSegments([], None, 0)
    start = Start(meta.start_index + 1, meta.start_offset, meta.start_term, meta.start_position)
    expected_base, begins_at = meta.start_base_index, 0
    for base in bases:
        if base != expected_base:
            detail = f"{directory}/{log_name(expected_base)} is missing; the next file begins at entry {base}"
            return opened._replace(damage=Damage(start.index, detail))
        contents = Contents(start.index, start.offset, interval_bytes)
        segment = Segment(handles, directory, base, contents, begins_at)
        opened.segments.append(segment)
        with segment.log as file:
            if base == bases[-1]:
                contents, problem, torn_bytes = _read_last(file, start, interval_bytes, stable_index)
                opened = opened._replace(torn_bytes=torn_bytes)
            else:
                contents, problem = _read_sealed(
                    handles.files, segment.index_path, file, start, interval_bytes
                )
        segment.contents = contents
        next_index = contents.last_index + 1
        if problem is not None:
            return opened._replace(damage=Damage(next_index, f"in {segment.log.path}, {problem}"))
        term = contents.terms[-1][1] if contents.terms else start.term
        start = Start(next_index, contents.next_offset, term, 0)
        expected_base, begins_at = next_index, segment.ends_at
    if not bases and meta.start_position > 0:
        detail = f"{directory}/{log_name(expected_base)} is missing"
        return opened._replace(damage=Damage(start.index, detail))
    if start.index <= stable_index:
        detail = f"{directory} ends before entry {start.index}, and was durable up to {stable_index}"
        return opened._replace(damage=Damage(start.index, detail))
    return opened


def read_contents(
    file: File, start: Start, end: int, interval_bytes: int, *, bodies: bool
) -> tuple[Contents, Unsound | None]:
    """Go through a file from `start` to `end`: what it holds, up to the first place that is not sound."""
    contents = Contents(start.index, start.offset, interval_bytes, start.position)
    term = start.term
    try:
        for position, header, frame in _walk(file, start.position, end, bodies=bodies):
            if (header.index, header.first_offset) != (contents.last_index + 1, contents.next_offset):
                detail = f"entry {header.index} stands where entry {contents.last_index + 1} belongs"
                raise Unsound(position, detail)
            if header.term < term:
                raise Unsound(position, f"the term goes back from {term} to {header.term}")
            if header.kind is Kind.CONFIGURATION:
                try:
                    contents.add_configuration(header.index, entry_of(header, frame).payload)
                except ValueError as error:
                    raise Unsound(position, str(error)) from error
            contents.add(header, position)
            term = header.term
    except Unsound as error:
        return contents, error
    return contents, None


def load_points(files: Files, segment: Segment) -> SparseIndex:
    """The sparse index of a sealed segment, worked out anew when its file is missing or not sound."""
    contents = segment.contents
    found = _read_index(files, segment.index_path)
    if found is not None and found[0].log_bytes == contents.log_bytes:
        return found[1]
    start = Start(contents.first_index, contents.first_offset, 0, contents.first_position)
    try:
        with segment.log as file:
            rebuilt, problem = read_contents(
                file, start, contents.log_bytes, contents.interval_bytes, bodies=False
            )
    except FileNotFoundError as error:
        raise UnsoundEntry(contents.first_index, f"{segment.log.path} is missing") from error
    if problem is not None and not len(rebuilt.points):
        raise UnsoundEntry(rebuilt.last_index + 1, f"in {segment.log.path}, {problem}")
    return rebuilt.points  # what comes before damage can be found; who looks beyond it meets it


def write_index(files: Files, path: str, contents: Contents) -> None:
    """Write what helps to open and to search a sealed segment. If that fails, it is done without."""
    try:
        file = files.open(path)
        try:
            contents.write_index(file)
        finally:
            file.close()
    except Exception:  # noqa: BLE001 - whatever it is: the write that it follows has succeeded
        remove_quietly(files, path)


def _read_sealed(
    files: Files, index_path: str, file: File, start: Start, interval_bytes: int
) -> tuple[Contents, Unsound | None]:
    size = file.size()
    digest = _read_digest(files, index_path)
    if digest is not None and digest.log_bytes == size and _continues(digest, start):
        return contents_of(digest, interval_bytes), None
    contents, problem = read_contents(file, start, size, interval_bytes, bodies=False)
    if problem is None:
        write_index(files, index_path, contents)
    return contents, problem


def _read_last(
    file: File, start: Start, interval_bytes: int, stable_index: int
) -> tuple[Contents, Unsound | None, int]:
    size = file.size()
    contents, problem = read_contents(file, start, size, interval_bytes, bodies=True)
    was_durable = contents.last_index < stable_index  # what is not sound, or missing
    if was_durable or (problem is not None and not is_torn(file, contents.log_bytes, size)):
        file.sync()
        return contents, problem, 0
    # Cut, durably, before anything is appended: otherwise a crash could bring the old bytes back. Also
    # when nothing is torn: a process may have died between a write, or a cut, and its sync, and what we
    # take for written must be durable.
    file.truncate(contents.log_bytes)
    file.sync()
    return contents, None, size - contents.log_bytes


def _walk(file: File, position: int, end: int, *, bodies: bool) -> Iterator[tuple[int, Header, bytes]]:
    # (position, header, frame); without `bodies`, only configurations are read as a whole.
    if bodies:
        for header, frame in frames(file, position, end, READ_BYTES_MAX):
            yield position, header, frame
            position += len(frame)
        return
    for at, header in headers(file, position, end):
        frame = b""
        if header.kind is Kind.CONFIGURATION:
            _, frame = next(frames(file, at, end, header.frame_bytes))
        yield at, header, frame


def _continues(digest: Digest, start: Start) -> bool:
    if start.position > digest.first_position:  # the head was dropped inside this segment
        return digest.first_index <= start.index <= digest.last_index + 1
    return (
        (digest.first_index, digest.first_offset, digest.first_position)
        == (start.index, start.offset, start.position)
        and bool(digest.terms)
        and digest.terms[0][1] >= start.term
    )


def _read_digest(files: Files, path: str) -> Digest | None:
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return read_digest(file, path)
    except (StorageError, OSError):
        return None  # not sound, or of a later format: it is only a help, and can be made again
    finally:
        file.close()


def _read_index(files: Files, path: str) -> tuple[Digest, SparseIndex] | None:
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return read_points(file, path)
    except (StorageError, OSError):
        return None
    finally:
        file.close()
