"""What every store promises. One contract suite runs over all of them.

A store keeps the log of one group: entries by index, each a frame of `talweg.records` (so the
message log and the Raft log are the same bytes), the hard state, and snapshots of the small state.
Calls block. `write` and `sync` come from one thread at a time; reads may come from any thread, at
any time, also while a `sync` is under way.

Every frame, whatever its kind, carries `first_offset` and `count`, so the offset that follows an
entry is always `first_offset + count`; entries that hold no messages have a count of 0. All numbers
(indexes, terms, offsets, timestamps, replicas, incarnations) are below 2**63.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from talweg.errors import StorageError, TalwegError
from talweg.raft import Configuration, Entries, Entry, HardState, Snapshot


class Write(msgspec.Struct, frozen=True):
    """Everything that one `Ready` wants on disk, in the order in which it is carried out."""

    snapshot: Snapshot | None = None  # installed: the whole log gives way to it
    next_offset: int = 0  # with `snapshot`: the first offset after it
    truncate_from: int | None = None  # first index to remove
    entries: Entries = ()
    hard_state: HardState | None = None


class Damage(msgspec.Struct, frozen=True):
    """A place in the middle of the log where the bytes are not what was written, or cannot be read."""

    index: int  # the first entry that cannot be read; all before it can
    detail: str


class LogSummary(msgspec.Struct, frozen=True):
    """What a restarting replica needs to know of its log, without reading the messages.

    Where there is damage, the log ends before it as far as this summary is concerned.
    """

    hard_state: HardState | None  # None: never written, the store is new
    start_index: int  # the entry before the first one kept; 0 if nothing was ever dropped
    start_term: int
    start_offset: int  # the first message offset kept
    last_index: int  # == start_index when the log is empty
    next_offset: int  # first offset not yet written
    terms: list[tuple[int, int]]  # (first index, term), one for each run of equal terms
    configurations: list[tuple[int, Configuration]]  # configuration entries in the log, by index
    log_bytes: int
    damage: Damage | None = None


class SnapshotMark(msgspec.Struct, frozen=True):
    """A snapshot that is kept, and what dropping the head up to it would leave."""

    index: int
    next_offset: int  # the log's first offset, were the head dropped here
    bytes_after: int  # of the log that would remain
    last_timestamp: int  # newest message at or before `index`, microseconds since 1970


class LogStore(ABC):
    """One group's durable log."""

    @abstractmethod
    def summary(self) -> LogSummary:
        """What is there now."""

    def log_bytes(self) -> int | None:
        """How long the log is, for people to see; None where that cannot be told without waiting."""
        return None

    @abstractmethod
    def write(self, write: Write) -> None:
        """Carry it out in order. Durable only after the next `sync`.

        Raises StorageFull or StorageError; then nothing of this write is visible, and the same
        write may be tried again. (A disk that fails half-way through a snapshot or a truncation may
        leave all of it visible instead; trying again is right all the same.) Nothing is built on a
        damaged log: until `cut_damage`, entries and truncations raise DamagedLog, while a hard state
        is taken, and so is a snapshot, which replaces the damage with all the rest.

        After a crash before the `sync`, any part of what was written may be there, entries in order:
        the log may then end in a term that is higher than the hard state's.
        """

    @abstractmethod
    def sync(self) -> None:
        """Everything written so far is on disk when this returns.

        Raises StorageFull or StorageError; then nothing since the last sync may be taken for durable.
        It is all still visible, and the next `sync` tries again.
        """

    def uncache(self) -> None:  # noqa: B027 - most stores have nothing to do
        """A hint: nobody will read soon what was synced last, so it need not be kept in memory."""

    @abstractmethod
    def read(self, first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` but at least one if there is one.

        Raises OffsetOutOfRange below the log's start, DamagedLog where a frame is not sound, or cannot
        be read: what comes before it is given first, and the damage is then in `summary` too.
        """

    @abstractmethod
    def read_frames(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of kind RECORDS from the one that holds `offset` on, none beyond `last_index`.

        At least one frame if there is one; empty at the end. Raises as `read` does.
        """

    @abstractmethod
    def offset_at(self, timestamp: int, last_index: int) -> int:
        """The first offset whose batch holds a message at or after `timestamp` (microseconds),
        or the offset after `last_index` if there is none."""

    @abstractmethod
    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of the state as of `snapshot.index`, which must be in the log. Durable.

        Raises DamagedLog if it lies behind damage that a reader has found. A store may give up some of the
        older ones, but neither the one at the log's start nor the newest.
        """

    @abstractmethod
    def snapshots(self) -> list[SnapshotMark]:
        """Those kept, oldest first. Whether they are sound turns out when they are read."""

    @abstractmethod
    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest that is sound; None if there is none.

        One that is not what was saved, or cannot be read, is none: it leaves `snapshots`. Only the one at
        the log's start cannot be done without, since nothing else says what was dropped. That one raises
        DamagedLog, and the damage, at the start's index, is then in `summary` too.
        """

    @abstractmethod
    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, where a snapshot is kept. Older snapshots go too.

        Durable. What is gone already is no error. Must work on a full disk: that is when it is needed.
        Nothing is dropped where there is no snapshot any more, or none that is sound: `summary` tells
        where the log starts now.
        """

    @abstractmethod
    def cut_damage(self) -> None:
        """Give up everything from the damage on, once the replica is known to be recovering."""

    @abstractmethod
    def close(self) -> None:
        """Sync and let go. Closing twice is harmless."""


class LogStores(ABC):
    """All logs of one broker: where stores are opened, listed and deleted."""

    @abstractmethod
    def open(self, group: str, incarnation: int) -> LogStore:
        """Open a group's log, creating it if need be. A log of another incarnation is an error:
        GroupNotFound. A format from the future: NewerFormat."""

    def sync(self, stores: Sequence[LogStore]) -> list[TalwegError | None]:
        """`LogStore.sync` of several, for less than each would cost by itself. What each of them raised."""
        return [sync_error(store) for store in stores]

    @property
    def checkpoint_due(self) -> bool:
        """Whether there is something for `checkpoint`, which should be called soon then."""
        return False

    def checkpoint(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Housekeeping that syncing together leaves behind. May run beside everything else, and take long.
        Raises StorageFull or StorageError; then it is still due."""

    @abstractmethod
    def groups(self) -> dict[str, int]:
        """The groups that have a log here, with their incarnations."""

    @abstractmethod
    def delete(self, group: str) -> None:
        """Remove a group's log (closed first). Removing what is not there is harmless."""

    @abstractmethod
    def close(self) -> None:
        """Close every store that is open."""


def sync_error(store: LogStore) -> TalwegError | None:
    """What goes wrong when it is synced, if anything does."""
    try:
        store.sync()
    except TalwegError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug that one log meets must not fail the others
        return StorageError(f"unexpected: {type(error).__name__}: {error}")
    return None


def head_to_drop(
    marks: list[SnapshotMark], *, bytes_max: int | None, before_timestamp: int | None
) -> int | None:
    """Which snapshot's index to drop the head up to, by size or age; None if none qualifies.

    The newest snapshot wins that still leaves at least `bytes_max` bytes behind it, or before which
    every message is older than `before_timestamp`.
    """
    chosen = None
    for mark in marks:
        too_large = bytes_max is not None and mark.bytes_after >= bytes_max
        too_old = before_timestamp is not None and mark.last_timestamp < before_timestamp
        if too_large or too_old:
            chosen = mark.index
    return chosen
