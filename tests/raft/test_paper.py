"""What the Raft paper and the thesis claim, claim by claim, on the core alone.

Sections 5 to 8 are those of the extended paper ("In Search of an Understandable Consensus Algorithm");
"thesis" is Ongaro's "Consensus: Bridging Theory and Practice". We ask for pre-votes always, so an
election takes two rounds where the paper has one.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from raft.cores import (
    SETTINGS,
    TIMEOUT,
    Core,
    Group,
    append,
    is_noop,
    make,
    make_leader,
    make_settled_leader,
    request_vote,
)
from talweg.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Raft,
    Refusal,
    RequestVote,
    Role,
    Snapshot,
    TimeoutNow,
    VoteReply,
    singly,
)

pytestmark = pytest.mark.usefixtures("each_way")


def make_candidate(terms: Sequence[int] = (), *, voters: Sequence[int] = (1, 2, 3)) -> Core:
    """One that has won the pre-vote and waits for votes."""
    core = make(1, voters, terms=terms)
    core.campaign()
    for voter in voters:
        core.step(VoteReply(source=voter, target=1, term=core.raft.term + 1, granted=True, pre=True))
        if core.raft.role is Role.CANDIDATE:
            break
    assert core.raft.role is Role.CANDIDATE
    return core


def make_in_role(role: Role) -> Core:
    if role is Role.LEADER:
        return make_leader()
    if role is Role.CANDIDATE:
        return make_candidate()
    core = make(term=1)
    if role is Role.PRE_CANDIDATE:
        core.campaign()
    assert core.raft.role is role
    return core


def messages_of_every_kind(term: int) -> list[Message]:
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": term}
    return [
        Append(**ends, prev_index=0, prev_term=0, entries=[], commit=0),
        AppendReply(**ends, index=0),
        Heartbeat(**ends, commit=0),
        HeartbeatReply(**ends),
        InstallSnapshot(**ends, snapshot=Snapshot(5, 1, Configuration.of([1, 2, 3]), b"")),
        VoteReply(**ends, granted=False),
    ]


# 5.1 Raft basics


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", range(6))
def test_5_1_a_newer_term_makes_anyone_a_follower_in_it(role: Role, kind: int) -> None:
    core = make_in_role(role)
    message = messages_of_every_kind(core.raft.term + 5)[kind]
    core.step(message)
    assert (core.raft.role, core.raft.term) == (Role.FOLLOWER, message.term)
    assert core.hard_state.term == message.term


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE])
def test_5_1_a_candidate_with_a_newer_term_makes_anyone_without_a_leader_follow(role: Role) -> None:
    core = make_in_role(role)
    core.step(request_vote(term=core.raft.term + 5))
    assert (core.raft.role, core.raft.term) == (Role.FOLLOWER, core.hard_state.term)


@pytest.mark.parametrize(
    "message",
    [
        append(term=2, terms=[2]),
        Heartbeat(source=2, target=1, term=2, commit=1),
        request_vote(term=2, last=(9, 2)),
        request_vote(term=2, last=(9, 2), pre=True),
        InstallSnapshot(
            source=2, target=1, term=2, snapshot=Snapshot(5, 2, Configuration.of([1, 2, 3]), b"")
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_5_1_a_request_of_a_stale_term_is_rejected_with_the_current_one(message: Message) -> None:
    core = make(term=3)
    (reply,) = core.step(message)
    assert (reply.target, reply.term) == (2, 3)
    assert getattr(reply, "rejected", True) is True
    assert getattr(reply, "granted", False) is False
    assert (core.terms, core.raft.vote, core.raft.leader, core.raft.commit_index) == ([], None, None, 0)


def test_5_1_a_reply_of_a_stale_term_is_ignored() -> None:
    core = make_leader(terms=[1, 2], term=4)
    before = repr(core.raft.progress)
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": 4}
    assert core.step(AppendReply(**ends, index=3), HeartbeatReply(**ends, round=9)) == []
    assert core.step(AppendReply(**ends, index=2, rejected=True)) == []
    assert (repr(core.raft.progress), core.raft.commit_index) == (before, 0)


# 5.2 Leader election


def test_5_2_everyone_starts_as_a_follower() -> None:
    assert make().raft.role is Role.FOLLOWER


def test_5_2_a_leader_sends_heartbeats_to_all_followers() -> None:
    core = make_settled_leader(voters=(1, 2, 3), learners=(4,))
    sent = core.tick(SETTINGS.heartbeat_ticks)
    assert [(type(message), message.target, message.term) for message in sent] == [
        (Heartbeat, target, 1) for target in (2, 3, 4)
    ]


def test_5_2_heartbeats_keep_a_follower_from_standing() -> None:
    core = make(term=1)
    for _ in range(5):
        core.tick(TIMEOUT - 1)
        core.step(Heartbeat(source=2, target=1, term=1, commit=0))
    assert (core.raft.role, core.raft.leader) == (Role.FOLLOWER, 2)


def test_5_2_a_follower_that_hears_nothing_stands_in_the_next_term() -> None:
    core = make(term=1)
    assert core.tick(TIMEOUT - 1) == []
    asked = core.tick()
    assert [(message.target, message.term) for message in asked] == [(2, 2), (3, 2)]
    requests = core.step(VoteReply(source=2, target=1, term=2, granted=True, pre=True))
    assert requests == [RequestVote(source=1, target=to, term=2, last_index=0, last_term=0) for to in (2, 3)]
    assert (core.raft.role, core.raft.term, core.raft.vote) == (Role.CANDIDATE, 2, 1)


@pytest.mark.parametrize(
    ("voters", "grants", "elected"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (3, 2, True),
        (4, 1, False),
        (4, 2, True),
        (5, 1, False),
        (5, 2, True),
        (7, 2, False),
        (7, 3, True),
    ],
)
def test_5_2_a_majority_of_votes_elects_and_nothing_less(voters: int, grants: int, elected: bool) -> None:
    core = make(1, range(1, voters + 1))
    core.campaign()
    for voter in range(2, voters + 1):
        core.step(VoteReply(source=voter, target=1, term=1, granted=True, pre=True))
    for voter in range(2, 2 + grants):
        core.step(VoteReply(source=voter, target=1, term=1, granted=True))
    assert (core.raft.role is Role.LEADER) is elected


def test_5_2_one_vote_a_term_first_come_first_served() -> None:
    core = make()
    (first,) = core.step(request_vote(term=1, source=2))
    (second,) = core.step(request_vote(term=1, source=3))
    assert [reply.granted for reply in (first, second) if isinstance(reply, VoteReply)] == [True, False]
    (third,) = core.step(request_vote(term=2, source=3))
    assert isinstance(third, VoteReply)
    assert third.granted


def test_5_2_no_term_has_two_leaders_however_votes_travel() -> None:
    """Three candidates in one term: in every order of arrival, of requests and replies, one wins at most."""
    for order in itertools.permutations([(1, 2), (1, 3), (2, 3), (2, 1), (3, 1), (3, 2)]):
        cores = {replica: make(replica) for replica in (1, 2, 3)}
        requests: dict[tuple[int, int], Message] = {}
        for core in cores.values():
            core.campaign()
            sent = core.step(*[VoteReply(source=9, target=1, term=1, granted=True, pre=True)])
            other = core.raft.replica % 3 + 1
            sent += core.step(
                VoteReply(source=other, target=core.raft.replica, term=1, granted=True, pre=True)
            )
            requests |= {(message.source, message.target): message for message in sent}
        for pair in order:
            for reply in cores[pair[1]].step(requests[pair]):
                cores[reply.target].step(reply)
        assert sum(core.raft.role is Role.LEADER for core in cores.values()) <= 1


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
@pytest.mark.parametrize("newer", [0, 1])
def test_5_2_a_candidate_falls_back_when_a_current_leader_speaks(role: Role, newer: int) -> None:
    for kind in (append(term=1), Heartbeat(source=2, target=1, term=1, commit=0)):
        core = make_in_role(role)
        term = core.raft.term + newer
        core.step(_in_term(kind, term))
        assert (core.raft.role, core.raft.leader, core.raft.term) == (Role.FOLLOWER, 2, term)


def _in_term(message: Message, term: int) -> Message:
    if isinstance(message, Append):
        return append(term=term)
    return Heartbeat(source=message.source, target=message.target, term=term, commit=0)


def test_5_2_a_candidate_does_not_fall_back_for_a_leader_of_the_past() -> None:
    core = make_candidate([1, 2])
    core.step(append(term=2, prev=(2, 2)))
    assert (core.raft.role, core.raft.term) == (Role.CANDIDATE, 3)


def test_5_2_a_candidate_that_most_refuse_gives_up() -> None:
    core = make_candidate()
    for voter in (2, 3):
        core.step(VoteReply(source=voter, target=1, term=1, granted=False))
    assert core.raft.role is Role.FOLLOWER


def test_5_2_a_split_vote_ends_in_a_new_election() -> None:
    core = make_candidate()
    core.step(VoteReply(source=2, target=1, term=1, granted=False))
    assert core.raft.role is Role.CANDIDATE
    asked = core.tick(TIMEOUT)
    assert {(type(message), message.term) for message in asked} == {(RequestVote, 2)}
    core.grant(2, 3)
    assert (core.raft.role, core.raft.term) == (Role.LEADER, 2)


def test_5_2_every_wait_for_a_leader_is_a_new_random_one() -> None:
    waits = iter([12, 17, 11, 19, 15])
    core = Core(Raft(1, Configuration.of([1, 2, 3]), settings=SETTINGS, election_timeout=lambda: next(waits)))
    campaigns = [tick for tick in range(1, 61) if core.tick()]
    assert campaigns == [12, 12 + 17, 12 + 17 + 11, 12 + 17 + 11 + 19]


# 5.3 Log replication


def test_5_3_a_leader_sends_each_entry_with_the_place_it_follows() -> None:
    core = make_settled_leader()
    sent = core.propose(b"a", b"b")
    assert [message.target for message in sent] == [2, 3]
    for message in sent:
        assert isinstance(message, Append)
        assert (message.prev_index, message.prev_term, message.term, message.commit) == (1, 1, 1, 1)
        assert singly(message.entries) == [Entry(2, 1, 2, b"a"), Entry(3, 1, 2, b"b")]


@pytest.mark.parametrize(
    ("voters", "acknowledged", "committed"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (3, 0, False), (3, 1, True), (5, 1, False), (5, 2, True)],
)
def test_5_3_an_entry_is_committed_when_a_majority_holds_it(
    voters: int, acknowledged: int, committed: bool
) -> None:
    core = make_settled_leader(voters=range(1, voters + 1))
    core.propose(b"a")
    for follower in range(2, 2 + acknowledged):
        core.acknowledge(follower, 2)
    assert core.raft.commit_index == (2 if committed else 1)


def test_5_3_committing_an_entry_commits_all_that_precede_it() -> None:
    core = make_leader(terms=[1, 1, 2])
    core.acknowledge(2, 4)
    assert core.raft.commit_index == 4


def test_5_3_followers_learn_of_a_commit_from_what_the_leader_sends_next() -> None:
    group = Group.of(3)
    group.elect(1)
    group.propose(1, b"a")
    assert [core.raft.commit_index for core in group] == [2, 1, 1]
    group.propose(1, b"b")
    assert [core.raft.commit_index for core in group] == [3, 2, 2]
    group.tick(SETTINGS.heartbeat_ticks)
    assert [core.raft.commit_index for core in group] == [3, 3, 3]


@pytest.mark.parametrize(("leader_commit", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3), (5, 3)])
def test_5_3_a_follower_commits_no_more_than_it_is_known_to_share(leader_commit: int, expected: int) -> None:
    core = make(terms=[1, 1, 1, 1, 1])
    core.step(append(term=1, prev=(2, 1), terms=[1], commit=leader_commit))
    assert core.raft.commit_index == expected


@pytest.mark.parametrize(
    ("prev", "accepted"), [((0, 0), True), ((1, 1), True), ((2, 2), True), ((1, 2), False), ((2, 1), False)]
)
def test_5_3_an_append_is_accepted_only_after_an_entry_that_both_hold(
    prev: tuple[int, int], accepted: bool
) -> None:
    core = make(terms=[1, 2])
    (reply,) = core.step(append(term=2, prev=prev))
    assert isinstance(reply, AppendReply)
    assert reply.rejected is not accepted
    if not accepted:
        assert reply.index == prev[0]
        assert (reply.hint_index, reply.hint_term) < prev


def test_5_3_an_append_beyond_the_end_of_the_log_is_rejected() -> None:
    core = make(terms=[1, 2])
    (reply,) = core.step(append(term=3, prev=(9, 3), terms=[3]))
    assert reply == AppendReply(source=1, target=2, term=3, index=9, rejected=True, hint_index=2, hint_term=2)
    assert core.terms == [1, 2]


@pytest.mark.parametrize(
    ("prev", "sent", "expected", "removed_from"),
    [
        ((2, 2), [3], [1, 2, 3], None),
        ((1, 1), [3, 4], [1, 3, 4], 2),
        ((0, 0), [1], [1, 2], None),
        ((0, 0), [3], [3], 1),
        ((0, 0), [1, 2], [1, 2], None),
        ((0, 0), [1, 2, 3], [1, 2, 3], None),
        ((0, 0), [1, 3], [1, 3], 2),
    ],
)
def test_5_3_conflicting_entries_give_way_to_the_leaders_and_only_those(
    prev: tuple[int, int], sent: list[int], expected: list[int], removed_from: int | None
) -> None:
    core = make(terms=[1, 2])
    core.step(append(term=4, prev=prev, terms=sent))
    assert core.terms == expected
    assert [core.on_disk[index].term for index in sorted(core.on_disk)] == expected
    assert core.readies[-1].truncate_from == removed_from


FIGURE_7 = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)


@pytest.mark.parametrize(
    "follower",
    [
        FIGURE_7[:9],
        FIGURE_7[:4],
        (*FIGURE_7, 6),
        (*FIGURE_7, 7, 7),
        (1, 1, 1, 4, 4, 4, 4),
        (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
    ],
    ids="abcdef",
)
def test_5_3_figure_7_any_log_is_brought_to_the_leaders(follower: tuple[int, ...]) -> None:
    leader = make(1, terms=FIGURE_7, term=7)
    group = Group(leader, make(2, terms=follower, term=7), make(3, term=7))
    leader.campaign()
    group.run(*leader.grant(3))
    assert group[2].terms == group[1].terms == [*FIGURE_7, 8]
    first = max(core.raft.log.tail_first for core in (group[1], group[2]))
    assert singly(group[2].raft.log.tail(first)) == singly(leader.raft.log.tail(first))
    assert group[2].on_disk == leader.on_disk


def test_5_3_rejections_are_fewer_than_the_entries_in_conflict() -> None:
    """The optimisation at the section's end: whole terms are passed over, not single entries."""
    leader = make(1, terms=[1] * 5 + [4] * 45, term=4)
    follower = make(2, terms=[1] * 5 + [2] * 20 + [3] * 25, term=4)
    group = Group(leader, follower, make(3, term=4))
    leader.campaign()
    group.run(*leader.grant(3))
    rejections = [
        message for message in group.delivered if isinstance(message, AppendReply) and message.rejected
    ]
    assert len([message for message in rejections if message.source == 2]) == 1
    assert follower.terms == leader.terms


