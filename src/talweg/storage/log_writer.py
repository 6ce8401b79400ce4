"""Everything that changes a log in segment files, in the order that makes a crash harmless.

Appending is the common case: frames go to the end of the last segment, and one fdatasync makes them
durable. All else (a conflicting tail, an installed snapshot, the head) goes through the meta file.
Nothing here is locked: the store lets one thread in at a time. What fails raises OSError, and what
was published before is still true then.
"""

import sys
from typing import NamedTuple

import msgspec

from talweg.raft import Entries, HardState, Snapshot
from talweg.storage.checked_file import remove_quietly, replace_file
from talweg.storage.contents import Contents
from talweg.storage.contract import Damage
from talweg.storage.handles import Handles
from talweg.storage.index_cache import IndexCache
from talweg.storage.journal import Journal
from talweg.storage.journal_format import Append
from talweg.storage.kept_snapshots import Kept, superfluous
from talweg.storage.loading import load, view_of
from talweg.storage.meta_file import Meta, Replacement, write_meta
from talweg.storage.reading import LogReader
from talweg.storage.recovery import write_index
from talweg.storage.replacement import finish, stage
from talweg.storage.scan import UnsoundEntry
from talweg.storage.segment import Segment, Tail
from talweg.storage.snapshot_file import keep, snapshot_name
from talweg.storage.sparse_index import SparseIndex
from talweg.storage.stable_file import StableFile
from talweg.storage.state_file import STATE_NAME, StateFile
from talweg.storage.view import View


class SegmentSettings(msgspec.Struct, frozen=True):
    """How logs are cut into files."""

    segment_bytes: int = 64 << 20  # a segment that has reached this is sealed, and a new one begun
    index_interval_bytes: int = 32 << 10  # between two points of the sparse index, roughly
    unsynced_bytes_max: int = 64 << 20  # held in memory until synced; beyond this a write syncs by itself


class Shared(NamedTuple):
    """What all logs below one directory have in common."""

    handles: Handles
    cache: IndexCache
    journal: Journal
    settings: SegmentSettings


class SoundEnd(msgspec.Struct, frozen=True):
    """Where the sound part of a damaged log ends."""

    damage: Damage
    last_index: int
    next_offset: int
    at: int  # bytes, on the scale of Segment.begins_at


