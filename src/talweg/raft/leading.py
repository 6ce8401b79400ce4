"""What a leader does: feed its followers, commit, hand over, confirm reads, step down."""

from typing import TYPE_CHECKING

from talweg.raft import recovery
from talweg.raft.entries import NOOP, Entries, Entry
from talweg.raft.messages import (
    Append,
    AppendReply,
    FetchEntries,
    FetchSnapshot,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Refusal,
    Role,
    Snapshot,
    TimeoutNow,
)
from talweg.raft.progress import Feeding, Progress

if TYPE_CHECKING:
    from talweg.raft.core import Raft


def become_leader(raft: "Raft") -> None:
    """Open the term with a no-op: only an entry of the own term can be committed by counting."""
    assert raft.role is Role.CANDIDATE
    raft.role = Role.LEADER
    raft.leader = raft.replica
    raft.elapsed = 0
    raft.votes.clear()
    raft.progress = {
        peer: Progress(raft.log.last_index + 1, raft.clock)
        for peer in raft.configuration.members
        if peer != raft.replica
    }
    raft.doubt_at = 0
    raft.term_start_index = raft.log.last_index + 1
    raft.uncommitted_bytes = raft.log.payload_bytes(raft.commit_index + 1, raft.log.last_index)
    raft.append([Entry(raft.term_start_index, raft.term, NOOP, b"")])
    feed_all(raft)


def tick(raft: "Raft") -> bool:
    """A leader's share of a tick: heartbeats, and the doubt whether it still leads, or should."""
    if (raft.clock >= raft.doubt_at and not _hears_a_quorum(raft)) or _holds_up_others(raft):
        raft.become_follower(raft.term, None)
        return True
    if raft.transfer_target is not None:
        raft.transfer_ticks += 1
        if raft.transfer_ticks >= raft.settings.election_ticks:
            raft.transfer_target = None  # it did not take over in time: go on leading
    if raft.elapsed < raft.settings.heartbeat_ticks:
        return False
    raft.elapsed = 0
    send_heartbeats(raft)
    return True


def _hears_a_quorum(raft: "Raft") -> bool:
    # It ends with the first ones who are enough, and until what they said is old it need not be asked again:
    # a thousand groups that are led would ask at every tick.
    voters, election_ticks = raft.configuration.voters, raft.settings.election_ticks
    missing = len(voters) // 2 + (raft.replica not in voters)
    oldest, first_heard_at = raft.clock - election_ticks, raft.clock
    for peer, progress in raft.progress.items():
        if missing == 0:
            break
        if progress.heard_at > oldest and peer in voters:
            missing -= 1
            first_heard_at = min(first_heard_at, progress.heard_at)
    raft.doubt_at = first_heard_at + election_ticks
    return missing == 0


def _others_heard(raft: "Raft") -> int:
    oldest = raft.clock - raft.settings.election_ticks
    heard = 0
    for voter in raft.configuration.voters:
        if voter != raft.replica and raft.progress[voter].heard_at > oldest:
            heard += 1
    return heard


def _holds_up_others(raft: "Raft") -> bool:
    # The others commit without its disk, until it may take no more. Then it would refuse everything for as
    # long as it leads. (If they are too few to elect one of them, there is nobody to make way for: nothing is
    # written either way, and what is there can at least be read.)
    return raft.disk_hangs and _others_heard(raft) >= raft.configuration.quorum


def send_heartbeats(raft: "Raft") -> None:
    """To everyone. The commit index is capped by what each is known to hold."""
    commit_index, read_round = raft.commit_index, raft.reads.round
    for peer, progress in raft.progress.items():
        raft.send(
            Heartbeat(
                source=raft.replica,
                target=peer,
                term=raft.term,
                commit=min(commit_index, progress.match_index),
                round=read_round,
            )
        )


def refuses(raft: "Raft", payload_bytes: int) -> Refusal | None:
    """Back-pressure is a refusal too. One entry, however large, is always let through."""
    if raft.role is not Role.LEADER:
        return Refusal.NOT_LEADER
    if raft.transfer_target is not None:
        return Refusal.TRANSFERRING
    settings, uncommitted_bytes = raft.settings, raft.uncommitted_bytes
    if uncommitted_bytes and uncommitted_bytes + payload_bytes > settings.uncommitted_bytes_max:
        return Refusal.OVERLOADED
    if raft.stable_index < raft.log.last_index:
        # The others may commit without us: a slow disk of our own must be felt too.
        at_hand_bytes_max = settings.uncommitted_bytes_max + settings.tail_bytes_max
        if raft.log.tail_bytes + payload_bytes > at_hand_bytes_max:
            return Refusal.OVERLOADED
    return None


def propose(raft: "Raft", entries: Entries) -> None:
    """Append and send on. The entries need not be durable here before they leave for the others."""
    assert raft.role is Role.LEADER and raft.transfer_target is None
    assert entries[0].term == entries[-1].term == raft.term
    raft.append(entries)
    raft.uncommitted_bytes += raft.log.payload_bytes(entries[0].index, entries[-1].last_index)
    feed_all(raft)


