"""What the group as a whole has seen, as only the simulation can see it: every entry, every commit.

The tables here are the measure for all replicas. They check themselves as they grow: an entry is one
entry everywhere, offsets have no gaps, no producer's batch is there twice or out of order.
"""

from bisect import bisect_left
from typing import NamedTuple

from talweg.raft import CONFIGURATION, NOOP, Configuration, Entry
from talweg.records import HEADER_BYTES, STAGE_ID_MIN, Header, Kind, read_header
from talweg.replication.decisions import Decide, StagePlace, decode_ruling
from talweg.replication.proposals import Appended
from talweg.replication.staging import staged_frame
from talweg.replication.state import PartitionState


class Violation(AssertionError):
    """An invariant does not hold: the product is wrong (or the simulation)."""


class KnownEntry(NamedTuple):
    """An entry that some replica has (or had) in its log."""

    kind: int
    payload: bytes
    previous_term: int | None  # of the entry before it; None before a log's start


class CommittedEntry(NamedTuple):
    """An entry that some replica took for committed."""

    term: int
    kind: int
    payload: bytes
    committed_in: int  # the term of the replica that said so first


class History:
    """Grows only. Indexes count from 1, as in the log."""

    def __init__(self, configuration: Configuration) -> None:
        self.committed: list[CommittedEntry] = []
        self.states: list[bytes] = [PartitionState().to_bytes()]  # states[i]: once entry i is applied
        self.configurations: list[tuple[int, Configuration]] = [(0, configuration)]
        self.next_offset = 0
        self._known: dict[tuple[int, int], KnownEntry] = {}
        self._state = PartitionState()
        self._index_at: dict[int, int] = {}  # first offset of a batch → its index
        self._next_sequence: dict[tuple[int, int], int] = {}  # (producer, epoch) → first not yet written
        self.decisions: dict[str, tuple[StagePlace, ...]] = {}  # by transaction: all that ever were
        self._staged: dict[int, list[bytes]] = {}  # by stage: the bodies of its items
        self._published: dict[int, int] = {}  # by stage: how many of its items

    @property
    def commit_index(self) -> int:
        """The greatest index that any replica took for committed."""
        return len(self.committed)

    @property
    def configuration(self) -> Configuration:
        """The last one committed."""
        return self.configurations[-1][1]

    @property
    def positions(self) -> dict[str, int]:
        """As of the commit index."""
        return self._state.positions

    def entry_seen(self, broker: int, entry: Entry, previous_term: int | None) -> None:
        """A replica has this entry in its log: the same as everybody else's of this index and term."""
        known = self._known.setdefault(
            (entry.index, entry.term), KnownEntry(entry.kind, entry.payload, previous_term)
        )
        if (known.kind, known.payload) != (entry.kind, entry.payload):
            raise Violation(
                f"entry {entry.index} of term {entry.term} on broker {broker} is not the known one"
            )
        if previous_term is not None and known.previous_term not in (None, previous_term):
            raise Violation(
                f"broker {broker} has entry {entry.index} of term {entry.term} after one of term "
                f"{previous_term}, others after one of term {known.previous_term}"
            )

    def entry_committed(self, broker: int, index: int, term: int, committed_in: int) -> None:
        """A replica takes this entry for committed."""
        if index <= self.commit_index:
            if self.committed[index - 1].term != term:
                raise Violation(
                    f"broker {broker} commits entry {index} of term {term}, "
                    f"committed was one of term {self.committed[index - 1].term}"
                )
            return
        if index != self.commit_index + 1:
            raise Violation(f"broker {broker} commits entry {index}, the one before is committed nowhere")
        known = self._known.get((index, term))
        if known is None:
            raise Violation(f"broker {broker} commits entry {index} of term {term}, which no log ever had")
        self.committed.append(CommittedEntry(term, known.kind, known.payload, committed_in))
        if known.kind == CONFIGURATION:
            self.configurations.append((index, Configuration.from_bytes(known.payload)))
        elif known.kind != NOOP:
            self._frame_committed(index, term, known.payload)
        self.states.append(self._state.to_bytes())

    def is_committed(self, index: int, term: int) -> bool:
        """Whether this very entry is committed."""
        return index <= self.commit_index and self.committed[index - 1].term == term

    def completeness_index(self, term: int) -> int:
        """Up to where everything was committed in terms before `term`: a leader of it must have it all."""
        return bisect_left(self.committed, term, key=_committed_in)

    def batch_acknowledged(self, frame: bytes, appended: Appended) -> int:
        """A client was told that its batch stands there. Returns the index at which it does."""
        index = self._index_at.get(appended.first_offset)
        if index is None:
            raise Violation(f"offset {appended.first_offset} was acknowledged and is not committed")
        sent, stored = read_header(frame), read_header(self.committed[index - 1].payload)
        same = _identity(sent) == _identity(stored) and sent.count == appended.count == stored.count
        if not same or frame[HEADER_BYTES:] != self.committed[index - 1].payload[HEADER_BYTES:]:
            raise Violation(
                f"offset {appended.first_offset} was acknowledged to producer {_identity(sent)}, "
                f"but there stands {_identity(stored)}"
            )
        return index

    def frame_read(self, frame: bytes) -> None:
        """A consumer was given this frame: it must be committed."""
        index = read_header(frame).index
        if index > self.commit_index or self.committed[index - 1].payload != frame:
            raise Violation(f"a frame was read, said to be entry {index}, that is not committed")

    def _frame_committed(self, index: int, term: int, frame: bytes) -> None:
        header = read_header(frame)
        if (header.index, header.term) != (index, term):
            raise Violation(f"the frame of entry {index}/{term} is stamped {header.index}/{header.term}")
        if header.first_offset != self.next_offset:
            raise Violation(f"entry {index} has offset {header.first_offset}, expected {self.next_offset}")
        before = dict(self._state.positions)
        self._state.fold(frame)
        if header.kind == Kind.RECORDS:
            self._index_at[header.first_offset] = index
            self.next_offset = header.next_offset
            if header.producer_id >= STAGE_ID_MIN:
                self._publication_committed(index, header, frame)
            else:
                self._sequence_committed(index, header)
        elif header.kind == Kind.STAGE:
            self._staged.setdefault(header.producer_id, []).append(staged_frame(frame)[HEADER_BYTES:])
        elif header.kind == Kind.DECISION:
            ruling = decode_ruling(frame)
            if isinstance(ruling, Decide):
                self.decisions.setdefault(ruling.transaction, ruling.stages)
        for name, position in before.items():
            if self._state.positions[name] < position:
                raise Violation(f"entry {index} takes the position of {name} back from {position}")

    def _publication_committed(self, index: int, header: Header, frame: bytes) -> None:
        stage, number = header.producer_id, header.sequence
        if not any(place.stage == stage for stages in self.decisions.values() for place in stages):
            raise Violation(f"entry {index} publishes stage {stage}, which nobody has decided on")
        expected = self._published.get(stage, 0)
        if number != expected:
            raise Violation(f"entry {index} publishes item {number} of stage {stage}, expected {expected}")
        if frame[HEADER_BYTES:] != self._staged[stage][number]:
            raise Violation(f"entry {index} publishes item {number} of stage {stage}, and it is another")
        self._published[stage] = number + 1

    def check_all_published(self) -> None:
        """At rest, everything that was decided on is published to its end, and nothing waits."""
        for transaction, stages in self.decisions.items():
            for place in stages:
                count, published = len(self._staged[place.stage]), self._published.get(place.stage, 0)
                if published != count:
                    raise Violation(
                        f"{published} of {count} items of transaction {transaction} are published"
                    )
        if self._state.staging.stages:
            raise Violation(
                f"these stages are neither published nor discarded: {[*self._state.staging.stages]}"
            )

    def _sequence_committed(self, index: int, header: Header) -> None:
        if header.producer_id < 0:
            return
        key = (header.producer_id, header.producer_epoch)
        expected = self._next_sequence.get(key, 0)
        gap = header.sequence > expected and header.producer_epoch >= 0
        if header.sequence < expected or gap:
            raise Violation(
                f"entry {index} holds sequence {header.sequence} of producer {key}, expected {expected}"
            )
        self._next_sequence[key] = header.sequence + header.count


def _committed_in(entry: CommittedEntry) -> int:
    return entry.committed_in


def _identity(header: Header) -> tuple[int, int, int]:
    return header.producer_id, header.producer_epoch, header.sequence
