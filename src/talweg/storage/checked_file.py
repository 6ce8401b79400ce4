"""Files that are read and written whole: a checksum over everything, replaced atomically.

    magic (4) · version u16 · reserved u16 · CRC-32C u32 · body bytes u32 · body

The checksum covers all that follows it, and the version and reserved fields before it. This outer
layout never changes, so that a later version of Talweg is recognised and never taken for damage.
"""

import errno
import struct
from collections.abc import Callable, Sequence

from crc32c import crc32c

from talweg.errors import DamagedLog, NewerFormat, StorageError, StorageFull
from talweg.storage.files import File, Files

FORMAT_VERSION = 1  # of everything that segment files keep, frames apart

_HEAD = struct.Struct("<4sHHII")
HEAD_BYTES = _HEAD.size
_COVERED = struct.Struct("<HHI")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def seal(magic: bytes, body: bytes) -> bytes:
    """The file's bytes."""
    covered = _COVERED.pack(FORMAT_VERSION, 0, len(body))
    return _HEAD.pack(magic, FORMAT_VERSION, 0, crc32c(body, crc32c(covered)), len(body)) + body


def unseal(magic: bytes, data: bytes, what: str) -> bytes:
    """The body that `seal` was given. Raises DamagedLog or NewerFormat, naming `what`."""
    if len(data) < _HEAD.size:
        raise DamagedLog(f"{what} is cut short: {len(data)} bytes")
    found_magic, version, reserved, checksum, body_bytes = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + body_bytes]
    covered = _COVERED.pack(version, reserved, body_bytes)
    if found_magic != magic or len(body) != body_bytes or crc32c(body, crc32c(covered)) != checksum:
        raise DamagedLog(f"{what} is not what was written")
    if version > FORMAT_VERSION:
        raise NewerFormat(f"{what} has format {version}; this version knows formats up to {FORMAT_VERSION}")
    return body


def body_bytes_of(data: bytes) -> int:
    """How long the body says it is; 0 when not even that can be read."""
    return int(_HEAD.unpack_from(data)[4]) if len(data) >= HEAD_BYTES else 0


def write_all(file: File, data: bytes | memoryview, position: int) -> None:
    """Write every byte, going on after a short write."""
    taken = file.write_at(data, position)
    while taken < len(data):
        more = file.write_at(memoryview(data)[taken:], position + taken)
        if more <= 0:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        taken += more


def write_all_parts(file: File, parts: Sequence[bytes], position: int) -> None:
    """The same of several, one behind the other, in one call if it takes them all."""
    taken = file.write_parts_at(parts, position)
    for part in parts:
        if taken < len(part):
            write_all(file, memoryview(part)[taken:], position + taken)
        position += len(part)
        taken = max(taken - len(part), 0)


def read_some(file: File, size: int, position: int) -> bytes:
    """`File.read_at`. What cannot be read is tried once more: not every failure is a bad sector."""
    try:
        return file.read_at(size, position)
    except OSError as error:
        if not is_unreadable(error):
            raise
    return file.read_at(size, position)


def read_fully(file: File, size: int, position: int) -> bytes:
    """All of these bytes; fewer only at the end of the file. Raises OSError."""
    data = read_some(file, size, position)
    while 0 < len(data) < size:
        more = read_some(file, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_file(files: Files, path: str) -> bytes:
    """The whole of a small file by its name; empty when it is missing. Raises OSError."""
    if not files.exists(path):
        return b""
    file = files.open(path)
    try:
        return read_fully(file, file.size(), 0)
    finally:
        file.close()


def write_durably(files: Files, path: str, write: Callable[[File], None]) -> None:
    """Make a file whose bytes are durable; its name is not until the directory is synced."""
    file = files.open(path)
    try:
        file.truncate(0)  # a leftover of an earlier attempt
        write(file)
        file.sync()
    finally:
        file.close()


def sync_file(files: Files, path: str) -> None:
    """Make durable what a file holds. One that is gone needs no sync. Raises OSError."""
    try:
        file = files.open(path, create=False)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def replace_file(files: Files, directory: str, name: str, data: bytes) -> None:
    """Put `data` in the place of the file, durably: after a crash it is the old one or the new one."""
    temporary = f"{directory}/{name}.temporary"
    try:
        # The bytes before the name: a name that is durable must never point at bytes that are not.
        write_durably(files, temporary, lambda file: write_all(file, data, 0))
        files.rename(temporary, f"{directory}/{name}")
    except OSError:
        remove_quietly(files, temporary)
        raise
    files.sync_directory(directory)


def remove_quietly(files: Files, path: str) -> None:
    """Remove what is no longer needed; if that fails, the next opening removes it."""
    try:
        files.remove(path)
    except OSError:
        return


def is_unreadable(error: OSError) -> bool:
    """Whether the disk has the bytes no more: a bad sector, or a checksum of the file system's own."""
    return error.errno == errno.EIO


def storage_error(error: OSError, doing: str) -> StorageError | StorageFull:
    """What an operating system's error means to callers."""
    if error.errno in _NO_SPACE:
        return StorageFull(f"no space left on the disk, {doing}")
    return StorageError(f"the disk failed, {doing}: {error.strerror or error}")
