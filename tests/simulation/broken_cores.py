"""Ways to break the product, each a context manager. The simulation has to notice every one of them.

Each puts one mistake back, as somebody might make it: by leaving a check out, or by doing things in the wrong
order. Patching is the point here: what is tested is the simulation.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from talweg.errors import CorruptBatch, OutOfSequence
from talweg.raft import (
    Append,
    AppendReply,
    Entries,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Raft,
    ReadReady,
    Role,
    VoteReply,
    beginning_at,
    election,
    following,
    leading,
    membership,
    recovery,
)
from talweg.raft.progress import Progress
from talweg.records import HEADER_BYTES, read_header, stamp
from talweg.replication import proposals, replica
from talweg.replication.decisions import Decisions
from talweg.replication.proposals import Proposals
from talweg.replication.replica import Replica
from talweg.replication.staging import Staging
from talweg.replication.state import PartitionState
from talweg.storage import Write, index_cache, journal, loading, log_writer
from talweg.storage import recovery as log_recovery
from talweg.storage.journal import Journal
from talweg.storage.loading import load
from talweg.storage.log_writer import LogWriter
from talweg.storage.recovery import Start, _read_index, load_points, read_contents
from talweg.storage.scan import UnsoundEntry
from talweg.storage.segment_store import SegmentStore
from talweg.testing.disk import SimulatedFile
from talweg.testing.disk_nodes import SECTOR_BYTES

Breakage = Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(target: Any, **replacements: Any) -> Iterator[None]:
    """Replace attributes of a module or class for a while."""
    before = {name: getattr(target, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(target, name, replacement)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(target, name, original)


# Promises


def votes_are_not_persisted() -> AbstractContextManager[None]:
    return patched(replica, Write=lambda **fields: Write(**fields | {"hard_state": None}))


def nothing_is_synced() -> AbstractContextManager[None]:
    return patched(SegmentStore, sync=lambda store: None)


def promises_leave_before_they_are_durable() -> AbstractContextManager[None]:
    return patched(Raft, send_when_durable=Raft.send)


def a_leader_counts_itself_before_it_is_durable() -> AbstractContextManager[None]:
    original = leading.advance_commit

    def advance_commit(raft: Raft) -> None:
        stable_index, raft.stable_index = raft.stable_index, raft.log.last_index
        original(raft)
        raft.stable_index = stable_index

    def propose(raft: Raft, entries: list[Entry]) -> None:
        original_propose(raft, entries)
        advance_commit(raft)

    original_propose = leading.propose
    return patched(leading, advance_commit=advance_commit, propose=propose)


def a_wiped_replica_votes() -> AbstractContextManager[None]:
    def sound_hard_state(store: Any, *, join: bool) -> HardState:
        return store.summary().hard_state or HardState()

    return patched(replica, sound_hard_state=sound_hard_state)


def a_damaged_log_is_cut_and_forgotten() -> AbstractContextManager[None]:
    def sound_hard_state(store: Any, *, join: bool) -> HardState:
        summary = store.summary()
        store.cut_damage()
        return summary.hard_state or HardState(recovering=join)

    return patched(replica, sound_hard_state=sound_hard_state)


def a_forgetful_voter_counts() -> AbstractContextManager[None]:
    """As it was at first: its replies kept an old leader in office and committed its entries."""
    acknowledged, heard = Progress.acknowledged, recovery.heard

    def all_count(progress: Progress, index: int, *, recovering: bool = False, life: int = 0) -> bool:
        return acknowledged(progress, index, life=life)

    def all_are_heard(raft: Raft, progress: Progress, reply: AppendReply | HeartbeatReply) -> None:
        heard(raft, progress, reply)
        progress.heard_at = raft.clock

    @contextmanager
    def both() -> Iterator[None]:
        with patched(Progress, acknowledged=all_count), patched(recovery, heard=all_are_heard):
            yield

    return both()


def a_forgetful_voter_is_whole_too_early() -> AbstractContextManager[None]:
    """As it was at first: a committed entry of the leader's term was enough."""

    def leave(raft: Raft) -> None:
        if raft.recovering and raft.leader is not None and raft.log.term(raft.commit_index) == raft.term:
            raft.recovering, raft.vote = False, raft.leader

    return patched(recovery, leave=leave)


# Elections


