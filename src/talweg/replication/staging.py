"""Stages: batches in the log of a partition that nobody reads until they are published.

A *stage* is what one writer staged in one partition for one transaction, under a number of its own. Each of
its *items* is an entry that carries a whole frame of records inside. To publish it, the leader puts those
frames into the log once more, as records, with the stage's number as their producer and the item's as their
sequence: so every replica knows how far that went, and a leader that takes over goes on exactly there.

Pure: folded over the log like the rest of the partition's small state (`state`).

    open         items come, in their order
    published    item by item; from the first one on, nothing is added and nothing is discarded
    settled      all of it is published, or it was discarded. Remembered for a while, for whoever asks again
"""

import struct
from typing import Final

import msgspec

from talweg.errors import (
    BadRequest,
    CorruptBatch,
    OutOfSequence,
    Overloaded,
    StageDecided,
    StageExpired,
    StageNotFound,
)
from talweg.records import (
    HEADER_BYTES,
    STAGE_ID_MIN,
    Bytes,
    Kind,
    encode_frame,
    peek,
    peek_stamp,
    read_header,
)

SETTLED_MAX: Final = 10_000  # stages of a partition; beyond that the one settled first is forgotten
STAGES_MAX: Final = 10_000  # open ones of a partition; more are refused
ITEMS_MAX: Final = 100_000  # of all open stages of a partition; more are refused
TRANSACTION_LENGTH_MAX: Final = 255  # characters of a transaction's name

_HEAD: Final = struct.Struct("<Iq")  # bytes of the transaction's name, when it was staged (microseconds)