def feed_all(raft: "Raft") -> None:
    """Send everyone what it lacks, as far as the limits allow."""
    for peer, progress in raft.progress.items():
        feed(raft, peer, progress)


def feed(raft: "Raft", peer: int, progress: Progress) -> None:
    """Send one follower what it lacks, as far as the limits allow."""
    settings = raft.settings
    while progress.next_index <= raft.log.last_index and not progress.paused(
        settings.inflight_messages_max, settings.inflight_bytes_max
    ):
        if progress.next_index <= raft.log.start_index:
            progress.fetching = True
            raft.fetch(FetchSnapshot(peer))
        elif progress.next_index < raft.log.tail_first:
            progress.fetching = True
            raft.fetch(FetchEntries(peer, progress.next_index, settings.append_bytes_max))
        else:
            entries = raft.log.slice(progress.next_index, settings.append_bytes_max)
            size_bytes = raft.log.payload_bytes(entries[0].index, entries[-1].last_index)
            _send_append(raft, peer, progress, entries, size_bytes)


def _send_append(raft: "Raft", peer: int, progress: Progress, entries: Entries, size_bytes: int) -> None:
    prev_index = progress.next_index - 1
    prev_term = raft.log.term(prev_index)
    assert prev_term is not None
    raft.send(
        Append(
            source=raft.replica,
            target=peer,
            term=raft.term,
            prev_index=prev_index,
            prev_term=prev_term,
            entries=entries,
            commit=raft.commit_index,
            recovery_index=recovery.index_to_tell(raft, progress),
            life=progress.recovering_life,
        )
    )
    if entries:
        progress.sent(entries[-1].last_index, size_bytes)


def fetched(raft: "Raft", peer: int, entries: Entries) -> None:
    """Old entries have come from the disk. Retention or a reply may have overtaken them."""
    progress = raft.progress.get(peer)
    if progress is None:
        return
    progress.fetching = False
    if not entries:
        return  # they could not be read: the next heartbeat reply tries again
    # Read in an earlier term of ours they may be of a tail that another leader has overwritten since. Where
    # the last one is in our log, all before it are: equal index and term mean equal everything before.
    last = entries[-1]
    ours = raft.log.term(last.last_index) == last.term
    if ours and entries[0].index == progress.next_index > raft.log.start_index:
        _send_append(raft, peer, progress, entries, sum([len(entry.payload) for entry in entries]))
    feed(raft, peer, progress)


def fetched_snapshot(raft: "Raft", peer: int, snapshot: Snapshot | None) -> None:
    """A snapshot has come from the disk."""
    progress = raft.progress.get(peer)
    if progress is None:
        return
    progress.fetching = False
    start_index = raft.log.start_index
    if snapshot is None or snapshot.index < start_index or progress.next_index > start_index:
        return
    raft.send(InstallSnapshot(source=raft.replica, target=peer, term=raft.term, snapshot=snapshot))
    progress.installing(snapshot.index, raft.clock)


def handle_append_reply(raft: "Raft", reply: AppendReply) -> None:
    """Learn how far a follower is, commit what a majority holds, send it more."""
    progress = raft.progress.get(reply.source)
    if raft.role is not Role.LEADER or progress is None:
        return
    recovery.heard(raft, progress, reply)
    if reply.rejected:
        if reply.index == 0:
            return  # it answers a message of an earlier term: what follows nothing is never rejected
        retry_index = _retry_index(raft, reply)
        forgetful = reply.recovering and reply.index <= progress.match_index
        if forgetful or progress.has_lost(reply.index, reply.life):
            progress.lost_its_log(retry_index, recovering=reply.recovering)
            feed(raft, reply.source, progress)
        elif progress.rejected(reply.index, retry_index):
            feed(raft, reply.source, progress)
        return
    assert reply.index <= raft.log.last_index, "a follower holds what its leader does not"
    if progress.acknowledged(reply.index, recovering=reply.recovering, life=reply.life):
        advance_commit(raft)
    feed(raft, reply.source, progress)
    if raft.transfer_target == reply.source:
        _hand_over_if_caught_up(raft)


def _retry_index(raft: "Raft", reply: AppendReply) -> int:
    if reply.hint_index < raft.log.start_index:
        return reply.hint_index  # what it lacks has been dropped: no earlier entry to try, only a snapshot
    agreed = raft.log.last_index_of_term_at_most(reply.hint_term, reply.hint_index)
    return min(agreed, reply.index - 1)  # every rejection gets us further, so they come to an end


def hears_follower(raft: "Raft", source: int, term: int, read_round: int) -> bool:
    """A reply to a heartbeat has arrived, of a replica that is not recovering. True: it lacks nothing and
    confirms nothing new, and was heard. False: nothing has happened yet; it is a message for `step`."""
    progress = raft.progress.get(source)
    if (
        progress is None
        or term != raft.term
        or progress.counted_index != raft.log.last_index
        or progress.recovery_index
        or read_round > progress.read_round
        or read_round > raft.reads.confirmed_round
        or progress.feeding is not Feeding.REPLICATE
        or raft.role is not Role.LEADER
    ):
        return False
    progress.heard_at = raft.clock
    progress.stalled()  # it is not; but the next reply is to be compared with this one
    return True