def test_5_3_a_leader_tries_until_every_follower_has_everything() -> None:
    group = Group.of(3)
    group.elect(1)
    group.isolate(3)
    group.propose(1, b"a")
    group.tick(3 * TIMEOUT)
    group.heal()
    group.tick(4 * SETTINGS.heartbeat_ticks)
    assert group[3].terms == group[1].terms


def test_5_3_a_leader_never_changes_its_own_log() -> None:
    core = make_leader(terms=[1, 2])
    before = core.raft.log.tail(1)
    core.propose(b"a")
    core.step(
        AppendReply(source=2, target=1, term=3, index=2, rejected=True, hint_index=0, hint_term=0),
        AppendReply(source=3, target=1, term=3, index=1),
    )
    assert core.raft.log.tail(1)[: len(before)] == before
    assert all(ready.truncate_from is None for ready in core.readies)


# 5.4 Safety


@pytest.mark.parametrize(
    ("own", "candidate", "granted"),
    [
        ([1], (1, 1), True),
        ([1], (2, 1), True),
        ([1, 1], (1, 1), False),
        ([1], (1, 2), True),
        ([1], (2, 2), True),
        ([1, 1], (1, 2), True),
        ([2], (1, 1), False),
        ([2], (9, 1), False),
        ([1, 2], (1, 2), False),
        ([], (0, 0), True),
    ],
)
@pytest.mark.parametrize("pre", [False, True])
def test_5_4_1_a_voter_denies_a_log_less_up_to_date_than_its_own(
    own: list[int], candidate: tuple[int, int], granted: bool, pre: bool
) -> None:
    core = make(terms=own, term=2)
    (reply,) = core.step(request_vote(term=3, last=candidate, pre=pre))
    assert isinstance(reply, VoteReply)
    assert reply.granted is granted


