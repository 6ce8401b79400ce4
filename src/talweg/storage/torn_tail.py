"""What an interrupted append leaves at the end of the last segment, as against what has rotted.

A crash leaves fewer bytes than a header has, or fewer than the header promises. After a power cut the file
may have its new length all the same, with zeros where sectors never reached the disk. They are written in
any order, so it need not be the last ones that are missing. A frame that lacks a sector was being written;
whatever follows it came later, and was not durable either.

The price: where the note of what was durable (`stable_file`) is older than the log, an acknowledged frame
that rots, and of which some sector holds nothing but zeros, looks torn, and is cut in silence. The other
choice is worse. A power cut that takes all of a group's brokers would leave each with such a tail, every
replica would wait for the others to recover from, and the group would never have a leader again.
"""

from talweg.errors import CorruptBatch
from talweg.records import HEADER_BYTES, read_header
from talweg.storage.checked_file import is_unreadable, read_fully
from talweg.storage.files import File

_SECTOR_BYTES = 512  # no disk writes less: what never reached it begins and ends at multiples of this


def is_torn(file: File, position: int, size: int) -> bool:
    """Whether the frame at this position, which is not sound, was torn. The file ends at `size`."""
    try:
        head = read_fully(file, min(HEADER_BYTES, size - position), position)
        try:
            wanted = read_header(head).frame_bytes
        except CorruptBatch:  # fewer bytes than a header has, too
            wanted = HEADER_BYTES
        if wanted > size - position:
            return True
        return _lacks_a_sector(read_fully(file, wanted, position), position)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return False  # there was something once


def _lacks_a_sector(frame: bytes, position: int) -> bool:
    # Whether all that some sector has of it are zeros.
    first = _SECTOR_BYTES - position % _SECTOR_BYTES
    begins = [0, *range(first, len(frame), _SECTOR_BYTES)]
    ends = [*begins[1:], len(frame)]
    return any(not frame[begin:end].strip(b"\0") for begin, end in zip(begins, ends, strict=True))
