"""The small replicated state of a partition: positions, what each producer wrote last, stages, decisions.

Pure and deterministic: every replica folds the same entries in the same order and arrives at the same
state. The leader keeps a second one that is ahead by what is not committed yet (see `replica`).
"""

from typing import Final

import msgspec

from talweg.errors import CorruptBatch, OutOfSequence, TooManyPositions
from talweg.raft import CONFIGURATION, NOOP, Entries, Run
from talweg.records import HEADER_BYTES, STAGE_ID_MIN, Bytes, Kind, Note, peek, read_header
from talweg.replication.decisions import Decisions, StoredDecisions, decode_ruling
from talweg.replication.staging import Staging, StoredStaging, decode_discard

_RECORDS, _POSITIONS = int(Kind.RECORDS), int(Kind.POSITIONS)  # looking them up in the enum is slow
_STAGE, _DECISION, _DISCARD = int(Kind.STAGE), int(Kind.DECISION), int(Kind.DISCARD)

RECENT_BATCHES = 8  # of each producer: how far back a retry is answered as the first time
PRODUCERS_MAX = 100_000  # beyond that the longest silent one is forgotten
# Beyond that new ones are refused. None is forgotten by itself: nobody knows whether it is still needed. With
# long names so many are 4 MiB in memory and 5 MiB in a snapshot, which takes tens of milliseconds to make.
POSITIONS_MAX = 10_000
DELETED: Final = -1  # as a position: there is none any more


class ProducedBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A batch that a producer wrote here."""

    sequence: int  # of its first message
    count: int
    first_offset: int


class ProducerState(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of one producer, so that a retry writes once."""

    epoch: int
    recent: tuple[ProducedBatch, ...]  # oldest first, sequences growing