def test_5_4_1_a_candidate_says_how_far_its_log_goes() -> None:
    core = make(terms=[1, 2, 2])
    asked = [message for message in core.campaign() if isinstance(message, RequestVote)]
    assert {(message.last_index, message.last_term) for message in asked} == {(3, 2)}


def test_5_4_2_only_entries_of_the_own_term_are_committed_by_counting() -> None:
    core = make_leader(terms=[1, 2])  # leads term 3; its no-op is entry 3
    core.acknowledge(2, 2)
    core.acknowledge(3, 2)
    assert core.raft.commit_index == 0
    core.acknowledge(2, 3)
    assert core.raft.commit_index == 3


def test_5_4_2_figure_8_an_old_entry_on_a_majority_may_still_be_overwritten() -> None:
    # (c) S1 leads term 4 and has brought its entry of term 2 to a majority, without its own to any.
    first = make_leader(1, range(1, 6), terms=[1, 2], term=3)
    for follower in (2, 3):
        first.acknowledge(follower, 2)
    assert first.raft.term == 4
    assert first.raft.commit_index == 0
    # (d) S5, which has [1, 3], is elected by S2, S3 and S4, and overwrites it.
    fifth = make(5, range(1, 6), terms=[1, 3], term=3)
    followers = [make(replica, range(1, 6), terms=[1, 2], term=4) for replica in (2, 3)]
    group = Group(fifth, *followers, make(4, range(1, 6), terms=[1], term=3))
    group.tick(TIMEOUT)
    group.run(*fifth.campaign())
    group.tick(TIMEOUT)
    group.run(*fifth.campaign())
    assert group.leaders == [5]
    assert {tuple(core.terms) for core in group} == {(1, 3, fifth.raft.term)}


