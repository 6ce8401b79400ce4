"""One replica: a Raft core with its store and its partition's small state.

Synchronous and without threads of its own. It says what to write (`take_job`), what to send
(`outbox`) and what to read (`take_fetches`); the host does these with threads and sockets, the
simulation with virtual time. Call `pump` after anything that happened.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from talweg.errors import DamagedLog, StorageError, StorageFull, TalwegError
from talweg.raft import (
    Configuration,
    Entries,
    FetchEntries,
    FetchSnapshot,
    Log,
    Message,
    Raft,
    ReadReady,
    Ready,
    Refusal,
    Role,
    Run,
    Settings,
    Snapshot,
    beginning_at,
    configuration_at,
    ending_at,
    singly,
)
from talweg.records import Bytes, Kind, peek
from talweg.replication.job import Gathered, Job
from talweg.replication.opening import newest_snapshot, sound_hard_state
from talweg.replication.proposals import Done, Proposals
from talweg.replication.retention import Hold, Needed
from talweg.replication.staging import Item, staged_frame
from talweg.replication.state import PartitionState, Position
from talweg.storage import LogStore, Write, head_to_drop
from talweg.storage.frames import record_frames

# Applied in one go, about. After a restart there may be a snapshot's interval of it in every group; of small
# messages that takes seconds, and hearts have to beat meanwhile.
_APPLY_BYTES = 1 << 20
_READ_BYTES = 4 << 20  # of what is staged, in one go


class Replica:
    """See the module's text. `replica` is this broker's id within the group."""

    def __init__(
        self,
        replica: int,
        store: LogStore,
        configuration: Configuration,
        *,
        settings: Settings | None = None,
        election_timeout: Callable[[], int],
        snapshot_interval_bytes: int = 64 << 20,
        join: bool = False,
        life: int = 0,
    ) -> None:
        """Open it. With `join` an empty store belongs to a group that exists already: the replica may
        have been here before and lost its disk, so it does not vote until it has caught up. `life` is a
        number that no other opening of this replica has had; a random one will do."""
        self.store = store
        self.outbox: list[Message] = []
        self.on_applied: Callable[[], None] = _nothing  # told after entries were applied
        # Told, in whatever thread, of damage that whoever reads the log has met.
        self.on_damage: Callable[[DamagedLog], None] = _nothing_about
        self.state = PartitionState()  # as of applied_index
        hard_state = sound_hard_state(store, join=join)
        summary = store.summary()
        snapshot = newest_snapshot(store, summary.last_index)
        if snapshot is not None:
            self.state = PartitionState.from_bytes(snapshot.state)
        start = store.snapshot(summary.start_index) if summary.start_index else None
        self.raft = Raft(
            replica,
            start.configuration if start is not None else configuration,
            log=Log(summary.start_index, summary.start_term, summary.terms, summary.last_index),
            hard_state=hard_state,
            configurations=summary.configurations,
            applied_index=snapshot.index if snapshot is not None else None,
            settings=settings,
            election_timeout=election_timeout,
            life=life,
        )
        self.start_offset = summary.start_offset  # the first message kept
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self._bytes_since_snapshot = 0
        self._to_apply_bytes = _APPLY_BYTES  # left of what this pump may apply
        self._proposals = Proposals(self.raft, self._entries, self.confirm_leadership)
        self._gathered = Gathered()
        self._job: Job | None = None  # under way
        self._snapshot_wanted: Snapshot | None = None
        self._drop_wanted: int | None = None
        self._fetches: list[FetchEntries | FetchSnapshot] = []
        self._reads: dict[int, Callable[[TalwegError | None], None]] = {}
        self._confirmed: list[ReadReady] = []  # to be answered once their index is applied
        self._read_number = 0

    # What happens

    def tick(self) -> None:
        """One unit of time has passed."""
        self.raft.tick()

    def step(self, message: Message) -> None:
        """A message for this replica."""
        self.raft.step(message)

    def append(self, frames: Sequence[Bytes], done: Done) -> None:
        """Append frames (not yet stamped) in this order. `done` is told when they are committed, or
        with an error: after NotLeader they were not, Undecided leaves it open, and a retry finds out."""
        self._proposals.append(frames, done)

    def commit_positions(self, positions: list[Position], done: Done) -> None:
        """Replicate positions. Those that come together share one entry."""
        self._proposals.commit_positions(positions, done)

    def confirm_leadership(self, done: Callable[[TalwegError | None], None]) -> None:
        """Tell `done` when this replica is known to lead and has applied all that was committed."""
        self._read_number += 1
        self._reads[self._read_number] = done
        self.raft.read(self._read_number)

    def retain(self, *, bytes_max: int | None, before_timestamp: int | None) -> int | None:
        """Retention: queue the cut, if a snapshot allows one. Returns the index it will be at."""
        index = self.retention_index(bytes_max=bytes_max, before_timestamp=before_timestamp)
        return index if index is not None and self.drop_head(index) else None

    def retention_index(
        self, *, bytes_max: int | None, before_timestamp: int | None, needed: Needed | None = None
    ) -> int | None:
        """Where retention would cut, before what is needed. May have to wait for the disk, so not for an
        event loop; there `needed` was asked for before."""
        if needed is None:
            needed = self.needed()
        marks = [mark for mark in self.store.snapshots() if needed.lets_go(mark)]
        return head_to_drop(marks, bytes_max=bytes_max, before_timestamp=before_timestamp)

    def needed(self) -> Needed:
        """What retention has to leave, as of now."""
        state = self.state
        holds = (Hold(state.positions.get(name, 0), size) for name, size in state.holds.items())
        return Needed(self.needed_index, tuple(holds))

    @property
    def needed_index(self) -> int:
        """The first entry that something staged still needs; behind the last one if nothing does."""
        oldest = self.state.staging.oldest_index()
        return self.raft.log.last_index + 1 if oldest is None else oldest

    def drop_head(self, index: int) -> bool:
        """Queue the cut at a snapshot's index; False if that is not possible (any more)."""
        if not self.raft.log.start_index < index <= min(self.raft.stable_index, self.raft.applied_index):
            return False
        if index >= self.needed_index:
            return False
        self._drop_wanted = index
        return True

    def snapshot_now(self) -> None:
        """Snapshot the small state as it is, so that retention may cut here."""
        index = self.raft.applied_index
        term = self.raft.log.term(index)
        if index > self.raft.log.start_index and term is not None:
            configuration = configuration_at(self.raft, index)
            self._snapshot_wanted = Snapshot(index, term, configuration, self.state.to_bytes())
            self._bytes_since_snapshot = 0

    # What is to be done

    def pump(self) -> None:
        """Turn what happened into work: messages in `outbox`, a job, fetches. See `has_more`."""
        self._to_apply_bytes = _APPLY_BYTES
        self._proposals.flush(self.state, _APPLY_BYTES)
        while self.raft.has_ready:
            self._take(self.raft.ready())
        if self.raft.applied_index < self.raft.commit_index:
            self._apply()  # what could not be read from the disk then, perhaps can now
        self._proposals.fail_unless_leading()

    @property
    def has_more(self) -> bool:
        """Whether there was more to apply than a pump may: another one goes on with it, after everyone else's
        turn."""
        behind = self._to_apply_bytes <= 0 and self.raft.applied_index < self.raft.commit_index
        return behind or self._proposals.has_more

    @property
    def wants_pump(self) -> bool:
        """Whether `pump` or `take_job` would have anything to do, as far as the core and the disk go."""
        raft = self.raft
        return bool(
            self._gathered
            or self._snapshot_wanted is not None
            or self._drop_wanted is not None
            or raft.applied_index < raft.commit_index
            or raft.has_ready
        )

    def take_job(self) -> Job | None:
        """Everything for the disk since the last job, which must be over. Runs as `write`, `finish`."""
        if self._job is not None or not (
            self._gathered or self._snapshot_wanted is not None or self._drop_wanted is not None
        ):
            return None
        gathered, self._gathered = self._gathered, Gathered()
        self._job = Job(
            self.store,
            gathered.number,
            gathered.writes,
            gathered.messages,
            self._snapshot_wanted,
            self._drop_wanted,
            is_follower=self.raft.role is not Role.LEADER,
        )
        self._snapshot_wanted = self._drop_wanted = None
        return self._job

    def job_done(self, job: Job) -> None:
        """It is durable: promises may leave."""
        assert job is self._job
        self._job = None
        if self.raft.disk_failed:
            self.raft.disk_state(failed=False)
        self.raft.persisted(job.number)
        self.outbox.extend(job.messages_after)
        self._head_dropped(job)

    def job_failed(self, job: Job, error: TalwegError) -> None:
        """The disk is full or failing. Nothing was promised; the same job may be run again."""
        assert job is self._job
        self.raft.disk_state(failed=True)
        self._proposals.fail_all(error)
        self._head_dropped(job)
        if self._drop_wanted is not None:
            # There is no other job until this one is done, and on a full disk it cannot be done without.
            job.drop_head, self._drop_wanted = self._drop_wanted, None

    def _head_dropped(self, job: Job) -> None:
        # Perhaps less of it than was wanted; and perhaps another log has taken its place meanwhile.
        if job.start_index > self.raft.log.start_index:
            self.raft.drop_head(job.start_index)
            self.start_offset = job.start_offset

    def take_fetches(self) -> list[FetchEntries | FetchSnapshot]:
        """Reads for slow followers, for `fetch` (outside the event loop) and `fetched`."""
        fetches, self._fetches = self._fetches, []
        return fetches

    def fetch(self, fetch: FetchEntries | FetchSnapshot) -> Entries | Snapshot | None:
        """Read what a slow follower needs. Whatever cannot be read is asked for again later."""
        try:
            with self._looking_for_damage():
                if isinstance(fetch, FetchSnapshot):
                    return self.store.snapshot(self.raft.log.start_index)
                return self.store.read(fetch.first_index, fetch.bytes_max)
        except TalwegError:
            return None

    def fetched(self, fetch: FetchEntries | FetchSnapshot, result: Entries | Snapshot | None) -> None:
        """Hand what was read to the core."""
        if isinstance(fetch, FetchSnapshot):
            self.raft.fetched_snapshot(fetch.peer, result if isinstance(result, Snapshot) else None)
        else:
            self.raft.fetched(fetch.peer, () if result is None or isinstance(result, Snapshot) else result)

    @property
    def serves(self) -> bool:
        """Whether it leads and knows everything that is committed."""
        return self.raft.role is Role.LEADER and self.raft.applied_index >= self.raft.term_start_index

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed, as far as this replica knows."""
        return self.state.next_offset

    def read_frames(self, offset: int, bytes_max: int) -> list[bytes]:
        """Committed record batches from the one that holds `offset` on. May be called from any thread."""
        applied_index = self.raft.applied_index
        with self._looking_for_damage():
            # Not beyond what is stable: there the disk may still hold what another leader has overwritten.
            frames = self.store.read_frames(offset, bytes_max, min(applied_index, self.raft.stable_index))
        # A majority may have on disk what our own has yet to be given: it is committed, and at hand.
        return frames or self._frames_at_hand(offset, bytes_max, applied_index)

    def offset_at(self, timestamp: int) -> int:
        """The first offset of a batch, committed and on disk, with a message at or after `timestamp`; or the
        one after all of those. May be called from any thread."""
        with self._looking_for_damage():
            last_index = min(self.raft.applied_index, self.raft.stable_index)  # as in `read_frames`
            return self.store.offset_at(timestamp, last_index)

    def _frames_at_hand(self, offset: int, bytes_max: int, last_index: int) -> list[bytes]:
        """Those of one run, or a single one. Who wants more asks again."""
        for piece in self.raft.log.at_hand():
            if isinstance(piece, Run):
                if frames := record_frames(piece, offset, bytes_max, last_index):
                    return frames
            elif piece.kind == Kind.RECORDS and piece.index <= last_index:
                _, _, first_offset, count, _, _ = peek(piece.payload)
                if first_offset <= offset < first_offset + count:
                    return [piece.payload]
        return []

    def read_staged(self, items: list[Item]) -> list[bytes]:
        """The frames that committed items carry. May be called from any thread. Raises OffsetOutOfRange
        when one was published meanwhile, and retention took it."""
        frames: list[bytes] = []
        while len(frames) < len(items):
            first, count = items[len(frames)].index, 1
            rest = items[len(frames) + 1 :]  # those that follow right behind it are read with it
            while count <= len(rest) and rest[count - 1].index == first + count:
                count += 1
            read = self._committed_frames(first, first + count - 1)
            assert read, "what is committed is at hand or in the store"
            frames += map(staged_frame, read)
        return frames

    def _committed_frames(self, first_index: int, last_index: int) -> list[bytes]:
        """Some of these, from the first on."""
        stable_index = self.raft.stable_index
        if first_index > stable_index:
            # A majority may have on disk what our own has yet to be given.
            at_hand = singly(ending_at(beginning_at(self.raft.log.at_hand(), first_index), last_index))
            if at_hand and at_hand[0].index == first_index:
                return [entry.payload for entry in at_hand]
            stable_index = last_index  # it was given to the disk this moment
        with self._looking_for_damage():
            entries = self.store.read(first_index, _READ_BYTES, min(last_index, stable_index))
        return [entry.payload for entry in entries]

    @contextmanager
    def _looking_for_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedLog as error:
            self.on_damage(error)
            raise

    def fail_all(self, error: TalwegError) -> None:
        """Tell everyone who waits for anything that it will not come."""
        self._proposals.fail_all(error)
        reads, self._reads = self._reads, {}
        for done in reads.values():
            done(error)

    def refused(self, refusal: Refusal) -> TalwegError:
        """The core's refusal as an error for the client."""
        return self._proposals.refused(refusal)

    # Inside

    def _take(self, ready: Ready) -> None:
        self.outbox.extend(ready.messages)
        self._fetches.extend(ready.fetches)
        if ready.snapshot is not None:
            self.state = PartitionState.from_bytes(ready.snapshot.state)
            self.start_offset = self.state.next_offset
            self._bytes_since_snapshot = 0
            self._snapshot_wanted = self._drop_wanted = None  # of a log that is being replaced
        if ready.must_persist:
            write = Write(
                snapshot=ready.snapshot,
                next_offset=self.state.next_offset if ready.snapshot is not None else 0,
                truncate_from=ready.truncate_from,
                entries=ready.entries,
                hard_state=ready.hard_state,
            )
            self._gathered.add(ready.number, write, ready.messages_after)
        elif ready.messages_after:
            if self._job is None and not self._gathered:
                self.outbox.extend(ready.messages_after)
            else:
                # A promise about what an earlier Ready wrote: it waits for that one.
                self._gathered.add(ready.number, None, ready.messages_after)
        self._confirmed.extend(ready.reads)
        if self._confirmed or ready.commit_index > self.raft.applied_index:
            self._apply()
        for request in ready.failed_reads:
            if (done := self._reads.pop(request, None)) is not None:
                done(self.refused(Refusal.NOT_LEADER))

    def _apply(self) -> None:
        raft = self.raft
        before = raft.applied_index
        try:
            while raft.applied_index < raft.commit_index and self._to_apply_bytes > 0:
                entries = self._entries(raft.applied_index + 1, raft.commit_index)
                self.state.fold_all(entries)
                entries_bytes = sum([len(entry.payload) for entry in entries])
                self._bytes_since_snapshot += entries_bytes
                self._to_apply_bytes -= entries_bytes
                raft.applied(entries[-1].last_index)
        except DamagedLog:
            raise
        except (StorageError, StorageFull):
            pass  # the disk cannot be read now: whoever waits for these entries waits for the next pump
        if raft.applied_index > before:
            self._proposals.committed(raft.applied_index)
            self.on_applied()
            if self._bytes_since_snapshot >= self._snapshot_interval_bytes:
                self.snapshot_now()
        if self._confirmed:
            self._answer_reads()

    def _answer_reads(self) -> None:
        confirmed, self._confirmed = self._confirmed, []
        for read in confirmed:
            if read.index > self.raft.applied_index:
                self._confirmed.append(read)
            elif (done := self._reads.pop(read.request, None)) is not None:
                done(None)

    def _entries(self, first_index: int, last_index: int) -> Entries:
        """Some of these, from the first on."""
        if first_index >= self.raft.log.tail_first:
            entries = self.raft.log.slice(first_index, _APPLY_BYTES)
            return ending_at(entries, last_index) if entries[-1].last_index > last_index else entries
        last_index = min(last_index, self.raft.log.tail_first - 1)
        return self.store.read(first_index, _APPLY_BYTES, last_index)


def _nothing() -> None:
    """For whoever does not want to be told."""


def _nothing_about(error: DamagedLog) -> None:
    """Nor what of."""
