"""Replacing the tail of a log, or all of it, so that a crash leaves the old log or the new one.

What is to come is staged beside the log: complete, durable, and under names that mean nothing yet. Then
the meta file says, in one atomic step, that it is to take the tail's place. From there on the change is
true, and `finish` can be run as often as it takes: after a crash the next opening does it.
"""

import msgspec

from talweg.storage.checked_file import remove_quietly, write_all, write_durably
from talweg.storage.files import File, Files
from talweg.storage.meta_file import Meta, Replacement, write_meta
from talweg.storage.recovery import STAGED_SUFFIX, numbered
from talweg.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, index_name, log_name, write_frames
from talweg.storage.snapshot_file import SNAPSHOT_SUFFIX, snapshot_name


def stage(
    files: Files, directory: str, replacement: Replacement, frames: list[bytes], snapshot: bytes | None
) -> None:
    """Write what is to come, durably. Raises OSError; then nothing has changed."""
    try:
        if replacement.staged_segment is not None:
            path = f"{directory}/{log_name(replacement.staged_segment)}{STAGED_SUFFIX}"
            write_durably(files, path, lambda file: write_frames(file, frames, 0))
        if replacement.staged_snapshot is not None and snapshot is not None:
            path = f"{directory}/{snapshot_name(replacement.staged_snapshot)}{STAGED_SUFFIX}"
            write_durably(files, path, lambda file: write_all(file, snapshot, 0))
        # The names too: once the meta file counts on them, they must be there.
        files.sync_directory(directory)
    except OSError:
        for name in _staged_names(replacement):
            remove_quietly(files, f"{directory}/{name}{STAGED_SUFFIX}")
        raise


def finish(files: Files, directory: str, meta: Meta) -> Meta:
    """Carry out what `meta.replacement` says: the meta file afterwards. Raises OSError."""
    replacement = meta.replacement
    assert replacement is not None
    names = files.list(directory)
    base = replacement.staged_segment
    # The staged segment is renamed last. If it is staged no more, all that comes before has been done,
    # and the file that now bears its name must not be removed.
    if base is None or f"{log_name(base)}{STAGED_SUFFIX}" in names:
        _remove_tail(files, directory, names, meta)
        if replacement.cut_base_index is not None:
            _cut(files, f"{directory}/{log_name(replacement.cut_base_index)}", replacement.cut_bytes)
    for name in _staged_names(replacement):
        if f"{name}{STAGED_SUFFIX}" in names:
            files.rename(f"{directory}/{name}{STAGED_SUFFIX}", f"{directory}/{name}")
            files.sync_directory(directory)
    finished = msgspec.structs.replace(meta, replacement=None)
    write_meta(files, directory, finished)
    return finished


def _staged_names(replacement: Replacement) -> list[str]:
    # In the order in which they are put in place.
    names = []
    if replacement.staged_snapshot is not None:
        names.append(snapshot_name(replacement.staged_snapshot))
    if replacement.staged_segment is not None:
        names.append(log_name(replacement.staged_segment))
    return names


def _remove_tail(files: Files, directory: str, names: list[str], meta: Meta) -> None:
    replacement = meta.replacement
    assert replacement is not None
    first = replacement.from_index
    gone = [log_name(base) for base in numbered(names, LOG_SUFFIX) if base >= first]
    # The index of the segment that is cut goes too: it describes what is no longer there.
    gone += [
        index_name(base)
        for base in numbered(names, INDEX_SUFFIX)
        if base >= first or base == replacement.cut_base_index
    ]
    gone += [
        snapshot_name(index)
        for index in numbered(names, SNAPSHOT_SUFFIX)
        if index >= first and index != replacement.staged_snapshot
    ]
    for name in gone:
        files.remove(f"{directory}/{name}")
    # Before the rename: a crash must not keep the new name and bring an old one back.
    files.sync_directory(directory)


def _cut(files: Files, path: str, size: int) -> None:
    file: File = files.open(path)
    try:
        # Also when it has that size: the sync after an earlier cut may have failed.
        if file.size() >= size:
            file.truncate(size)
        file.sync()
    finally:
        file.close()