def votes_are_counted_twice() -> AbstractContextManager[None]:
    def handle_vote_reply(raft: Raft, reply: VoteReply) -> None:
        if reply.source in raft.votes and reply.granted:
            silent = [voter for voter in raft.configuration.voters if voter not in raft.votes]
            reply = msgspec.structs.replace(reply, source=silent[0] if silent else reply.source)
        original(raft, reply)

    original = election.handle_vote_reply
    return patched(election, handle_vote_reply=handle_vote_reply)


def any_log_is_up_to_date() -> AbstractContextManager[None]:
    original = election.handle_request_vote

    def handle_request_vote(raft: Raft, request: Any) -> None:
        original(raft, msgspec.structs.replace(request, last_term=1 << 40))

    return patched(election, handle_request_vote=handle_request_vote)


# Logs


def any_overlap_truncates() -> AbstractContextManager[None]:
    @contextmanager
    def both() -> Iterator[None]:
        with patched(following, _new_entries=lambda raft, entries: entries), _truncation_unchecked():
            yield

    return both()


def runs_that_begin_alike_are_alike() -> AbstractContextManager[None]:
    """A follower that has the first entries of a run is held to have all of it."""

    def new_entries(raft: Raft, entries: Entries) -> Entries:
        for piece in entries:
            if raft.log.term(piece.index) != piece.term:
                return beginning_at(entries, piece.index)
        return []

    return patched(following, _new_entries=new_entries)


def truncation_goes_below_the_commit_index() -> AbstractContextManager[None]:
    original = following.handle_append

    def handle_append(raft: Raft, message: Append) -> None:
        commit_index, raft.commit_index = raft.commit_index, raft.log.start_index
        original(raft, message)
        raft.commit_index = max(raft.commit_index, min(commit_index, raft.log.last_index))

    @contextmanager
    def all_of_it() -> Iterator[None]:
        with any_overlap_truncates(), patched(following, handle_append=handle_append):
            yield

    return all_of_it()


def _truncation_unchecked() -> AbstractContextManager[None]:
    original = Raft.truncate_from

    def truncate_from(raft: Raft, index: int) -> None:
        commit_index, raft.commit_index = raft.commit_index, 0
        original(raft, index)
        raft.commit_index = commit_index

    return patched(Raft, truncate_from=truncate_from)


def old_terms_are_committed_by_counting() -> AbstractContextManager[None]:
    def advance_commit(raft: Raft) -> None:
        voters = raft.configuration.voters
        held = sorted(
            raft.stable_index if voter == raft.replica else raft.progress[voter].counted_index
            for voter in voters
        )
        index = held[len(voters) - raft.configuration.quorum]
        if index > raft.commit_index:
            raft.uncommitted_bytes -= raft.log.payload_bytes(raft.commit_index + 1, index)
            raft.commit(index)

    return patched(leading, advance_commit=advance_commit)


def heartbeats_commit_whatever_is_there() -> AbstractContextManager[None]:
    def send_heartbeats(raft: Raft) -> None:
        for peer in raft.progress:
            ends = {"source": raft.replica, "target": peer, "term": raft.term}
            raft.send(Heartbeat(**ends, commit=raft.commit_index, round=raft.reads.round))

    return patched(leading, send_heartbeats=send_heartbeats)


def two_voters_change_at_once() -> AbstractContextManager[None]:
    """A configuration counts before the one before it is committed."""
    original = Raft.propose_configuration

    def propose_configuration(raft: Raft, configuration: Any) -> Any:
        history, raft.configuration_history = raft.configuration_history, [(0, raft.configuration)]
        term_start_index, raft.term_start_index = raft.term_start_index, 0
        refusal = original(raft, configuration)
        raft.configuration_history = history + raft.configuration_history[1:]
        raft.term_start_index = term_start_index
        return refusal

    return patched(Raft, propose_configuration=propose_configuration)


# Reads


def reads_are_not_confirmed() -> AbstractContextManager[None]:
    def read(raft: Raft, request: int) -> None:
        if raft.role is Role.LEADER:
            raft.answer_reads([ReadReady(request, raft.commit_index)])
        else:
            raft._failed_reads.append(request)

    return patched(Raft, read=read)


# The partition's state


def retries_are_not_recognised() -> AbstractContextManager[None]:
    return patched(PartitionState, known=lambda state, frame: None)


