"""Entry ⇄ frame: how an entry of the consensus core looks on disk and on the wire.

NOOP and CONFIGURATION entries are born inside the core, which knows nothing of frames: their payload
is the bare body, and whoever stores them makes the frame. Every other kind is made by the application:
its payload *is* the whole frame, stamped with the entry's index and term. So a batch of messages is
framed once, by the leader, and from then on only moved.
"""

from talweg.errors import CorruptBatch
from talweg.raft import CONFIGURATION, Entry
from talweg.records import HEADER_BYTES, Header, Kind, checked_run, encode_frame
from talweg.records.header import Bytes

LAST_BARE_KIND = CONFIGURATION  # this kind and those below it carry only a body


def frame_of(entry: Entry, next_offset: int) -> bytes:
    """The bytes that stand for `entry` where `next_offset` is the first offset not yet used."""
    if entry.kind <= LAST_BARE_KIND:
        kind = Kind(entry.kind)
        return encode_frame(kind, entry.payload, index=entry.index, term=entry.term, first_offset=next_offset)
    return entry.payload


def frames_of(entries: list[Entry]) -> list[bytes]:
    """The same for entries that travel: the offset of one without messages is for the receiver to fill in."""
    return [entry.payload if entry.kind > LAST_BARE_KIND else frame_of(entry, 0) for entry in entries]


def entry_of(header: Header, frame: bytes) -> Entry:
    """The entry that `frame`, whose header has been read, stands for."""
    kind = int(header.kind)
    if kind <= LAST_BARE_KIND:
        frame = frame[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    return Entry(header.index, header.term, kind, frame)


def entries_in(buffer: Bytes) -> list[Entry]:
    """All entries in a run of frames, each checked in full.

    Raises CorruptBatch where a frame is not sound, or where an index does not follow the one before.
    """
    entries: list[Entry] = []
    next_index = None
    for kind, index, term, body_bytes, frame in checked_run(buffer):
        if index != next_index and next_index is not None:
            raise CorruptBatch(f"entry {index} stands where entry {next_index} belongs")
        next_index = index + 1
        payload = frame if kind > LAST_BARE_KIND else frame[HEADER_BYTES : HEADER_BYTES + body_bytes]
        entries.append(Entry(index, term, kind, payload))
    return entries