# 5.5 Follower and candidate crashes: requests are idempotent


def test_5_5_a_repeated_request_changes_nothing() -> None:
    core = make(terms=[1])
    message = append(term=1, prev=(1, 1), terms=[1, 1], commit=1)
    first, second = core.step(message), core.step(message)
    assert first == second
    assert core.terms == [1, 1, 1]
    vote = request_vote(term=3, last=(9, 2))
    assert core.step(vote) == core.step(vote)


# 6 and thesis 4: cluster membership changes


def test_4_1_a_configuration_counts_from_the_moment_it_is_in_the_log() -> None:
    leader = make_settled_leader()
    assert leader.raft.propose_configuration(Configuration.of([1, 2, 3, 4])) is None
    assert leader.raft.configuration.voters == (1, 2, 3, 4)
    sent = leader.pump()
    follower = make(2, terms=[1])
    follower.step(*[message for message in sent if message.target == 2])
    assert follower.raft.configuration.voters == (1, 2, 3, 4)


def test_4_1_a_configuration_that_is_overwritten_no_longer_counts() -> None:
    changed = Configuration.of([1, 2, 3, 4])
    core = make(terms=[1])
    core.step(
        Append(
            source=2,
            target=1,
            term=1,
            prev_index=1,
            prev_term=1,
            entries=[Entry(2, 1, 1, changed.to_bytes())],
            commit=1,
        )
    )
    assert core.raft.configuration == changed
    core.step(append(term=2, prev=(1, 1), terms=[2], source=3))
    assert core.raft.configuration == Configuration.of([1, 2, 3])