def an_epoch_begins_with_any_sequence() -> AbstractContextManager[None]:
    """As it was at first: what was sent ahead shut out what came before it."""
    original = PartitionState.known

    def known(state: PartitionState, frame: bytes) -> int | None:
        try:
            return original(state, frame)
        except OutOfSequence as error:
            if "began epoch" in str(error):
                return None
            raise

    return patched(PartitionState, known=known)


def only_what_is_committed_is_known() -> AbstractContextManager[None]:
    """A retry is recognised by the committed state alone, and its first copy may still be on its way."""
    original = Proposals.flush

    def flush(waiting: Proposals, state: PartitionState, bytes_max: int) -> None:
        waiting._tail_state._producers = dict(state._producers)
        original(waiting, state, bytes_max)

    return patched(Proposals, flush=flush)


def offsets_are_indexes() -> AbstractContextManager[None]:
    def stamp_with_index(frame: bytes, index: int, term: int, first_offset: int) -> bytes:
        return stamp(frame, index, term, index)

    return patched(proposals, stamp=stamp_with_index)


def retention_keeps_no_state() -> AbstractContextManager[None]:
    original = Replica.snapshot_now

    def snapshot_now(one: Replica) -> None:
        state, one.state = one.state, PartitionState()
        one.state.next_offset = state.next_offset
        original(one)
        one.state = state

    return patched(Replica, snapshot_now=snapshot_now)


def whoever_leads_no_more_turns_producers_away() -> AbstractContextManager[None]:
    """As it was at first: a sequence error needed no confirmation."""
    return patched(Proposals, _refuse=lambda waiting, error, done: done(error))


def positions_may_go_back() -> AbstractContextManager[None]:
    original = PartitionState.fold_all

    def fold_all(state: PartitionState, frames: Any) -> None:
        positions, state.positions = state.positions, {}
        original(state, frames)
        state.positions = positions | state.positions

    return patched(PartitionState, fold_all=fold_all)


def a_rejection_of_nothing_is_heeded() -> AbstractContextManager[None]:
    """As it was at first: the answer to a message of an earlier term was taken for one of this term."""
    original = leading.handle_append_reply

    def handle_append_reply(raft: Raft, reply: AppendReply) -> None:
        progress = raft.progress.get(reply.source)
        if raft.role is Role.LEADER and progress is not None and reply.rejected and reply.index == 0:
            progress.lost_its_log(-1)
            leading.feed(raft, reply.source, progress)
        else:
            original(raft, reply)

    return patched(leading, handle_append_reply=handle_append_reply)


def messages_are_lost_for_good() -> AbstractContextManager[None]:
    """Nobody finds out that an append was lost: no safety is at stake, but progress is."""

    def find_out(raft: Raft, peer: int, progress: Progress) -> None:
        pass

    return patched(leading, _find_out=find_out)


def no_reply_carries_a_newer_term() -> AbstractContextManager[None]:
    """Whoever is left behind in an old term is never told."""
    return patched(following, answer_stale=lambda raft, message: None)


# The disk


def a_meta_file_is_believed_after_its_sync_failed() -> AbstractContextManager[None]:
    """As it was at first: what the kernel remembered was taken for durable, and the log was thrown away."""

    def trusting_load(*arguments: Any, in_doubt: bool) -> Any:
        return load(*arguments, in_doubt=False)

    return patched(log_writer, load=trusting_load)


def damage_hides_what_comes_before_it() -> AbstractContextManager[None]:
    """As it was at first: with damage where the index was no help, the store went round in circles."""

    def impatient_load_points(files: Any, segment: Any) -> Any:
        contents = segment.contents
        start = Start(contents.first_index, contents.first_offset, 0, contents.first_position)
        with segment.log as file:
            end, interval_bytes = contents.log_bytes, contents.interval_bytes
            found, problem = read_contents(file, start, end, interval_bytes, bodies=False)
        if problem is not None and _read_index(files, segment.index_path) is None:
            raise UnsoundEntry(found.last_index + 1, str(problem))
        return load_points(files, segment)

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patched(index_cache, load_points=impatient_load_points),
            patched(loading, load_points=impatient_load_points),
        ):
            yield

    return both()


