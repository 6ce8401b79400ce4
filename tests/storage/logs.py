"""Making entries, and looking at whole logs, for the tests of stores."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from talweg.raft import CONFIGURATION, NOOP, Configuration, Entry, HardState, Run, Snapshot
from talweg.records import Batch, Codec, Kind, encode_frame, encode_values, read_header, stamp
from talweg.storage import LogStore, Write
from talweg.storage.frames import in_runs

EVERYTHING = 1 << 40  # bytes: no limit
MEMBERS = Configuration.of([1, 2, 3])


class LogMaker:
    """Entries as a leader would make them: stamped, without gaps in indexes or offsets."""

    def __init__(self, last_index: int = 0, term: int = 1, next_offset: int = 0) -> None:
        self.last_index = last_index
        self.term = term
        self.next_offset = next_offset
        self.clock = 1_000_000  # microseconds; each batch is a second newer than the one before

    def noop(self) -> Entry:
        return self._next(NOOP, b"")

    def configuration(self, *voters: int) -> Entry:
        return self._next(CONFIGURATION, Configuration.of(voters).to_bytes())

    def records(self, *values: bytes, timestamp: int | None = None) -> Entry:
        self.clock += 1_000_000
        frame = encode_values(
            list(values), timestamp=self.clock if timestamp is None else timestamp, codec=Codec.NONE
        )
        return self._stamped(Kind.RECORDS, frame, len(values))

    def positions(self, body: bytes = b"position") -> Entry:
        return self._stamped(Kind.POSITIONS, encode_frame(Kind.POSITIONS, body), 0)

    def batches(self, count: int, value_bytes: int = 20) -> list[Entry]:
        return [self.records(b"%08d" % self.next_offset + bytes(value_bytes - 8)) for _ in range(count)]

    def at(self, index: int, term: int, next_offset: int) -> "LogMaker":
        """Another history, from after `index` on."""
        other = LogMaker(index, term, next_offset)
        other.clock = self.clock
        return other

    def _stamped(self, kind: Kind, frame: bytes, count: int) -> Entry:
        index, offset = self.last_index + 1, self.next_offset
        self.next_offset += count
        return self._next(kind, stamp(frame, index=index, term=self.term, first_offset=offset))

    def _next(self, kind: int, payload: bytes) -> Entry:
        self.last_index += 1
        return Entry(self.last_index, self.term, int(kind), payload)


def snapshot_at(entry: Entry, state: bytes = b"state", configuration: Configuration = MEMBERS) -> Snapshot:
    return Snapshot(entry.index, entry.term, configuration, state)


def together(entries: Iterable[Entry]) -> list[Entry | Run]:
    """The same in runs, as brokers have them."""
    made: list[Entry | Run] = []
    for (is_own, term), stretch in groupby(entries, lambda each: (each.kind <= CONFIGURATION, each.term)):
        some = list(stretch)
        if is_own:
            made += some
        else:
            kinds, frames = [each.kind for each in some], [each.payload for each in some]
            made += in_runs(some[0].index, term, kinds, frames)
    return made


def mixed(entries: Sequence[Entry]) -> list[Entry | Run]:
    """The first one for itself, the others in runs: one write may hold both."""
    return [*entries[:1], *together(entries[1:])]


def write(store: LogStore, *entries: Entry, hard_state: HardState | None = None) -> None:
    """Write, in runs where there are several, and sync."""
    store.write(Write(entries=together(entries), hard_state=hard_state))
    store.sync()


def contents(store: LogStore) -> list[Entry]:
    """Every entry there is."""
    summary = store.summary()
    found: list[Entry] = []
    while summary.start_index + len(found) < summary.last_index:
        found += store.read(summary.start_index + len(found) + 1, EVERYTHING)
    assert [entry.index for entry in found] == list(range(summary.start_index + 1, summary.last_index + 1))
    return found


def values(frames: list[bytes]) -> list[bytes]:
    """The messages in frames, in order."""
    return [value for frame in frames for value in Batch.from_frame(frame).values() if value is not None]


def frame_bytes(*entries: Entry) -> int:
    """How much log these entries are."""
    total = 0
    for entry in entries:
        if entry.kind in (NOOP, CONFIGURATION):
            total += len(encode_frame(Kind(entry.kind), entry.payload))
        else:
            total += read_header(entry.payload).frame_bytes
    return total
