"""Up to which entry a log was durable, noted beside it: what a crash tears lies behind that.

    magic (4) · CRC-32C u32 · changes u64 · stable index u64

All of it within one sector, which a crash leaves as it was or as it was to be. The note is never synced by
itself, which would double what a sync costs. So it may be older than the log, by as long as the kernel keeps
what is written to itself (half a minute on Linux, nothing if only the process died), but never ahead of it.
"""

import struct
from contextlib import suppress

from crc32c import crc32c

from talweg.storage.checked_file import read_file
from talweg.storage.files import Files
from talweg.storage.handles import Handles

STABLE_NAME = "stable"

_MAGIC = b"TwSt"
_HEAD = struct.Struct("<4sI")
_COVERED = struct.Struct("<QQ")


def read_stable_index(files: Files, directory: str, changes: int) -> int:
    """The last entry that is known to have been durable since the change of this number; 0 if none is."""
    note = b""
    with suppress(OSError):  # then nothing is known
        note = read_file(files, f"{directory}/{STABLE_NAME}")
    if len(note) != _HEAD.size + _COVERED.size:
        return 0
    magic, checksum = _HEAD.unpack_from(note)
    covered = note[_HEAD.size :]
    noted_changes, index = _COVERED.unpack(covered)
    if magic != _MAGIC or checksum != crc32c(covered) or noted_changes != changes:
        return 0
    return int(index)


class StableFile:
    """The writer's side."""

    def __init__(self, handles: Handles, directory: str) -> None:
        self._handle = handles.handle(f"{directory}/{STABLE_NAME}", create=True)
        self._keeps = handles.files.durable  # else nothing is ever known to be durable
        self._noted = (0, 0)

    def note(self, changes: int, index: int) -> None:
        """The log is durable up to this entry. What goes wrong is borne: then an older note stands."""
        if not self._keeps or self._noted == (changes, index):
            return
        covered = _COVERED.pack(changes, index)
        with suppress(OSError), self._handle as file:
            file.write_at(_HEAD.pack(_MAGIC, crc32c(covered)) + covered, 0)
            self._noted = (changes, index)

    def close(self) -> None:
        """Let go of the file."""
        self._handle.discard()