def zeros_that_a_power_cut_left_are_damage() -> AbstractContextManager[None]:
    """As it was at first: a frame was torn only if the file was too short for it."""
    return patched(log_recovery, is_torn=_is_too_short)


def only_what_comes_last_is_missing_after_a_power_cut() -> AbstractContextManager[None]:
    """As it was for long: sectors were thought to be written in order, so that a file ended in zeros."""

    def is_torn(file: SimulatedFile, position: int, size: int) -> bool:
        written = len(file.read_at(size - position, position).rstrip(b"\0"))
        return _is_too_short(file, position, -(-(position + written) // SECTOR_BYTES) * SECTOR_BYTES)

    return patched(log_recovery, is_torn=is_torn)


def _is_too_short(file: SimulatedFile, position: int, size: int) -> bool:
    tail = file.read_at(size - position, position)
    if len(tail) < HEADER_BYTES or not tail.strip(b"\0"):
        return True
    try:
        return len(tail) < read_header(tail).frame_bytes
    except CorruptBatch:
        return False


def what_was_durable_is_not_missed() -> AbstractContextManager[None]:
    """As it was for long: a log that had lost its end was taken for a shorter one."""
    return patched(log_recovery, read_stable_index=lambda files, directory, changes: 0)


def what_is_not_durable_yet_is_noted() -> AbstractContextManager[None]:
    """The note comes before the sync, and a power cut between the two makes damage of a torn tail."""

    def sync(one: LogWriter) -> None:
        one._stable.note(one.meta.changes, one.view.last_index)
        original(one)

    original = LogWriter.sync
    return patched(LogWriter, sync=sync)


def the_disk_is_read_up_to_what_is_applied() -> AbstractContextManager[None]:
    """As it was for an hour: there it may still hold what another leader has overwritten."""

    def read_frames(one: Replica, offset: int, bytes_max: int) -> list[bytes]:
        return one.store.read_frames(offset, bytes_max, one.raft.applied_index)

    return patched(Replica, read_frames=read_frames)


# The journal


def the_journal_is_not_synced() -> AbstractContextManager[None]:
    """What it takes is called durable at once."""

    def put(one: Journal, body: bytes, paths: set[str]) -> None:
        before, SimulatedFile.sync = SimulatedFile.sync, lambda one: None  # type: ignore[method-assign]
        try:
            original(one, body, paths)
        finally:
            SimulatedFile.sync = before  # type: ignore[method-assign]

    original = Journal._put
    return patched(Journal, _put=put)


def the_journal_is_not_recovered() -> AbstractContextManager[None]:
    """A crash leaves segments as they are."""
    return patched(Journal, _rewrite=lambda one, writes: None)


def a_checkpoint_syncs_nothing() -> AbstractContextManager[None]:
    """The journal is used again while segments still need it."""
    return patched(journal, _sync_files=lambda files, paths: None)


def the_journal_brings_back_what_was_cut() -> AbstractContextManager[None]:
    """It is not told of what is cut and replaced."""
    return patched(Journal, forget=lambda one, directory: None)


def what_a_dead_process_left_is_believed() -> AbstractContextManager[None]:
    """As it was for long: what was made and never synced was built upon, and a power cut took it away."""
    return patched(loading, _settle=lambda files, directory: None)


# Transactions


def retention_takes_what_is_staged() -> AbstractContextManager[None]:
    """The log's head goes, and with it what waits to be published."""
    return patched(Replica, needed_index=property(lambda one: one.raft.log.last_index + 1))


def a_new_leader_forgets_what_was_published() -> AbstractContextManager[None]:
    """It begins every stage anew."""
    original = Staging.copy

    def copy(one: Staging) -> Staging:
        twin = original(one)
        for stage in twin.stages.values():
            stage.published = 0
        return twin

    return patched(Staging, copy=copy)


def what_has_expired_is_decided_on() -> AbstractContextManager[None]:
    """A decision names what was, or is about to be, discarded."""
    return patched(Decisions, _check_new=lambda one, decide: None)


# Progress


def who_leaves_itself_out_does_not_stand() -> AbstractContextManager[None]:
    """As it was at first: whoever alone held the change that removed it kept everybody from winning."""

    def may_stand(raft: Raft) -> bool:
        return raft.replica in raft.configuration.voters

    return patched(membership, may_stand=may_stand)