class Position(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far a consumer (or a group) has read."""

    name: str
    next_offset: int  # the first one not yet read; or DELETED
    seek: bool = False  # asked for by hand: may go back
    token: int = 0  # of the take that moved it: the same take, asked for again, is answered again
    keep_bytes: int | None = (
        None  # of the log, at most, for what it has not read; 0: nothing; None: as before
    )


class PartitionState:
    """Folded over the log, entry by entry."""

    def __init__(self) -> None:
        self.next_offset = 0  # first offset not yet written
        self.positions: dict[str, int] = {}  # name → first offset not yet read
        self.tokens: dict[str, int] = {}  # of those positions that a take moved last
        self.holds: dict[str, int] = {}  # whose positions retention waits for → up to which size of the log
        self._producers: dict[int, ProducerState] = {}  # the longest silent one first
        self.staging = Staging()
        self.decisions = Decisions()

    def known(self, frame: Bytes) -> int | None:
        """The first offset of an earlier copy of this batch; None if it is new.

        Raises OutOfSequence if it is neither. A producer with an epoch numbers its messages in each
        partition and epoch from 0 without gaps, so that what it sends ahead keeps its order; without an
        epoch (the plain API) numbers need only grow.
        """
        kind, epoch, _, count, producer_id, sequence = peek(frame)
        if kind != _RECORDS:
            return self.next_offset if self._is_known(kind, bytes(frame)) else None
        if producer_id >= STAGE_ID_MIN:
            return self.staging.known_publication(producer_id, sequence)
        if producer_id < 0 or sequence < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            if epoch >= 0 and sequence > 0:
                # Taken as the first, it would shut out the one before it, which may still be on its way.
                raise OutOfSequence(
                    f"producer {producer_id} began epoch {epoch} with sequence {sequence}, expected 0: "
                    "one before it is missing, or it was silent for so long that it needs a new epoch"
                )
            return None
        if epoch < producer.epoch:
            raise OutOfSequence(
                f"producer {producer_id} has epoch {producer.epoch}; {epoch} has been superseded"
            )
        last = producer.recent[-1]
        expected = last.sequence + last.count
        if sequence >= expected:
            if epoch >= 0 and sequence > expected:
                raise OutOfSequence(
                    f"producer {producer_id} sent sequence {sequence}, expected {expected}: "
                    "one before it is missing, send that first"
                )
            return None
        for batch in reversed(producer.recent):
            ahead = sequence - batch.sequence
            if ahead >= 0:
                if ahead + count <= batch.count:
                    return batch.first_offset + ahead
                break
        raise OutOfSequence(
            f"producer {producer_id} sent sequence {sequence}, expected {expected}; "
            f"it is no copy of one of its last {RECENT_BATCHES} batches, and more are not remembered"
        )

    def _is_known(self, kind: int, frame: bytes) -> bool:
        """Whether an entry that is about transactions would change nothing. Raises what forbids it."""
        if kind == _STAGE:
            return self.staging.is_known_item(frame)
        if kind == _DISCARD:
            return self.staging.is_known_discard(decode_discard(frame))
        return kind == _DECISION and self.decisions.is_known(decode_ruling(frame))

    def fold(self, frame: bytes) -> None:
        """Bring the state past one entry, given as its frame. Every replica does so for every entry."""
        kind, epoch, first_offset, count, producer_id, sequence = peek(frame)
        if kind == _RECORDS:
            self.add_batch(epoch, first_offset, count, producer_id, sequence)
        elif kind == _POSITIONS:
            self.take_positions(decode_positions(frame))
        elif kind == _STAGE:
            self.staging.add_item(frame)
        elif kind == _DISCARD:
            self.staging.discard(decode_discard(frame))
        elif kind == _DECISION:
            self.decisions.add(decode_ruling(frame))

    def fold_all(self, entries: Entries) -> None:
        """Bring the state past entries, those of the core's own among them, which change nothing."""
        for entry in entries:
            if isinstance(entry, Run):
                self._fold_run(entry)
            elif entry.kind not in (NOOP, CONFIGURATION):
                self.fold(entry.payload)

    def _fold_run(self, run: Run) -> None:
        notes: list[Note] = run.notes
        begin = 0
        for (epoch, _, _, first_offset, count, producer_id, sequence, _), kind, end in zip(
            notes, run.kinds, run.ends, strict=True
        ):
            if kind != _RECORDS:
                self.fold(run.payload[begin:end])
            elif producer_id < 0:
                self.next_offset = first_offset + count
            else:
                self.add_batch(epoch, first_offset, count, producer_id, sequence)
            begin = end

    def add_batch(self, epoch: int, first_offset: int, count: int, producer_id: int, sequence: int) -> None:
        """Bring the state past a batch of messages, given as what its header says."""
        self.next_offset = first_offset + count
        if producer_id >= STAGE_ID_MIN:
            self.staging.add_publication(producer_id, sequence, first_offset)
        elif producer_id >= 0 and sequence >= 0:
            self._remember(producer_id, epoch, ProducedBatch(sequence, count, first_offset))

    def check_room(self, positions: list[Position]) -> None:
        """Raise TooManyPositions if these, of which some may be new, cannot all be kept."""
        if len(self.positions) + len(positions) <= POSITIONS_MAX:
            return
        new = {each.name for each in positions if each.next_offset != DELETED} - self.positions.keys()
        if new and len(self.positions) + len(new) > POSITIONS_MAX:
            raise TooManyPositions(
                f"{len(self.positions)} consumers have a position here, and no more than {POSITIONS_MAX} are "
                "kept: delete those that read no more (talweg consumer delete)"
            )

    def take_positions(self, positions: list[Position]) -> None:
        """Bring the state past positions, which there was room for."""
        for position in positions:
            if position.next_offset == DELETED:
                for kept in (self.positions, self.tokens, self.holds):
                    kept.pop(position.name, None)
                continue
            read = self.positions.get(position.name, -1)  # at 0 it has a position: that differs from none
            # A position never goes back by itself, not even by a commit that was overtaken.
            if position.seek or position.next_offset > read:
                self.positions[position.name] = position.next_offset
                if position.token:
                    self.tokens[position.name] = position.token
                else:
                    self.tokens.pop(position.name, None)
            if position.keep_bytes:
                self.holds[position.name] = position.keep_bytes
            elif position.keep_bytes is not None:
                self.holds.pop(position.name, None)

    def _remember(self, producer_id: int, epoch: int, batch: ProducedBatch) -> None:
        producer = self._producers.pop(producer_id, None)  # popped: it moves to the end
        recent = producer.recent if producer is not None and producer.epoch == epoch else ()
        recent = (*recent[-(RECENT_BATCHES - 1) :], batch)
        self._producers[producer_id] = ProducerState(epoch, recent)
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]

    def copy(self) -> "PartitionState":
        """One that can be folded further without touching this one."""
        twin = PartitionState()
        twin.next_offset = self.next_offset
        twin.positions = dict(self.positions)
        twin.tokens = dict(self.tokens)
        twin.holds = dict(self.holds)
        twin._producers = dict(self._producers)
        twin.staging = self.staging.copy()
        twin.decisions = self.decisions.copy()
        return twin

    def to_bytes(self) -> bytes:
        """For a snapshot. Equal states give equal bytes."""
        producers = list(self._producers.items())  # in order: who is forgotten first is state too
        positions = sorted(self.positions.items())
        return msgspec.msgpack.encode(
            _Stored(
                self.next_offset,
                positions,
                producers,
                sorted(self.tokens.items()),
                self.staging.to_stored(),
                self.decisions.to_stored(),
                sorted(self.holds.items()),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "PartitionState":
        """Read back what `to_bytes` wrote; empty bytes are an empty state."""
        state = cls()
        if data:
            try:
                stored = msgspec.msgpack.decode(data, type=_Stored)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise CorruptBatch(f"a snapshot's state cannot be read: {error}") from error
            state.next_offset = stored.next_offset
            state.positions = dict(stored.positions)
            state.tokens = dict(stored.tokens)
            state._producers = dict(stored.producers)
            state.staging = Staging.from_stored(stored.staging)
            state.decisions = Decisions.from_stored(stored.decisions)
            state.holds = dict(stored.holds)
        return state


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    next_offset: int
    positions: list[tuple[str, int]]
    producers: list[tuple[int, ProducerState]]
    tokens: list[tuple[str, int]] = []
    staging: StoredStaging = StoredStaging()  # this and what follows is not in older snapshots
    decisions: StoredDecisions = StoredDecisions()
    holds: list[tuple[str, int]] = []


def encode_positions(positions: list[Position]) -> bytes:
    """The body of a positions entry."""
    return msgspec.msgpack.encode(positions)


def decode_positions(frame: bytes) -> list[Position]:
    """Read back what `encode_positions` wrote, from a whole frame."""
    header = read_header(frame)
    body = memoryview(frame)[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    try:
        return msgspec.msgpack.decode(body, type=list[Position])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"positions at index {header.index} cannot be read: {error}") from error