def step_quietly(raft: "Raft", message: Message) -> bool:
    """A reply of a follower that lacks nothing is only noted. Whether it was one."""
    return (
        type(message) is HeartbeatReply
        and not message.recovering
        and hears_follower(raft, message.source, message.term, message.round)
    )


def handle_heartbeat_reply(raft: "Raft", reply: HeartbeatReply) -> None:
    """A follower lives. If it is behind and nothing moves, what it was sent has been lost."""
    progress = raft.progress.get(reply.source)
    if raft.role is not Role.LEADER or progress is None:
        return
    recovery.heard(raft, progress, reply)
    if reply.round > progress.read_round and not reply.recovering:
        progress.read_round = reply.round
    if reply.round > raft.reads.confirmed_round:
        _settle_reads(raft)
    if progress.feeding is Feeding.INSTALL:
        if raft.clock - progress.sent_at >= raft.settings.election_ticks:
            progress.probe_again()
    elif progress.stalled() and (
        progress.counted_index < raft.log.last_index or reply.recovering or progress.feeding is Feeding.PROBE
    ):
        _find_out(raft, reply.source, progress)
    feed(raft, reply.source, progress)


def _find_out(raft: "Raft", peer: int, progress: Progress) -> None:
    # What was sent ahead may be lost, and the limits keep more from being sent. An empty message costs
    # nothing and finds out: it is acknowledged or rejected in its turn.
    progress.probe_sent = False
    if progress.fetching:
        return
    if progress.next_index <= raft.log.start_index:
        progress.probe_again()  # retention has overtaken it: it will need a snapshot
    elif progress.feeding is Feeding.REPLICATE or progress.next_index > raft.log.last_index:
        _send_append(raft, peer, progress, [], 0)
    # Otherwise the probe itself goes out again.


def lost_contact(raft: "Raft", peer: int) -> None:
    """The connection to a follower broke. It may come back with less than it acknowledged, and not know: it
    is asked, even if there is nothing to send."""
    progress = raft.progress.get(peer)
    if progress is not None and progress.feeding is Feeding.REPLICATE:
        progress.probe_again()


def advance_commit(raft: "Raft") -> None:
    """Commit what a majority of the voters has on disk, if it is of this term (paper, 5.4.2)."""
    if raft.commit_index == raft.log.last_index:
        return
    voters = raft.configuration.voters
    held = sorted(
        raft.stable_index if voter == raft.replica else raft.progress[voter].counted_index for voter in voters
    )
    index = held[len(voters) - raft.configuration.quorum]
    if index <= raft.commit_index or raft.log.term(index) != raft.term:
        return
    raft.uncommitted_bytes -= raft.log.payload_bytes(raft.commit_index + 1, index)
    raft.commit(index)
    if raft.replica not in voters and raft.configuration_history[-1][0] <= index:
        # Our own removal is settled: tell the others so, and go.
        send_heartbeats(raft)
        raft.become_follower(raft.term, None)


def term_is_open(raft: "Raft") -> bool:
    """Whether this leader has committed an entry of its own term, and so knows what is committed."""
    return raft.role is Role.LEADER and raft.commit_index >= raft.term_start_index


def begin_reads(raft: "Raft") -> None:
    """Ask for confirmation of everything that waits, in one round."""
    if raft.reads.waiting and term_is_open(raft):
        raft.reads.begin_round(raft.commit_index)
        send_heartbeats(raft)
        _settle_reads(raft)  # a group of one is its own majority


def _settle_reads(raft: "Raft") -> None:
    voters = raft.configuration.voters
    answered = sorted(
        raft.reads.round if voter == raft.replica else raft.progress[voter].read_round for voter in voters
    )
    raft.answer_reads(raft.reads.confirmed(answered[len(voters) - raft.configuration.quorum]))


def transfer(raft: "Raft", target: int) -> Refusal | None:
    """Stop taking proposals, bring the target up to date, tell it to campaign."""
    if raft.role is not Role.LEADER:
        return Refusal.NOT_LEADER
    if target not in raft.configuration.voters:
        return Refusal.NOT_A_VOTER
    if target == raft.replica:
        raft.transfer_target = None  # asked to stay: a transfer under way is called off
        return None
    if target != raft.transfer_target:  # asked for again, its time limit is still the first one
        raft.transfer_target = target
        raft.transfer_ticks = 0
    _hand_over_if_caught_up(raft)
    return None


def _hand_over_if_caught_up(raft: "Raft") -> None:
    target = raft.transfer_target
    if target is not None and raft.progress[target].match_index == raft.log.last_index:
        raft.send(TimeoutNow(source=raft.replica, target=target, term=raft.term))