def test_4_1_changes_are_made_one_at_a_time() -> None:
    core = make_settled_leader()
    assert core.raft.propose_configuration(Configuration.of([1, 2, 3, 4])) is None
    assert core.raft.propose_configuration(Configuration.of([1, 2, 3])) is Refusal.CHANGE_PENDING
    core.pump()
    core.acknowledge(2, 2)
    assert core.raft.commit_index == 1  # three of four are needed now
    core.acknowledge(3, 2)
    assert core.raft.commit_index == 2
    assert core.raft.propose_configuration(Configuration.of([1, 2, 3])) is None


def test_4_1_a_change_of_two_voters_is_refused() -> None:
    core = make_settled_leader()
    for voters in ([1, 2, 3, 4, 5], [1], [1, 2, 4], []):
        assert core.raft.propose_configuration(Configuration.of(voters)) is Refusal.UNSAFE_CHANGE


def test_4_2_1_a_learner_catches_up_without_delaying_anything() -> None:
    core = make_settled_leader()
    core.raft.propose_configuration(Configuration.of([1, 2, 3], [4]))
    sent = core.pump()
    assert 4 in {message.target for message in sent}
    core.acknowledge(2, 2)
    assert core.raft.commit_index == 2


def test_4_2_2_a_leader_that_is_removed_counts_the_others_and_then_goes() -> None:
    core = make_settled_leader()
    core.raft.propose_configuration(Configuration.of([2, 3]))
    core.pump()
    core.acknowledge(2, 2)
    assert (core.raft.role, core.raft.commit_index) == (Role.LEADER, 1)  # it does not count itself
    sent = core.acknowledge(3, 2)
    assert (core.raft.role, core.raft.commit_index) == (Role.FOLLOWER, 2)
    assert [(message.target, message.commit) for message in sent if isinstance(message, Heartbeat)] == [
        (2, 2),
        (3, 2),
    ]
    assert core.tick(5 * TIMEOUT) == []  # and does not stand again


