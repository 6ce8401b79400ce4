"""Going through the frames of a segment file, from a position where one begins.

By headers alone (88 bytes here and there), or frame by frame with every checksum. What is not sound, or
cannot be read, raises `Unsound`; whether that is a torn tail or damage is for the caller to say.
"""

from collections.abc import Iterator

from talweg.errors import CorruptBatch
from talweg.records import HEADER_BYTES, Header, check_body, read_header
from talweg.storage.checked_file import is_unreadable, read_some
from talweg.storage.files import File

HOP_BYTES = 64 << 10  # read at once where only headers are wanted
READ_BYTES_MAX = 4 << 20  # read at once where frames are wanted, unless one frame is larger


class Unsound(Exception):
    """No sound frame begins at `position`."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"at byte {position}: {detail}")
        self.position = position


class UnsoundEntry(Exception):
    """The entry at `index` is not what was written, or not there."""

    def __init__(self, index: int, detail: str) -> None:
        super().__init__(f"entry {index}: {detail}")
        self.index = index


def headers(file: File, position: int, end: int) -> Iterator[tuple[int, Header]]:
    """(position, header) of each frame from `position` to `end`, which must be where a frame ends."""
    buffer, start = b"", position  # of the file, from `start` on
    while position < end:
        if position + HEADER_BYTES > start + len(buffer):
            buffer, start = _read(file, position, min(HOP_BYTES, end - position), HEADER_BYTES), position
        header = _header(buffer, position - start, position)
        if position + header.frame_bytes > end:
            raise Unsound(position, f"a frame of {header.frame_bytes} bytes has {end - position}")
        yield position, header
        position += header.frame_bytes


def frames(file: File, position: int, end: int, read_bytes: int) -> Iterator[tuple[Header, bytes]]:
    """Each frame from `position` to `end`, checked in full. Reads about `read_bytes` at a time."""
    buffer, start = b"", position
    read_bytes = max(HEADER_BYTES, min(read_bytes, READ_BYTES_MAX))
    while position < end:
        if position + HEADER_BYTES > start + len(buffer):
            buffer, start = _read(file, position, min(read_bytes, end - position), HEADER_BYTES), position
        header = _header(buffer, position - start, position)
        next_position = position + header.frame_bytes
        if next_position > end:
            raise Unsound(position, f"a frame of {header.frame_bytes} bytes has {end - position}")
        if next_position > start + len(buffer):
            # Only what is missing is read again: a large frame is not paid for twice.
            buffer = buffer[position - start :]
            missing = header.frame_bytes - len(buffer)
            buffer += _read(file, position + len(buffer), missing, missing, position)
            start = position
        try:
            check_body(header, buffer, position - start)
        except CorruptBatch as error:
            raise Unsound(position, str(error)) from error
        yield header, buffer[position - start : next_position - start]
        position = next_position


def _header(buffer: bytes, at: int, position: int) -> Header:
    try:
        return read_header(buffer, at)
    except CorruptBatch as error:
        raise Unsound(position, str(error)) from error


def _read(file: File, position: int, size: int, needed: int, frame_at: int | None = None) -> bytes:
    # Fewer bytes before a sector that cannot be read, as long as they are as many as the frame needs: those
    # that come first are given first. Fewer, too, where the file is shorter than it should be; the checksum
    # will say so.
    data = b""
    while len(data) < size:
        try:
            more = read_some(file, size - len(data), position + len(data))
        except OSError as error:
            if not is_unreadable(error):
                raise
            if len(data) < needed:
                at = position if frame_at is None else frame_at
                raise Unsound(at, f"the disk cannot read it: {error.strerror}") from error
            break
        if not more:
            break
        data += more
    return data
