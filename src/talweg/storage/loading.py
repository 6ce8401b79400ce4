"""From files to a log in memory: everything that a store knows, worked out from its directory."""

import msgspec

from talweg.errors import DamagedLog
from talweg.storage.checked_file import sync_file
from talweg.storage.contract import Damage
from talweg.storage.files import Files
from talweg.storage.handles import Handles
from talweg.storage.kept_snapshots import Kept, find_kept
from talweg.storage.meta_file import META_NAME, Meta, read_meta, write_meta
from talweg.storage.reading import LogReader
from talweg.storage.recovery import load_points, open_segments, sweep
from talweg.storage.replacement import finish
from talweg.storage.segment import Segment
from talweg.storage.sparse_index import SparseIndex
from talweg.storage.view import View


class Loaded(msgspec.Struct, frozen=True):
    """A log as it was found."""

    meta: Meta
    view: View  # of the sound part
    kept: list[Kept]
    damage: Damage | None
    torn_bytes: int


def load(
    handles: Handles, reader: LogReader, directory: str, interval_bytes: int, *, in_doubt: bool
) -> Loaded:
    """Read the directory of a group; `in_doubt`: after a change to it that failed. Raises DamagedLog,
    NewerFormat, OSError."""
    files = handles.files
    _settle(files, directory)
    meta = read_meta(files, directory)
    if meta is None:
        raise DamagedLog(f"{directory} has no meta file")
    if in_doubt:
        # A sync of it may have failed: then we read what the kernel remembers and the disk does not have.
        # It becomes true now, before anything is done that follows from it.
        write_meta(files, directory, meta)
    if meta.replacement is not None:
        meta = finish(files, directory, meta)
    bases, snapshots = sweep(files, directory, meta)
    opened = open_segments(handles, directory, meta, bases, interval_bytes)
    view = _view(handles, meta, opened.segments)
    kept, damage = find_kept(files, reader, directory, view, snapshots)
    return Loaded(meta, view, kept, damage if opened.damage is None else opened.damage, opened.torn_bytes)


def _settle(files: Files, directory: str) -> None:
    # A process may have died between a change and its sync. Names, and what the meta file says of them, are
    # acted upon here (files are removed, or written to), so they must be durable before. The hard state and
    # the last segment are synced where they are read.
    files.sync_directory(directory)
    sync_file(files, f"{directory}/{META_NAME}")


def view_of(meta: Meta, segments: tuple[Segment, ...], empty_at: int = 0) -> View:
    """What readers see of these segments; without any, the log is at `empty_at` on the scale of bytes."""
    if not segments:
        return View(
            segments=(),
            start_index=meta.start_index,
            start_term=meta.start_term,
            start_offset=meta.start_offset,
            start_timestamp=meta.start_timestamp,
            start_at=empty_at,
            last_index=meta.start_index,
            next_offset=meta.start_offset,
            end_position=0,
            points=SparseIndex(),
            points_count=0,
        )
    last = segments[-1].contents
    return View(
        segments=segments,
        start_index=meta.start_index,
        start_term=meta.start_term,
        start_offset=meta.start_offset,
        start_timestamp=meta.start_timestamp,
        start_at=segments[0].begins_at + meta.start_position,
        last_index=last.last_index,
        next_offset=last.next_offset,
        end_position=last.log_bytes,
        points=last.points,
        points_count=len(last.points),
    )


def _view(handles: Handles, meta: Meta, segments: list[Segment]) -> View:
    if segments:
        last = segments[-1]
        # The last one is searched without the cache. It is a sealed one only when damage follows.
        if last.contents.last_index >= last.contents.first_index and not len(last.contents.points):
            last.contents.continue_points(load_points(handles.files, last))
    return view_of(meta, tuple(segments))
