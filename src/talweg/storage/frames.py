"""Entry ⇄ frame: how an entry of the consensus core looks on disk and on the wire.

NOOP and CONFIGURATION entries are born inside the core, which knows nothing of frames: their payload
is the bare body, and whoever stores them makes the frame. Every other kind is made by the application:
its payload *is* the whole frame, stamped with the entry's index and term. So a batch of messages is
framed once, by the leader, and from then on only moved.

Small ones that follow one another are moved as a `Run`. Its notes are those of `talweg.records`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby

from talweg.errors import CorruptBatch
from talweg.raft import CONFIGURATION, Entries, Entry, Run
from talweg.records import HEADER_BYTES, Header, Kind, Note, checked_run, encode_frame, notes_of, read_header
from talweg.records.header import Bytes

LAST_BARE_KIND = CONFIGURATION  # this kind and those below it carry only a body
# From this size on a frame is moved for itself: to put it together with others costs more than it saves.
LARGE_FRAME_BYTES = 32 << 10
RUN_BYTES_MAX = 1 << 20


def frame_of(entry: Entry, next_offset: int) -> bytes:
    """The bytes that stand for `entry` where `next_offset` is the first offset not yet used."""
    if entry.kind <= LAST_BARE_KIND:
        kind = Kind(entry.kind)
        return encode_frame(kind, entry.payload, index=entry.index, term=entry.term, first_offset=next_offset)
    return entry.payload


def frames_of(entries: Entries) -> list[bytes]:
    """The same for entries that travel, those of a run in one piece. The offset of one without messages is
    for the receiver to fill in."""
    return [
        entry.payload if isinstance(entry, Run) or entry.kind > LAST_BARE_KIND else frame_of(entry, 0)
        for entry in entries
    ]


def gathered(parts: Sequence[bytes]) -> list[bytes]:
    """The same bytes, for one call that takes several: large parts as they are, small ones joined.

    To hand over a vector of many small ones costs more than the copy.
    """
    if max(map(len, parts), default=0) < LARGE_FRAME_BYTES:
        return [b"".join(parts)]
    made: list[bytes] = []
    for large, run in groupby(parts, lambda part: len(part) >= LARGE_FRAME_BYTES):
        like = list(run)
        made += like if large else [b"".join(like)]
    return made


def entry_of(header: Header, frame: bytes) -> Entry:
    """The entry that `frame`, whose header has been read, stands for."""
    kind = int(header.kind)
    if kind <= LAST_BARE_KIND:
        frame = frame[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    return Entry(header.index, header.term, kind, frame)


def in_runs(first_index: int, term: int, kinds: Sequence[int], frames: Sequence[bytes]) -> list[Entry | Run]:
    """Entries of one term, given as their frames, as few pieces as it pays to make of them."""
    made: list[Entry | Run] = []
    lengths = list(map(len, frames))
    first = 0
    for end in _borders(lengths):
        index = first_index + first
        if end == first + 1:
            made.append(Entry(index, term, kinds[first], frames[first]))
        else:
            ends = list(accumulate(lengths[first:end]))
            payload = b"".join(frames[first:end])
            notes = notes_of(frames[first:end])
            made.append(Run(index, term, bytes(kinds[first:end]), payload, ends, notes))
        first = end
    return made


def _borders(lengths: list[int]) -> list[int]:
    # Where pieces end. One that is large is a piece of its own.
    if sum(lengths) <= RUN_BYTES_MAX and max(lengths, default=0) < LARGE_FRAME_BYTES:
        return [len(lengths)] if lengths else []
    borders: list[int] = []
    run_bytes = 0
    for place, length in enumerate(lengths):
        is_large = length >= LARGE_FRAME_BYTES
        if run_bytes and (is_large or run_bytes + length > RUN_BYTES_MAX):
            borders.append(place)
            run_bytes = 0
        if is_large:
            borders.append(place + 1)
        else:
            run_bytes += length
    return borders if borders and borders[-1] == len(lengths) else [*borders, len(lengths)]


def entries_in(buffer: Bytes) -> list[Entry | Run]:
    """All entries in frames that follow one another, each checked in full; in as few runs as can be.

    Raises CorruptBatch where a frame is not sound, or where an index does not follow the one before.
    """
    kinds, ends, notes = checked_run(buffer)
    made: list[Entry | Run] = []
    first = begins_at = 0
    for end in _changes(kinds, notes):
        payload = bytes(buffer[begins_at : ends[end - 1]])
        if end == first + 1:
            made.append(entry_of(read_header(payload), payload))
        else:
            _, index, term, *_ = notes[first]
            own_ends = [each - begins_at for each in ends[first:end]]
            made.append(Run(index, term, bytes(kinds[first:end]), payload, own_ends, notes[first:end]))
        first, begins_at = end, ends[end - 1]
    return made


def record_frames(run: Run, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
    """Its frames of kind RECORDS from the one that holds `offset` on, none beyond `last_index`: up to
    `bytes_max` but at least one; none if it does not hold it."""
    notes: list[Note] = run.notes
    # The last that begins there or before: what has no messages begins where the next one does.
    first = bisect_right(notes, offset, key=_first_offset) - 1
    wanted = min(last_index + 1 - run.index, len(notes))  # of its entries
    if not 0 <= first < wanted or offset >= _next_offset(notes[first]):
        return []
    begins_at = run.ends[first - 1] if first else 0
    end = min(max(bisect_right(run.ends, begins_at + bytes_max), first + 1), wanted)
    part = run.part(run.index + first, run.index + end - 1)
    return [entry.payload for entry in part.entries() if entry.kind == Kind.RECORDS]


def _first_offset(note: Note) -> int:
    return note[3]


def _next_offset(note: Note) -> int:
    return note[3] + note[4]


def _changes(kinds: bytearray, notes: list[Note]) -> list[int]:
    # Where pieces end. Those of a run are of one term, and the core's own are for themselves.
    if not notes:
        return []
    first_index, count, terms = notes[0][1], len(notes), [note[2] for note in notes]
    if [note[1] for note in notes] != [*range(first_index, first_index + count)]:
        raise CorruptBatch(f"the {count} entries from {first_index} on do not follow one another")
    if min(kinds) > LAST_BARE_KIND and terms.count(terms[0]) == count:
        return [count]
    bare = [kind <= LAST_BARE_KIND for kind in kinds]
    inner = [at for at in range(1, count) if bare[at - 1] or bare[at] or terms[at - 1] != terms[at]]
    return [*inner, count]