def test_4_2_3_a_removed_server_cannot_disturb_those_that_hear_their_leader() -> None:
    core = make(term=1)
    core.step(Heartbeat(source=2, target=1, term=1, commit=0))
    core.tick(TIMEOUT - 1)
    for pre in (True, False):
        assert core.step(request_vote(term=9, last=(9, 9), source=3, pre=pre)) == []
    assert (core.raft.term, core.raft.leader, core.raft.role) == (1, 2, Role.FOLLOWER)
    assert core.tick(1)  # the silence counts on: it is only the stranger who is not heard


# 7: log compaction


def test_7_a_snapshot_takes_the_place_of_a_log_that_ends_before_it() -> None:
    core = make(terms=[1, 1], commit=1)
    snapshot = Snapshot(9, 2, Configuration.of([1, 2, 3, 4]), b"state")
    (reply,) = core.step(InstallSnapshot(source=2, target=1, term=2, snapshot=snapshot))
    assert reply == AppendReply(source=1, target=2, term=2, index=9)
    assert (core.raft.log.start_index, core.raft.log.last_index, core.terms) == (9, 9, [])
    assert (core.raft.commit_index, core.raft.configuration) == (9, snapshot.configuration)
    assert core.readies[-1].snapshot == snapshot


def test_7_a_snapshot_of_a_prefix_leaves_the_entries_after_it() -> None:
    core = make(terms=[1, 1, 2, 2])
    snapshot = Snapshot(3, 2, Configuration.of([1, 2, 3]), b"state")
    (reply,) = core.step(InstallSnapshot(source=2, target=1, term=2, snapshot=snapshot))
    assert isinstance(reply, AppendReply)
    assert (reply.index, reply.rejected) == (3, False)
    assert (core.terms, core.raft.commit_index) == ([1, 1, 2, 2], 3)
    assert core.readies[-1].snapshot is None


