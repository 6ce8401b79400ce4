"""What clients ask a leader to append: stamped, recognised when it is a retry, answered when committed."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from talweg.errors import (
    DamagedLog,
    NotLeader,
    OutOfSequence,
    Overloaded,
    StageDecided,
    StageExpired,
    StageNotFound,
    StorageError,
    StorageFull,
    TalwegError,
    TooManyPositions,
    TransactionForgotten,
    Undecided,
)
from talweg.raft import Entries, Entry, Raft, Refusal, Run
from talweg.records import Bytes, Kind, encode_frame, peek, stamp
from talweg.replication.state import PartitionState, Position, encode_positions
from talweg.storage.frames import in_runs


class Appended(msgspec.Struct, frozen=True, gc=False):
    """A batch that is committed: where it stands."""

    first_offset: int
    count: int
    duplicate: bool = False  # it had been written before; this is that answer again


Outcome = Sequence[Appended] | TalwegError
Done = Callable[[Outcome], None]
ReadEntries = Callable[[int, int], Entries]  # first and last index → some entries from first on
Confirm = Callable[[Callable[[TalwegError | None], None]], None]  # told None once leadership is confirmed

_RECORDS = int(Kind.RECORDS)  # looking it up in the enum is slow
_ASKED_AHEAD_BYTES = 1 << 20
# Said from what the log has, so not before it is known that this is all of it.
_REFUSALS = (OutOfSequence, StageNotFound, StageExpired, StageDecided, TransactionForgotten)


class Proposals:
    """Those that came and are not yet in the log, and those that are and wait for a majority.

    What comes between two flushes goes into the log together.
    """

    def __init__(self, raft: Raft, read_entries: ReadEntries, confirm: Confirm) -> None:
        self._raft = raft
        self._read_entries = read_entries
        self._confirm = confirm
        self._frames: list[tuple[Sequence[Bytes], Done]] = []
        self._frames_bytes = 0
        self._allowed_bytes = 0  # to be gathered until the next flush, as far as the core has been asked
        self._positions: list[tuple[list[Position], Done]] = []
        # In the log, by last index; the answer is known already and only waits for the commit.
        self._waiting: deque[tuple[int, Sequence[Appended], Done]] = deque()
        self._tail_state = PartitionState()  # as of the log's end, when this replica leads `_term`
        self._term = 0  # the term that the above belongs to
        self._next_term = 0  # the term for which it is brought to the log's end, and so far as
        self._next_index = 0  # this

    def append(self, frames: Sequence[Bytes], done: Done) -> None:
        """Append frames, not yet stamped, in this order."""
        gathered_bytes = self._frames_bytes + sum(map(len, frames))
        if gathered_bytes > self._allowed_bytes:
            refusal = self._refusal(gathered_bytes)
            if refusal is not None:
                done(self.refused(refusal))
                return
        self._frames.append((frames, done))
        self._frames_bytes = gathered_bytes

    def _refusal(self, gathered_bytes: int) -> Refusal | None:
        # Small ones come in swarms, so the core is asked for more room than is needed now. It has no less
        # of that when they are flushed; whether it leads at all it is asked again then.
        raft, bytes_max = self._raft, self._raft.settings.uncommitted_bytes_max
        ahead_bytes = gathered_bytes + _ASKED_AHEAD_BYTES
        if ahead_bytes <= bytes_max and raft.refuses(ahead_bytes) is None:
            self._allowed_bytes = ahead_bytes
            return None
        refusal = raft.refuses(gathered_bytes)
        if refusal is None and self._frames and gathered_bytes > bytes_max:
            return Refusal.OVERLOADED  # nothing is uncommitted now, but what was gathered soon will be
        return refusal

    def commit_positions(self, positions: list[Position], done: Done) -> None:
        """Replicate positions. Those that come together share one entry."""
        refusal = self._raft.refuses(0)
        if refusal is not None:
            done(self.refused(refusal))
            return
        self._positions.append((positions, done))

    @property
    def has_more(self) -> bool:
        """Whether `flush` left something for the next one."""
        return bool(self._frames or self._positions)

    def flush(self, state: PartitionState, bytes_max: int) -> None:
        """Put everything that came into the log. `state` is the committed one. A new leader reads the rest of
        the log first, about `bytes_max` each time; until that is done, everything waits."""
        if not self._frames and not self._positions:
            return
        refusal = self._raft.refuses(0)
        if refusal is not None:
            self._fail_gathered(self.refused(refusal))
            return
        try:
            if not self._is_up_to_date(state, bytes_max):
                return
        except DamagedLog:
            raise
        except (StorageError, StorageFull) as error:
            self._fail_gathered(error)  # the disk cannot be read now; who tries again may find that it can
            return
        frames, self._frames, self._frames_bytes, self._allowed_bytes = self._frames, [], 0, 0
        positions, self._positions = self._positions, []
        entries = self._stamp(frames)
        if positions:
            self._stamp_positions(positions, entries)
        if entries:
            self._raft.propose(entries)
        self.committed(self._raft.applied_index)  # nothing but duplicates: perhaps answered at once

    def committed(self, index: int) -> None:
        """Tell everyone whose entries are committed now."""
        waiting, term = self._waiting, self._raft.log.term
        # The place alone proves nothing: another leader may have committed something else there. But where
        # an entry of our term is, so is everything that we put before it.
        ours = term(index) == self._term
        while waiting and waiting[0][0] <= index and (ours or term(waiting[0][0]) == self._term):
            _, answer, done = waiting.popleft()
            done(answer)

    def fail_unless_leading(self) -> None:
        """Leadership is lost: whether they were committed is for a retry to find out."""
        if self._waiting and (self._raft.refuses(0) is Refusal.NOT_LEADER or self._raft.term != self._term):
            self.fail_all(self.refused(Refusal.NOT_LEADER))

    def fail_all(self, error: TalwegError) -> None:
        """Tell everyone who waits. What is in the log may be committed yet, by us or by another leader: also
        when our own disk refuses it, for it was sent to the others before."""
        told = [done for _, _, done in self._waiting]
        self._waiting.clear()
        in_doubt = Undecided(f"it may be written or not: {error}")
        for done in told:
            done(in_doubt)
        self._fail_gathered(error)

    def _fail_gathered(self, error: TalwegError) -> None:
        # Those that are not in the log. The others still wait, for a majority or for another leader.
        told = [done for _, done in self._frames]
        told += [done for _, done in self._positions]
        self._frames, self._frames_bytes, self._allowed_bytes, self._positions = [], 0, 0, []
        for done in told:
            done(error)

    def refused(self, refusal: Refusal) -> TalwegError:
        """The core's refusal as an error for the client."""
        if refusal is Refusal.OVERLOADED:
            return Overloaded("too many bytes wait for a majority; slow down and try again")
        leader = self._raft.leader if self._raft.leader != self._raft.replica else None
        return NotLeader(f"replica {self._raft.replica} cannot take it: {refusal.value}", leader)

    def _stamp(self, proposed: list[tuple[Sequence[Bytes], Done]]) -> list[Entry | Run]:
        # All that came together in one go: with small entries, this is most of what a leader does.
        term, first_index = self._raft.term, self._raft.log.last_index + 1
        tail, index = self._tail_state, first_index - 1
        kinds, made = bytearray(), list[bytes]()
        for frames, done in proposed:
            answer: list[Appended] = []
            try:
                for frame in frames:
                    kind, epoch, _, count, producer_id, sequence = peek(frame)
                    if (producer_id >= 0 or kind != _RECORDS) and (known := tail.known(frame)) is not None:
                        answer.append(Appended(known, count, duplicate=True))
                        continue
                    first_offset = tail.next_offset
                    stamped = stamp(frame, index + 1, term, first_offset)
                    if kind == _RECORDS:
                        tail.add_batch(epoch, first_offset, count, producer_id, sequence)
                    else:
                        tail.fold(stamped)  # what cannot be read is refused here
                    index += 1
                    kinds.append(kind)
                    made.append(stamped)
                    answer.append(Appended(first_offset, count))
            except _REFUSALS as error:
                self._refuse(error, done)  # frames before it stand: sent again they are duplicates
            except TalwegError as error:
                done(error)
            else:
                # A duplicate may be of an entry that is not committed yet: its answer waits with the rest.
                self._waiting.append((index, answer, done))
        return in_runs(first_index, term, kinds, made)

    def _refuse(self, error: TalwegError, done: Done) -> None:
        # Whoever leads no more and does not know it misses what was written since: it would turn away
        # for good a producer that did everything right.
        self._confirm(lambda lost: done(error if lost is None else lost))

    def _stamp_positions(self, groups: list[tuple[list[Position], Done]], entries: list[Entry | Run]) -> None:
        index = (entries[-1].last_index if entries else self._raft.log.last_index) + 1
        term = self._raft.term
        tail, taken, told = self._tail_state, list[Position](), list[Done]()
        for positions, done in groups:
            try:
                tail.check_room(positions)
            except TooManyPositions as error:
                self._refuse(error, done)
                continue
            tail.take_positions(positions)
            taken += positions
            told.append(done)
        if told:
            body, first_offset = encode_positions(taken), tail.next_offset
            frame = encode_frame(Kind.POSITIONS, body, index=index, term=term, first_offset=first_offset)
            entries.append(Entry(index, term, Kind.POSITIONS, frame))
            self._waiting.extend((index, (), done) for done in told)

    def _is_up_to_date(self, state: PartitionState, bytes_max: int) -> bool:
        # Committed state is not enough to recognise a retry: its first copy may be in the log and not
        # committed yet. A leader never truncates its own log, so within a term the tail only grows.
        raft = self._raft
        if self._term == raft.term:
            return True
        assert not self._waiting, "whoever waited for an earlier term was told when it was over"
        if self._next_term != raft.term or self._next_index < raft.log.start_index:
            # Anew: for this term, or because retention has overtaken us.
            self._next_term, self._next_index = raft.term, raft.applied_index
            self._tail_state = state.copy()
        while self._next_index < raft.log.last_index:
            if bytes_max <= 0:
                return False
            entries = self._read_entries(self._next_index + 1, raft.log.last_index)
            self._tail_state.fold_all(entries)
            self._next_index = entries[-1].last_index
            bytes_max -= sum([len(entry.payload) for entry in entries])
        self._term = raft.term
        return True
