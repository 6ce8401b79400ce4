"""One group's log in segment files: what changes it, and in which order, so that a crash does no harm.

One lock, held by everything that changes the log, also while it waits for the disk. Readers do without:
they work from the `View` last published. Only when what they read was not sound do they wait for the
writer, and look once more before they call it damage.
"""

import sys
from collections.abc import Callable
from threading import RLock
from typing import TypeVar

from talweg.errors import DamagedLog
from talweg.raft import Entry, HardState, Snapshot
from talweg.storage.checked_file import storage_error
from talweg.storage.contract import Damage, LogStore, LogSummary, SnapshotMark, Write
from talweg.storage.handles import FileGone
from talweg.storage.journal_format import Append
from talweg.storage.log_writer import LogWriter, Shared
from talweg.storage.reading import LogReader
from talweg.storage.scan import UnsoundEntry
from talweg.storage.snapshot_file import read_snapshot
from talweg.storage.view import View

Result = TypeVar("Result")


class SegmentStore(LogStore):
    """Opened by `SegmentStores`."""

    def __init__(self, directory: str, shared: Shared, on_close: Callable[[], None]) -> None:
        """Read what the directory holds. Raises DamagedLog, NewerFormat, OSError."""
        self._files = shared.handles.files
        self._reader = LogReader(shared.cache)
        self._log = LogWriter(directory, self._reader, shared)
        self._writer = RLock()
        self._on_close = on_close
        self._closed = False

    @property
    def incarnation(self) -> int:
        """Of the group whose log this is."""
        return self._log.meta.incarnation

    @property
    def torn_bytes(self) -> int:
        """What was cut from the end of the log when it was opened: a write that a crash interrupted."""
        return self._log.torn_bytes

    # What is there

    def summary(self) -> LogSummary:
        """What is there now; where there is damage, of the sound part before it."""
        log = self._log
        if log.is_stale:
            self._change(f"looking at {log.directory}", lambda: None)
        view, sound_end = log.view, log.sound_end
        last_index, next_offset, end_at = view.last_index, view.next_offset, view.end_at
        if sound_end is not None:
            last_index, next_offset, end_at = sound_end.last_index, sound_end.next_offset, sound_end.at
        terms = _terms(view, last_index)
        hard_state = log.state.value
        if log.state.is_lost:
            # It may have voted in any term up to the present one: who has forgotten must not vote.
            hard_state = HardState(terms[-1][1] if terms else view.start_term, None, recovering=True)
        return LogSummary(
            hard_state=hard_state,
            start_index=view.start_index,
            start_term=view.start_term,
            start_offset=view.start_offset,
            last_index=last_index,
            next_offset=next_offset,
            terms=terms,
            configurations=[
                (index, configuration)
                for segment in view.segments
                for index, configuration in segment.contents.configurations
                if view.start_index < index <= last_index
            ],
            log_bytes=end_at - view.start_at,
            damage=None if sound_end is None else sound_end.damage,
        )

    def log_bytes(self) -> int:
        """How long the log is. Damage counts: it takes as much of the disk."""
        view = self._log.view
        return view.end_at - view.start_at

    def snapshots(self) -> list[SnapshotMark]:
        """Those kept, oldest first."""
        with self._writer:
            log = self._log
            last_index, end_at = log.view.last_index, log.view.end_at
            if log.sound_end is not None:
                last_index, end_at = log.sound_end.last_index, log.sound_end.at
            return [
                SnapshotMark(kept.index, kept.next_offset, end_at - kept.at, kept.last_timestamp)
                for kept in log.kept
                if kept.index <= last_index
            ]

    def snapshot(self, index: int | None = None) -> Snapshot | None:
        """The one at `index`, or the newest that is sound; None if there is none."""
        with self._writer:
            while True:
                indexes = [mark.index for mark in self.snapshots()]
                if not indexes or (index is not None and index not in indexes):
                    return None
                found = self._sound_snapshot(indexes[-1] if index is None else index)
                if found is not None:
                    return found

    def _sound_snapshot(self, index: int) -> Snapshot | None:
        # One that is kept. If it is not sound, it is no more; at the start that is damage.
        log = self._log
        try:
            return read_snapshot(self._files, log.directory, index).snapshot
        except DamagedLog as error:
            log.kept = [kept for kept in log.kept if kept.index != index]
            if index == log.view.start_index:
                log.note_damage(Damage(index, str(error)))
                raise
            return None
        except OSError as error:
            raise storage_error(error, f"reading a snapshot in {log.directory}") from error

    # Reading

    def read(self, first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` of frames but at least one if there is one."""
        last = sys.maxsize if last_index is None else last_index
        entries = self._read(lambda view: self._reader.entries(view, first_index, bytes_max, last))
        if not entries and first_index <= last:
            self._refuse_end()
        return entries

    def read_frames(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Frames of kind RECORDS from the one that holds `offset` on, none beyond `last_index`."""
        frames = self._read(lambda view: self._reader.record_frames(view, offset, bytes_max, last_index))
        if not frames and last_index > self._log.view.last_index:
            self._refuse_end()
        return frames

    def offset_at(self, timestamp: int, last_index: int) -> int:
        """The first offset of the first batch that holds a message at or after `timestamp`."""
        offset = self._read(lambda view: self._reader.offset_at(view, timestamp, last_index))
        if offset == self._log.view.next_offset and last_index > self._log.view.last_index:
            self._refuse_end()
        return offset

    def _read(self, read: Callable[[View], Result]) -> Result:
        assert not self._closed, "the store is closed"
        try:
            return read(self._log.view)
        except (UnsoundEntry, FileGone):
            # Perhaps only because the writer is changing these very files: wait for it, and look again.
            return self._change(f"reading {self._log.directory}", lambda: read(self._log.view))
        except OSError as error:
            raise storage_error(error, f"reading {self._log.directory}") from error

    def _refuse_end(self) -> None:
        # Where the sound part of a damaged log ends is not where the log ends.
        if self._log.sound_end is not None:
            raise DamagedLog(self._log.sound_end.damage.detail)

    # Changing

    def write(self, write: Write) -> None:
        """Carry it out in order. Durable only after the next `sync`."""
        self._change(f"writing to {self._log.directory}", lambda: self._write(write))

    def _write(self, write: Write) -> None:
        log = self._log
        if write.snapshot is not None:
            log.install(write.snapshot, write.next_offset, write.entries, write.hard_state)
            return
        if log.sound_end is not None and (write.entries or write.truncate_from is not None):
            # A hard state may be written, to say that the replica is recovering, and a snapshot replaces
            # the damage with all the rest. But nothing is built on a log with a hole in it.
            raise DamagedLog(log.sound_end.damage.detail)
        if write.truncate_from is not None and write.truncate_from <= log.view.last_index:
            log.truncate(write.truncate_from, write.entries, write.hard_state)
        else:
            log.append(write.entries, write.hard_state)

    def sync(self) -> None:
        """Everything written so far is on disk when this returns."""
        self._change(f"syncing {self._log.directory}", self._log.sync)

    def uncache(self) -> None:
        """Nobody will read soon what was synced last."""
        self._change(f"syncing {self._log.directory}", self._log.uncache)

    def unsynced(self) -> Append | None:
        """What `sync` would make durable, if it is nothing but an append: a journal can do that as well."""
        with self._writer:
            return None if self._closed else self._log.unsynced()

    def journaled(self) -> None:
        """The journal has made durable what `unsynced` gave, and nothing was written since."""
        with self._writer:
            self._log.journaled()

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of the state as of `snapshot.index`, which must be in the log. Durable."""
        doing = f"saving a snapshot in {self._log.directory}"
        self._change(doing, lambda: self._save_snapshot(snapshot))

    def _save_snapshot(self, snapshot: Snapshot) -> None:
        log, view = self._log, self._log.view
        assert view.start_index <= snapshot.index <= view.last_index, "a snapshot of what is not there"
        # A reader may have come upon damage since the snapshot was taken: it would go with what lies there.
        if log.sound_end is not None and log.sound_end.damage.index <= snapshot.index:
            raise DamagedLog(log.sound_end.damage.detail)
        log.save_snapshot(snapshot)

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, where a snapshot is kept. Older snapshots go too."""
        doing = f"dropping the head of {self._log.directory}"
        # As things are: to put right what a failed write left may take space, and this may be what makes it.
        self._change(doing, lambda: self._drop_head(index), mends=False)

    def _drop_head(self, index: int) -> None:
        if index <= self._log.view.start_index:
            return  # gone already
        kept = next((kept for kept in self._log.kept if kept.index == index), None)
        # What is dropped cannot be had again: the snapshot that is to stand for it is looked at before.
        if kept is not None and self._sound_snapshot(index) is not None:
            self._log.drop_head(kept)

    def cut_damage(self) -> None:
        """Give up everything from the damage on, once the replica is known to be recovering."""
        self._change(f"cutting {self._log.directory}", self._cut_damage)

    def _cut_damage(self) -> None:
        while self._log.sound_end is not None:
            index = self._log.sound_end.damage.index
            try:
                self._log.cut(index)
            except UnsoundEntry as error:
                # There is damage on the way to where it was to be cut: then it is cut there.
                assert error.index < index
                self._log.note_damage(Damage(error.index, str(error)))
            else:
                return  # what is reported now (a hard state that was not written anew) is not in the log

    def close(self) -> None:
        """Sync and let go. Closing twice is harmless."""
        try:
            with self._writer:
                if not self._closed:
                    self.sync()
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go without a sync: what was not synced may be lost."""
        with self._writer:
            if self._closed:
                return
            self._closed = True
            self._log.close()
        # Without the lock: who is told has one of its own, and may hold it while it waits for ours.
        self._on_close()

    def _change(self, doing: str, change: Callable[[], Result], *, mends: bool = True) -> Result:
        with self._writer:
            assert not self._closed, "the store is closed"
            try:
                self._log.refresh(mends=mends)
                return change()
            except OSError as error:
                raise storage_error(error, doing) from error
            except UnsoundEntry as error:
                self._log.note_damage(Damage(error.index, str(error)))
                raise DamagedLog(str(error)) from error
            except FileGone as error:
                raise DamagedLog(f"{error} is gone") from error


def _terms(view: View, last_index: int) -> list[tuple[int, int]]:
    # Runs begin anew in each segment, and the first may begin before the log does.
    runs: list[tuple[int, int]] = []
    for segment in view.segments:
        for first, term in segment.contents.terms:
            run = (max(first, view.start_index + 1), term)
            if run[0] > last_index:
                return runs
            if runs and runs[-1][0] == run[0]:
                runs[-1] = run
            elif not runs or runs[-1][1] != term:
                runs.append(run)
    return runs