def test_7_a_leader_sends_a_snapshot_when_it_has_dropped_what_a_follower_needs() -> None:
    group = Group.of(3)
    leader = group.elect(1)
    group.isolate(3)
    group.propose(1, b"a", b"b", b"c")
    leader.snapshot = Snapshot(4, 1, leader.raft.configuration, b"state")
    leader.raft.drop_head(4)
    group.heal()
    group.tick(4 * SETTINGS.heartbeat_ticks)
    assert any(isinstance(message, InstallSnapshot) for message in group.delivered)
    group.propose(1, b"d")
    assert (group[3].raft.log.start_index, group[3].raft.log.last_index) == (4, 5)


# 8: client interaction


def test_8_a_leader_opens_its_term_with_a_no_op() -> None:
    core = make(terms=[1, 1])
    core.campaign()
    sent = [message for message in core.grant(2) if isinstance(message, Append)]
    assert [[is_noop(entry) for entry in message.entries] for message in sent] == [[True], [True]]
    assert {(message.prev_index, message.entries[0].term) for message in sent} == {(2, 2)}


def test_8_a_read_waits_until_the_leader_knows_what_is_committed() -> None:
    core = make_leader(terms=[1])
    core.raft.read(7)
    core.pump()
    core.step(HeartbeatReply(source=2, target=1, term=2, round=0))
    assert core.reads == []
    core.acknowledge(2, 2)
    core.step(HeartbeatReply(source=2, target=1, term=2, round=1))
    assert core.reads == [(7, 2)]


# Thesis 3.10: leadership transfer


def test_3_10_a_transfer_stops_proposals_and_lets_the_target_stand_at_once() -> None:
    core = make_settled_leader()
    assert core.raft.transfer(2) is None
    assert core.raft.refuses(1) is Refusal.TRANSFERRING
    assert core.pump() == [TimeoutNow(source=1, target=2, term=1)]


def test_3_10_the_target_is_brought_up_to_date_first() -> None:
    core = make_settled_leader()
    core.propose(b"a")
    core.raft.transfer(3)
    assert core.pump() == []
    core.acknowledge(2, 2)
    assert core.acknowledge(3, 2) == [TimeoutNow(source=1, target=3, term=1)]


def test_3_10_the_target_does_not_wait_for_its_timeout_nor_do_voters_stand_by_the_leader() -> None:
    target = make(2, term=1)
    target.step(Heartbeat(source=1, target=2, term=1, commit=0))
    requests = target.step(TimeoutNow(source=1, target=2, term=1))
    assert requests == [
        RequestVote(source=2, target=to, term=2, last_index=0, last_term=0, transfer=True) for to in (1, 3)
    ]
    voter = make(3, term=1)
    voter.step(Heartbeat(source=1, target=3, term=1, commit=0))
    (reply,) = voter.step(requests[1])
    assert isinstance(reply, VoteReply)
    assert reply.granted


def test_3_10_a_transfer_that_does_not_happen_within_an_election_timeout_is_called_off() -> None:
    core = make_settled_leader()
    core.propose(b"a")
    core.raft.transfer(2)
    for _ in range(TIMEOUT):
        assert core.raft.refuses(1) is Refusal.TRANSFERRING
        core.tick()
        core.step(HeartbeatReply(source=3, target=1, term=1))
    assert core.raft.refuses(1) is None


# Thesis 6.2: a leader that does not hear a majority steps down