class Item(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One batch of a stage."""

    index: int  # of the entry that carries it
    count: int  # messages
    frame_bytes: int  # of that entry


class Stage(msgspec.Struct, array_like=True):
    """An open stage."""

    transaction: str
    staged_us: int  # when the last item came
    items: list[Item] = []  # indexes grow
    published: int = 0  # so many items from the first on; less than there are
    first_offset: int = -1  # of the first item, once it is published

    def copy(self) -> "Stage":
        """One that can be changed without touching this one."""
        return Stage(self.transaction, self.staged_us, self.items[:], self.published, self.first_offset)


class Settled(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is remembered of a stage that is no longer open."""

    items: int
    count: int  # messages
    first_offset: int  # -1: it was discarded

    @property
    def discarded(self) -> bool:
        """Nothing of it is, or will be, published."""
        return self.first_offset < 0


class Publication(msgspec.Struct, frozen=True, gc=False):
    """How much of a stage is published."""

    count: int  # messages
    first_offset: int
    complete: bool  # they are all there are


class StoredStaging(msgspec.Struct, frozen=True, array_like=True):
    """All of it, for a snapshot."""

    stages: list[tuple[int, Stage]] = []
    settled: list[tuple[int, Settled]] = []  # in order: which is forgotten first is state too


class Staging:
    """The stages of one partition."""

    def __init__(self) -> None:
        self.stages: dict[int, Stage] = {}  # open ones, by number
        self.settled: dict[int, Settled] = {}  # the one settled first, first
        self._items = 0  # of all open stages

    # What a leader asks before it puts something into the log

    def is_known_item(self, frame: bytes) -> bool:
        """Whether a stage's item is in the log already. Raises what forbids it to be put there."""
        _, _, _, _, stage_id, number = peek(frame)
        settled, stage = self.settled.get(stage_id), self.stages.get(stage_id)
        if settled is not None:
            if settled.discarded:
                raise StageExpired(f"stage {stage_id} was discarded: stage it anew, under another number")
            if number < settled.items:
                return True
            raise OutOfSequence(f"stage {stage_id} is published: nothing can be added to it")
        expected = 0 if stage is None else len(stage.items)
        if number > expected:
            raise OutOfSequence(
                f"stage {stage_id} got item {number}, expected {expected}: "
                "one before it is missing, send that first"
            )
        if stage is None:
            self._check_room(new_stage=True)
            return False
        if stage.transaction != transaction_of(frame):
            raise BadRequest(f"stage {stage_id} belongs to transaction {stage.transaction}")
        if number < expected:
            return True
        if stage.published:
            raise OutOfSequence(f"stage {stage_id} is being published: nothing can be added to it")
        self._check_room(new_stage=False)
        return False

    def _check_room(self, *, new_stage: bool) -> None:
        if self._items >= ITEMS_MAX or (new_stage and len(self.stages) >= STAGES_MAX):
            raise Overloaded(
                f"{len(self.stages)} stages with {self._items} batches wait here to be published; "
                "try again when some are published or have expired"
            )

    def known_publication(self, stage_id: int, number: int) -> int | None:
        """The first offset of what an item became, or of the stage's first; None if it is the next one."""
        settled, stage = self.settled.get(stage_id), self.stages.get(stage_id)
        if settled is not None:
            if settled.discarded:
                raise StageExpired(f"stage {stage_id} was discarded: it cannot be published")
            if number < settled.items:
                return settled.first_offset
        elif stage is None:
            raise StageNotFound(f"nothing is staged here under number {stage_id}")
        elif number < stage.published:
            return stage.first_offset
        elif number == stage.published:
            return None
        raise OutOfSequence(f"item {number} of stage {stage_id} is not the next one to be published")

    def is_known_discard(self, stage_ids: list[int]) -> bool:
        """Whether none of these is there to be discarded; raises StageDecided for what must not be."""
        for stage_id in stage_ids:
            settled, stage = self.settled.get(stage_id), self.stages.get(stage_id)
            if (settled is not None and not settled.discarded) or (stage is not None and stage.published):
                raise StageDecided(f"stage {stage_id} is published, or about to be: it cannot be discarded")
        return not any(stage_id in self.stages for stage_id in stage_ids)

    # What every replica does

    def add_item(self, frame: bytes) -> None:
        """Fold the entry of an item."""
        _, _, _, _, stage_id, number = peek(frame)
        transaction, staged_us, begin = _read_head(frame)
        stage = self.stages.get(stage_id)
        if stage is None:
            stage = self.stages[stage_id] = Stage(transaction, staged_us)
        assert number == len(stage.items), "the leader lets items in only in their order"
        assert stage.published == 0, "the leader lets nothing into a stage that is being published"
        index = peek_stamp(frame)[0]
        stage.items.append(Item(index, peek(frame[begin : begin + HEADER_BYTES])[3], len(frame)))
        stage.staged_us = max(stage.staged_us, staged_us)
        self._items += 1

    def add_publication(self, stage_id: int, number: int, first_offset: int) -> None:
        """Fold the entry of records that an item became."""
        stage = self.stages[stage_id]
        assert number == stage.published, "the leader publishes items in their order, each once"
        if number == 0:
            stage.first_offset = first_offset
        stage.published += 1
        if stage.published == len(stage.items):
            self._settle(stage_id, stage.first_offset)

    def discard(self, stage_ids: list[int]) -> None:
        """Fold the entry that discards these."""
        for stage_id in stage_ids:
            stage = self.stages.get(stage_id)
            if stage is not None:
                assert stage.published == 0, "the leader discards nothing that is being published"
                self._settle(stage_id, -1)

    def _settle(self, stage_id: int, first_offset: int) -> None:
        stage = self.stages.pop(stage_id)
        self._items -= len(stage.items)
        count = sum(item.count for item in stage.items)
        self.settled[stage_id] = Settled(len(stage.items), count, first_offset)
        if len(self.settled) > SETTLED_MAX:
            del self.settled[next(iter(self.settled))]

    # What is asked of it

    def oldest_index(self) -> int | None:
        """The first entry that is still needed to publish something; retention stops before it."""
        waiting = (stage.items[stage.published].index for stage in self.stages.values())
        return min(waiting, default=None)

    def idle_since(self, before_us: int) -> dict[int, str]:
        """Open stages to which nothing was added since, with their transactions."""
        return {
            stage_id: stage.transaction
            for stage_id, stage in self.stages.items()
            if stage.staged_us <= before_us
        }

    def waiting_items(self, stage_id: int, bytes_max: int) -> list[Item]:
        """Those to be published next, up to `bytes_max` but one at least; none if all of it is settled.

        Raises StageNotFound, and StageExpired for what was discarded.
        """
        stage = self.stages.get(stage_id)
        if stage is None:
            self.known_publication(stage_id, 0)  # raises unless it is published
            return []
        chosen: list[Item] = []
        total = 0
        for item in stage.items[stage.published :]:
            total += item.frame_bytes
            if chosen and total > bytes_max:
                break
            chosen.append(item)
        return chosen

    def publication(self, stage_id: int) -> Publication:
        """How far a stage is published of which something is."""
        settled, stage = self.settled.get(stage_id), self.stages.get(stage_id)
        if settled is not None:
            return Publication(settled.count, settled.first_offset, complete=True)
        assert stage is not None, "what is not settled is open"
        count = sum(item.count for item in stage.items[: stage.published])
        return Publication(count, stage.first_offset, complete=False)

    # Copies and snapshots

    def copy(self) -> "Staging":
        """One that can be folded further without touching this one."""
        twin = Staging()
        twin.stages = {stage_id: stage.copy() for stage_id, stage in self.stages.items()}
        twin.settled = dict(self.settled)
        twin._items = self._items
        return twin

    def to_stored(self) -> StoredStaging:
        """For a snapshot. Equal states give equal values."""
        return StoredStaging(sorted(self.stages.items(), key=_first), list(self.settled.items()))

    @classmethod
    def from_stored(cls, stored: StoredStaging) -> "Staging":
        """Read back what `to_stored` gave."""
        staging = cls()
        staging.stages = dict(stored.stages)
        staging.settled = dict(stored.settled)
        staging._items = sum(len(stage.items) for stage in staging.stages.values())
        return staging


def _first(pair: tuple[int, Stage]) -> int:
    return pair[0]


# The entries


def encode_item(transaction: str, frame: Bytes, now_us: int) -> bytes:
    """The entry that stages a frame of records, which names the stage and its number in it."""
    _, _, _, _, stage_id, number = peek(frame)
    assert stage_id >= STAGE_ID_MIN and number >= 0, "the frame says which item of which stage it is"
    name = transaction.encode()
    head = _HEAD.pack(len(name), now_us)
    padding = bytes(-(len(head) + len(name)) & 7)  # frames are aligned, wherever they are
    return encode_frame(Kind.STAGE, head, name, padding, frame, producer_id=stage_id, sequence=number)


def transaction_of(frame: bytes) -> str:
    """The transaction that an item's entry belongs to."""
    return _read_head(frame)[0]


def staged_frame(frame: bytes) -> bytes:
    """The frame of records that an item's entry carries, as it was staged."""
    begin = _read_head(frame)[2]
    header = read_header(frame, begin)
    return frame[begin : begin + header.frame_bytes]


def _read_head(frame: bytes) -> tuple[str, int, int]:
    """The transaction, when the item was staged, and where in the entry its frame begins."""
    try:
        name_bytes, staged_us = _HEAD.unpack_from(frame, HEADER_BYTES)
        end = HEADER_BYTES + _HEAD.size + name_bytes
        return frame[HEADER_BYTES + _HEAD.size : end].decode(), staged_us, end + (-end & 7)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the entry of a stage's item cannot be read: {error}") from error


def encode_discard(stage_ids: list[int]) -> bytes:
    """The entry that discards stages."""
    return encode_frame(Kind.DISCARD, msgspec.msgpack.encode(stage_ids))


def decode_discard(frame: bytes) -> list[int]:
    """Read back what `encode_discard` wrote."""
    header = read_header(frame)
    try:
        return msgspec.msgpack.decode(frame[HEADER_BYTES : HEADER_BYTES + header.body_bytes], type=list[int])
    except msgspec.DecodeError as error:
        raise CorruptBatch(f"the discard at index {header.index} cannot be read: {error}") from error