class LogWriter:
    """The files of one group, and the `View` of them that readers may use."""

    view: View  # replaced as a whole by each change
    meta: Meta
    kept: list[Kept]  # snapshots, by index
    sound_end: SoundEnd | None  # None: no damage is known
    torn_bytes: int  # cut from the end when it was loaded

    def __init__(self, directory: str, reader: LogReader, shared: Shared) -> None:
        """Read what the directory holds. Raises DamagedLog, NewerFormat, OSError."""
        self.directory = directory
        self.state = StateFile(shared.handles.handle(f"{directory}/{STATE_NAME}", create=True))
        self._stable = StableFile(shared.handles, directory)
        self._handles = shared.handles
        self._files = shared.handles.files
        self._cache = shared.cache
        self._reader = reader
        self._settings = shared.settings
        self._journal = shared.journal
        self._tail: Tail | None = None  # None: the next write begins a segment
        self._leftovers: list[str] = []  # files of a failed write, still to be removed
        self.is_stale = False  # a change failed half-way: the files know better than we do
        self._undecided: tuple[int, HardState] | None = None  # goes with the change that Meta.changes counts
        self.view = view_of(Meta(0), ())
        self._load()

    def _load(self) -> None:
        self._let_go(self.view.segments)
        in_doubt, self.is_stale = self.is_stale, True  # until it has gone well
        self._journal.be_certain()
        with self._journal.sync_of_segments(f"{self.directory}/"):
            loaded = load(
                self._handles,
                self._reader,
                self.directory,
                self._settings.index_interval_bytes,
                in_doubt=in_doubt,
            )
        self.view, self.meta, self.kept = loaded.view, loaded.meta, loaded.kept
        self.torn_bytes = loaded.torn_bytes
        self._leftovers.clear()
        self._tail = Tail(self.view.segments[-1]) if self.view.segments else None
        self.sound_end = None
        self._decide_state()
        if loaded.damage is not None:
            self.note_damage(loaded.damage)
        elif self.state.is_lost:
            self.note_damage(Damage(self.view.last_index + 1, f"{self.state.path} cannot be read"))
        self.is_stale = False

    def _decide_state(self) -> None:
        # A hard state belongs to the change that it came with: both have happened, or neither.
        if self._undecided is not None:
            changes, hard_state = self._undecided
            if self.meta.changes >= changes:
                self.state.write(hard_state)
            self._undecided = None

    def note_damage(self, damage: Damage) -> None:
        """From here on the log cannot be trusted. What is nearer to the start counts."""
        if self.sound_end is not None and self.sound_end.damage.index <= damage.index:
            return
        view = self.view
        last_index = max(min(damage.index - 1, view.last_index), view.start_index)
        if last_index == view.last_index:
            self.sound_end = SoundEnd(damage, last_index, view.next_offset, view.end_at)
            return
        try:
            survey = self._reader.survey(view, last_index)
        except UnsoundEntry as error:  # nor is the way there
            self.note_damage(Damage(error.index, str(error)))
            return
        self.sound_end = SoundEnd(damage, last_index, survey.next_offset, view.at(survey.place))

    def _let_go(self, segments: tuple[Segment, ...]) -> None:
        # Readers that still use them notice, and look again.
        if self._tail is not None and self._tail.segment in segments:
            self._tail.close()
            self._tail = None
        for segment in segments:
            segment.log.discard()
        self._cache.forget(segments)
        self._reader.forget()

    def close(self) -> None:
        """Let go of all files."""
        self._let_go(self.view.segments)
        self.state.close()
        self._stable.close()

    # Appending

    def refresh(self, *, mends: bool = True) -> None:
        """Look again, and put right what an earlier failure left behind. Comes before every change."""
        if self.is_stale:
            if self._tail is not None:
                # What is taken for written when it is read must be on the disk, and a sync of it may have
                # failed: then the kernel remembers what the disk does not have.
                self._mend()
                self._sync(self._tail)
            self._load()
        if mends:
            self._mend()

    def append(self, entries: Entries, hard_state: HardState | None) -> None:
        """Add entries at the end, and write the hard state. Durable after `sync`."""
        first = self._tail
        mark = first.contents.mark() if first is not None else None
        made: list[Tail] = []
        try:
            if entries:
                self._write_entries(entries, made)
            if hard_state is not None:
                self.state.write(hard_state)
        except Exception:  # whatever it is: half a write must not be left, or nothing could follow it
            for tail in made:
                tail.close()
                tail.segment.log.discard()
                self._leftovers.append(tail.segment.log.path)
            if first is not None and mark is not None:
                first.roll_back(mark)
            self._mend_quietly()
            raise
        if entries:
            self._publish(made)

    def sync(self) -> None:
        """Make everything durable that was written."""
        self._mend()
        self._sync(self._tail)
        if self.sound_end is None:  # else what is missing would not be missed any more
            self._stable.note(self.meta.changes, self.view.last_index)
        self.state.sync()

    def uncache(self) -> None:
        """What is durable in the last segment need not be kept in memory. Raises OSError."""
        if self._tail is not None:
            self._tail.uncache()

    def unsynced(self) -> Append | None:
        """What `sync` would make durable, if that is nothing but an append to the last segment."""
        if self._tail is None or self._leftovers or self.is_stale or self.state.is_unsynced:
            return None
        return self._tail.unsynced()

    def journaled(self) -> None:
        """The journal has what `unsynced` gave, and nothing was written since."""
        assert self._tail is not None
        self._tail.journaled()

    def _sync(self, tail: Tail | None, *, in_place: bool = False) -> None:
        if tail is None:
            return
        sync = tail.sync_in_place if in_place else tail.sync
        if not tail.is_journaled:
            sync()
            return
        with self._journal.sync_of_segments(tail.segment.log.path):
            sync()

    def _leave_journal(self) -> None:
        # A crash must not bring back what is cut, replaced or removed from here on.
        self._sync(self._tail, in_place=True)
        self._journal.forget(self.directory)

    def _write_entries(self, entries: Entries, made: list[Tail]) -> None:
        tail, doubts = self._tail, self._journal.doubts
        if tail is not None and tail.unsynced_bytes > self._settings.unsynced_bytes_max:
            self._sync(tail)
        while entries:
            if tail is None or tail.contents.log_bytes >= self._settings.segment_bytes:
                tail = self._new_tail(tail)
                made.append(tail)
                tail.prepare()
                # Its name is durable before anything in it is acknowledged.
                self._files.sync_directory(self.directory)
            else:
                tail.prepare()
            position = tail.contents.log_bytes
            frames, entries = tail.contents.take(entries, self._settings.segment_bytes)
            tail.write(frames, position, doubts)

    def _new_tail(self, previous: Tail | None) -> Tail:
        index, offset, begins_at = self.view.last_index + 1, self.view.next_offset, self.view.end_at
        if previous is not None:
            # Sealed: durable before the next one exists, so that a gap in the log is always damage.
            self._sync(previous, in_place=True)
            index, offset = previous.contents.last_index + 1, previous.contents.next_offset
            begins_at = previous.segment.ends_at
        contents = Contents(index, offset, self._settings.index_interval_bytes)
        segment = Segment(self._handles, self.directory, index, contents, begins_at, create=True)
        return Tail(segment, is_new=True)

    def _publish(self, made: list[Tail]) -> None:
        segments = self.view.segments
        if made:
            sealed = [tail.segment for tail in (self._tail, *made[:-1]) if tail is not None]
            segments = (*segments, *(tail.segment for tail in made))
            self._tail = made[-1]
        self.view = view_of(self.meta, segments)
        if made:
            for segment in sealed:
                # Only now that the write has succeeded: an index describes what will not change.
                write_index(self._files, segment.index_path, segment.contents)
                segment.contents.continue_points(SparseIndex())

    def _mend(self) -> None:
        # Finish undoing a write that failed: first the files that came last, so that no gap shows.
        while self._leftovers:
            self._files.remove(self._leftovers[-1])
            self._files.sync_directory(self.directory)
            self._leftovers.pop()
        if self._tail is not None:
            self._tail.mend()

    def _mend_quietly(self) -> None:
        try:
            self._mend()
        except OSError:
            return  # what is left to do is remembered, and done before the next change

    # Replacing the tail

    def install(
        self, snapshot: Snapshot, next_offset: int, entries: Entries, hard_state: HardState | None
    ) -> None:
        """The whole log gives way to a snapshot and what follows it. Durable."""
        self._sync(self._tail)  # if it is not replaced after all, it must be as it was
        first_index = snapshot.index + 1
        frames = self._framed(first_index, next_offset, entries)
        meta = Meta(
            incarnation=self.meta.incarnation,
            start_index=snapshot.index,
            start_term=snapshot.term,
            start_offset=next_offset,
            start_base_index=first_index,
            changes=self.meta.changes + 1,
            replacement=Replacement(
                from_index=0,
                staged_segment=first_index if frames else None,
                staged_snapshot=snapshot.index,
            ),
        )
        self._replace(meta, frames, keep(snapshot, next_offset, last_timestamp=0), hard_state)

    def truncate(self, from_index: int, entries: Entries, hard_state: HardState | None) -> None:
        """Everything from an entry on gives way to others. Durable. Raises UnsoundEntry."""
        assert from_index > self.view.start_index, "what was dropped cannot be replaced"
        assert not self.kept or from_index > self.kept[-1].index, "what a snapshot stands for is committed"
        self._sync(self._tail)
        survey = self._reader.survey(self.view, from_index - 1)
        frames = self._framed(from_index, survey.next_offset, entries)
        meta = self._without_tail(from_index, from_index if frames else None)
        remains = None
        if frames and survey.place.position > 0 and survey.points:
            segment = self.view.segments[survey.place.number]
            remains = (segment.index_path, self._reader.contents_until(self.view, from_index - 1))
        self._replace(meta, frames, None, hard_state, remains)

    def cut(self, from_index: int) -> None:
        """Everything from an entry on goes; the start, or what is before it: everything there is."""
        if from_index <= self.view.start_index:
            changes = self.meta.changes + 1
            meta = Meta(self.meta.incarnation, changes=changes, replacement=Replacement(from_index=0))
        else:
            meta = self._without_tail(from_index, None)
        self._replace(meta, [], None, None)

    def _framed(self, first_index: int, first_offset: int, entries: Entries) -> list[bytes]:
        contents = Contents(first_index, first_offset, self._settings.index_interval_bytes)
        return contents.take(entries, sys.maxsize)[0]

    def _without_tail(self, from_index: int, staged_segment: int | None) -> Meta:
        view = self.view
        place = self._reader.survey(view, from_index - 1).place
        replacement = Replacement(from_index, staged_segment=staged_segment)
        meta = msgspec.structs.replace(self.meta, changes=self.meta.changes + 1)
        if not view.segments:  # the log may have begun inside a file, and that is gone
            meta = msgspec.structs.replace(meta, start_base_index=view.start_index + 1, start_position=0)
        elif place.position > 0:
            base = view.segments[place.number].base_index
            replacement = msgspec.structs.replace(replacement, cut_base_index=base, cut_bytes=place.position)
        return msgspec.structs.replace(meta, replacement=replacement)

    def _replace(
        self,
        meta: Meta,
        frames: list[bytes],
        snapshot: bytes | None,
        hard_state: HardState | None,
        remains: tuple[str, Contents] | None = None,
    ) -> None:
        # `remains`: where the index of the segment that is cut goes, and what will be left of it. Without
        # it, loading would have to look at every header there.
        assert meta.replacement is not None
        self._leave_journal()
        stage(self._files, self.directory, meta.replacement, frames, snapshot)
        # Readers go first, and wait for us: none may open a file that is no longer what it was.
        self._let_go(self.view.segments)
        self._undecided = None if hard_state is None else (meta.changes, hard_state)
        try:
            write_meta(self._files, self.directory, meta)  # from here on it is true
            finish(self._files, self.directory, meta)
            if remains is not None:
                write_index(self._files, *remains)
            self._load()
        except Exception:
            # It may have happened or not. The files know, and are asked before anything else is done.
            self._doubt()
            raise

    def _doubt(self) -> None:
        self._let_go(self.view.segments)
        self.is_stale = True

    # Snapshots and the head

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot. Durable. Raises UnsoundEntry."""
        # The log first: a snapshot must not outlive the entries that it stands for.
        self._sync(self._tail)
        survey = self._reader.survey(self.view, snapshot.index)
        data = keep(snapshot, survey.next_offset, survey.last_timestamp)
        replace_file(self._files, self.directory, snapshot_name(snapshot.index), data)
        at = self.view.at(survey.place)
        kept = Kept(snapshot.index, snapshot.term, survey.next_offset, survey.last_timestamp, at)
        others = [other for other in self.kept if other.index != snapshot.index]
        self.kept = sorted([*others, kept], key=lambda one: one.index)
        while (one_too_many := superfluous(self.kept)) is not None:
            remove_quietly(self._files, f"{self.directory}/{snapshot_name(one_too_many.index)}")
            self.kept.remove(one_too_many)

    def drop_head(self, kept: Kept) -> None:
        """Forget everything up to and including a snapshot's entry. Durable. Raises UnsoundEntry."""
        # Without a sync of the log, which may have to write: up to a snapshot it was durable before that was.
        view = self.view
        place = self._reader.survey(view, kept.index).place
        number, position = place
        if position == view.end_of(number):
            number, position = number + 1, 0
        remaining = view.segments[number:]
        meta = msgspec.structs.replace(
            self.meta,
            start_index=kept.index,
            start_term=kept.term,
            start_offset=kept.next_offset,
            start_timestamp=kept.last_timestamp,
            start_base_index=remaining[0].base_index if remaining else kept.index + 1,
            start_position=position,
        )
        try:
            # The head is gone once this is durable. Its files go afterwards: were they to go first, a
            # crash in between would leave a log with a hole.
            write_meta(self._files, self.directory, meta)
        except Exception:
            # It may be the old one or the new one. No file has changed but this one, so readers go on, and
            # the tail keeps what is not durable yet.
            self.is_stale = True
            raise
        self.meta = meta
        self.view = view_of(meta, remaining, empty_at=view.end_at)
        self._remove_head(view.segments[:number], kept.index)

    def _remove_head(self, segments: tuple[Segment, ...], index: int) -> None:
        self._let_go(segments)
        for segment in segments:
            remove_quietly(self._files, segment.index_path)
            remove_quietly(self._files, segment.log.path)
        for kept in self.kept:
            if kept.index < index:
                remove_quietly(self._files, f"{self.directory}/{snapshot_name(kept.index)}")
        self.kept = [kept for kept in self.kept if kept.index >= index]
        if self.sound_end is not None and self.sound_end.damage.index <= index:
            self.sound_end = None  # what was damaged is no longer part of the log