@pytest.mark.parametrize(
    ("voters", "heard", "leads"), [(3, 0, False), (3, 1, True), (5, 1, False), (5, 2, True)]
)
def test_6_2_a_leader_steps_down_unless_a_majority_is_heard(voters: int, heard: int, leads: bool) -> None:
    core = make_settled_leader(voters=range(1, voters + 1))
    for _ in range(TIMEOUT):
        core.tick()
        for follower in range(2, 2 + heard):
            core.step(HeartbeatReply(source=follower, target=1, term=1))
    assert (core.raft.role is Role.LEADER) is leads
    assert core.raft.term == 1


# Thesis 6.4: read-only queries


def test_6_4_a_read_is_answered_after_a_majority_has_confirmed_the_leader() -> None:
    core = make_settled_leader(voters=range(1, 6))
    core.raft.read(7)
    heartbeats = [message for message in core.pump() if isinstance(message, Heartbeat)]
    assert {message.round for message in heartbeats} == {1}
    core.step(HeartbeatReply(source=2, target=1, term=1, round=1))
    assert core.reads == []
    core.step(HeartbeatReply(source=2, target=1, term=1, round=1))  # the same one again is one voice
    assert core.reads == []
    core.step(HeartbeatReply(source=3, target=1, term=1, round=1))
    assert core.reads == [(7, 1)]


def test_6_4_an_answer_to_an_earlier_heartbeat_confirms_nothing() -> None:
    core = make_settled_leader()
    core.raft.read(7)
    core.pump()
    core.step(HeartbeatReply(source=2, target=1, term=1, round=0))
    assert core.reads == []


def test_6_4_the_index_is_that_of_the_moment_of_the_request() -> None:
    core = make_settled_leader()
    core.raft.read(7)
    core.pump()
    core.propose(b"a")
    core.acknowledge(2, 2)
    core.step(HeartbeatReply(source=2, target=1, term=1, round=1))
    assert core.reads == [(7, 1)]


def test_6_4_learners_confirm_nothing() -> None:
    core = make_settled_leader(learners=(4, 5))
    core.raft.read(7)
    core.pump()
    for learner in (4, 5):
        core.step(HeartbeatReply(source=learner, target=1, term=1, round=1))
    assert core.reads == []


# Thesis 9.6: pre-vote


def test_9_6_a_pre_vote_changes_nobodys_term_or_vote() -> None:
    voter, candidate = make(1, term=1), make(2, term=1)
    requests = [message for message in candidate.campaign() if message.target == 1]
    (reply,) = voter.step(*requests)
    assert reply == VoteReply(source=1, target=2, term=2, granted=True, pre=True)
    assert [(core.raft.term, core.raft.vote) for core in (voter, candidate)] == [(1, None), (1, None)]


def test_9_6_a_server_that_was_cut_off_keeps_its_term() -> None:
    group = Group.of(3)
    group.elect(1)
    group.isolate(3)
    group.tick(10 * TIMEOUT)
    assert (group[3].raft.term, group[3].raft.role) == (1, Role.PRE_CANDIDATE)
    group.heal()
    group.tick(2 * TIMEOUT)
    assert group.leaders == [1]
    assert [core.raft.term for core in group] == [1, 1, 1]


def test_9_6_a_pre_vote_is_refused_by_those_who_hear_a_leader() -> None:
    core = make(term=1)
    core.step(Heartbeat(source=2, target=1, term=1, commit=0))
    assert core.step(request_vote(term=2, source=3, pre=True)) == []


def test_9_6_pre_votes_of_an_earlier_campaign_do_not_count() -> None:
    core = make(1, range(1, 6), term=1)
    core.campaign()
    core.step(VoteReply(source=2, target=1, term=2, granted=True, pre=True))
    core.step(Heartbeat(source=3, target=1, term=2, commit=0))  # term 2 has its leader meanwhile
    core.tick(TIMEOUT)
    for voter in (3, 4):
        core.step(VoteReply(source=voter, target=1, term=2, granted=True, pre=True))
    assert (core.raft.role, core.raft.term) == (Role.PRE_CANDIDATE, 2)
