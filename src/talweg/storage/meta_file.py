"""What a group's directory says of itself: whose log it is, where it starts, what is being replaced.

It is where every change that touches several files becomes true at once: before this file is written
the old log is there, after it the new one. It lies in two slots (see `slots`), and so can be changed on
a full disk: that is when retention is needed most.
"""

from contextlib import suppress

import msgspec

from talweg.errors import DamagedLog
from talweg.storage.checked_file import write_durably
from talweg.storage.files import Files
from talweg.storage.slots import Slot, read_newest, write_first, write_slot

META_NAME = "meta"

_MAGIC = b"TwMt"


class Replacement(msgspec.Struct, frozen=True):
    """A tail that gives way to another. Once this is durable it happens, if need be at the next opening."""

    from_index: int  # entries from here on go, with their files and their snapshots; 0: everything
    cut_base_index: int | None = None  # the segment of which a part stays
    cut_bytes: int = 0  # how much of it
    staged_segment: int | None = None  # base index of a file that waits to take the tail's place
    staged_snapshot: int | None = None  # index of a snapshot that does


class Meta(msgspec.Struct, frozen=True):
    """On disk as MessagePack."""

    incarnation: int
    start_index: int = 0  # dropped up to and including here
    start_term: int = 0
    start_offset: int = 0  # the first offset kept
    start_timestamp: int = 0  # newest message dropped
    start_base_index: int = 1  # of the segment that holds, or will hold, entry start_index + 1
    start_position: int = 0  # of that entry in it
    changes: int = 0  # grows with each replacement, so that one can tell whether it has happened
    replacement: Replacement | None = None


def create_meta(files: Files, directory: str, meta: Meta) -> None:
    """Make the file, durably and atomically: a directory without it is not a group. Raises OSError."""
    path = f"{directory}/{META_NAME}"
    value = msgspec.msgpack.encode(meta)
    # The bytes before the name: a name that is durable must never point at bytes that are not.
    write_durably(files, f"{path}.temporary", lambda file: write_first(file, _MAGIC, value))
    files.rename(f"{path}.temporary", path)
    files.sync_directory(directory)


def read_meta(files: Files, directory: str) -> Meta | None:
    """What the directory holds; None if there is no such file. Raises DamagedLog, NewerFormat."""
    slot = _read(files, directory)
    if slot is None:
        return None
    try:
        return msgspec.msgpack.decode(slot.value, type=Meta)
    except msgspec.MsgspecError as error:
        raise DamagedLog(f"{directory}/{META_NAME} is not what was written: {error}") from error


def write_meta(files: Files, directory: str, meta: Meta) -> None:
    """Change it, atomically and durably. Raises OSError; then it may be the old one or the new one."""
    old, value = _read(files, directory), msgspec.msgpack.encode(meta)
    assert old is not None
    # A value has the place that its number says. So the next one never goes over the only copy of the last
    # that is durable; and what is written once more, because its sync failed, goes where it went before.
    number = old.number if value == old.value else old.number + 1
    new = Slot(number % 2, number, value)
    file = files.open(f"{directory}/{META_NAME}")
    try:
        write_slot(file, _MAGIC, new)
        file.sync()
        # The other slot as well, so that one bad sector does not bring an older meaning back. If that
        # fails, what was to be written is durable all the same.
        with suppress(OSError):
            write_slot(file, _MAGIC, new._replace(place=1 - new.place))
            file.sync()
    finally:
        file.close()


def _read(files: Files, directory: str) -> Slot | None:
    path = f"{directory}/{META_NAME}"
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        slot, _ = read_newest(file, _MAGIC, path)  # either will do: both are written with every change
    finally:
        file.close()
    if slot is None:
        raise DamagedLog(f"{path} is not what was written")
    return slot
