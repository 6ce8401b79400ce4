"""The checklist of the consensus core, item by item: each test is named for the item it guards.

Items 17 (one connection for a pair of brokers) and 18 (incarnations) are about the host of many groups,
not about the core: they are tested with it. Where a scenario file shows an item, the test names it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import talweg.raft
from raft.commands import committed
from raft.cores import (
    SETTINGS,
    TIMEOUT,
    Core,
    Group,
    append,
    entries,
    is_noop,
    make,
    make_leader,
    make_settled_leader,
    request_vote,
    trace,
)
from raft.load import read_all
from raft.stage import Stage
from talweg.errors import TalwegError
from talweg.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    Feeding,
    FetchEntries,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Log,
    Message,
    Raft,
    Refusal,
    RequestVote,
    Role,
    Settings,
    Snapshot,
    TimeoutNow,
    VoteReply,
    singly,
)
from talweg.records import Kind, encode_values, read_header
from talweg.replication.proposals import Outcome
from talweg.replication.replica import Replica
from talweg.replication.state import Position

pytestmark = pytest.mark.usefixtures("each_way")

TWO_HEARTBEATS = 2 * SETTINGS.heartbeat_ticks


# 1. Same seed, same trace.


def test_01_the_same_seed_gives_the_same_trace() -> None:
    """Item 1."""
    assert trace(7) == trace(7)
    assert trace(7) != trace(8)
    assert any("entries=[Entry" in line for line in trace(7))


def test_01_not_even_another_process_changes_the_trace() -> None:
    """Item 1: nothing depends on how this process happens to hash."""
    program = (
        "from raft.cores import trace; import hashlib; "
        "print(hashlib.sha256(repr(trace(7)).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_01_the_core_knows_neither_clock_nor_chance_nor_the_world() -> None:
    """Item 1: what it does not import it cannot depend on."""
    allowed = {"bisect", "collections", "collections.abc", "enum", "msgspec", "struct", "typing"}
    for path in Path(talweg.raft.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert all(name in allowed or name.startswith("talweg.raft") for name in names), (
                path.name,
                names,
            )


# 2. Term and vote durable before a vote leaves. Never two votes in one term, crash or not.


def restarted(core: Core) -> Core:
    """The same replica with what was on its disk."""
    held = [core.on_disk[index] for index in sorted(core.on_disk)]
    log = Log()
    if held:
        log.append(held)
    raft = Raft(
        core.raft.replica,
        Configuration.of([1, 2, 3]),
        log=log,
        hard_state=core.hard_state,
        settings=SETTINGS,
        election_timeout=lambda: TIMEOUT,
    )
    return Core(raft, held)


def grants(messages: list[Message]) -> list[bool]:
    return [message.granted for message in messages if isinstance(message, VoteReply)]


def test_02_a_vote_leaves_only_when_it_is_durable() -> None:
    """Item 2."""
    core = make()
    core.disk_runs = False
    assert core.step(request_vote(term=1, source=2)) == []
    assert core.hard_state == HardState(0, None)
    core.disk_runs = True
    assert grants(core.pump()) == [True]
    assert core.hard_state == HardState(1, 2)


def test_02_a_crash_makes_nobody_vote_twice_in_one_term() -> None:
    """Item 2."""
    core = make()
    assert grants(core.step(request_vote(term=1, source=2))) == [True]
    core = restarted(core)
    assert grants(core.step(request_vote(term=1, source=3))) == [False]
    assert grants(core.step(request_vote(term=1, source=2))) == [True]


def test_02_a_vote_that_a_crash_prevented_was_never_given() -> None:
    """Item 2."""
    core = make()
    core.disk_runs = False
    assert core.step(request_vote(term=1, source=2)) == []
    core = restarted(core)
    assert grants(core.step(request_vote(term=1, source=3))) == [True]


def test_02_a_candidate_asks_for_votes_once_its_own_is_durable() -> None:
    """Item 2: otherwise it could forget it and give it to another."""
    core = make()
    core.campaign()
    core.disk_runs = False
    granted = VoteReply(source=2, target=1, term=1, granted=True, pre=True)
    assert [message for message in core.step(granted) if isinstance(message, RequestVote)] == []
    assert core.raft.votes == {}
    core.disk_runs = True
    assert {type(message) for message in core.pump()} == {RequestVote}
    assert core.hard_state == HardState(1, 1)
    assert core.raft.votes == {1: True}


def test_02_a_group_of_one_is_not_led_before_the_vote_is_durable() -> None:
    """Item 2."""
    core = make(1, [1])
    core.disk_runs = False
    core.campaign()
    assert core.has_role(Role.CANDIDATE)
    core.disk_runs = True
    core.pump()
    assert core.has_role(Role.LEADER)


def test_02_a_vote_of_an_earlier_term_that_becomes_durable_late_elects_nobody() -> None:
    """Item 2: the disk may be two terms behind."""
    core = make()
    core.campaign()
    core.disk_runs = False
    core.step(VoteReply(source=2, target=1, term=1, granted=True, pre=True))
    core.tick(TIMEOUT)
    core.step(VoteReply(source=2, target=1, term=2, granted=True, pre=True))
    assert (core.raft.term, core.raft.role, core.raft.votes) == (2, Role.CANDIDATE, {})
    core.raft.persisted(core.unwritten.popleft().number)
    assert core.raft.votes == {}


# 3. Entries durable before they are acknowledged; a leader counts itself only once its own write is durable.
#    Scenarios: no_commit_with_disk_down, append_aba_race.


def test_03_a_follower_acknowledges_what_is_durable() -> None:
    """Item 3."""
    core = make(term=1)
    core.disk_runs = False
    assert core.step(append(term=1, terms=[1, 1])) == []
    core.disk_runs = True
    assert core.pump() == [AppendReply(source=1, target=2, term=1, index=2)]
    assert sorted(core.on_disk) == [1, 2]


def test_03_a_repeated_append_is_no_reason_to_acknowledge_earlier() -> None:
    """Item 3: nothing new is to be written, but what was to be written is not yet."""
    core = make(term=1)
    core.disk_runs = False
    core.step(append(term=1, terms=[1, 1]))
    assert core.step(append(term=1, terms=[1, 1])) == []


def test_03_a_leader_counts_itself_only_when_its_own_write_is_durable() -> None:
    """Item 3."""
    core = make_settled_leader(voters=range(1, 6))
    core.disk_runs = False
    core.propose(b"a")
    core.acknowledge(2, 2)
    core.acknowledge(3, 2)
    assert core.raft.commit_index == 1  # two of five, and a third in memory
    core.disk_runs = True
    core.pump()
    assert core.raft.commit_index == 2


def test_03_a_group_of_one_commits_what_is_durable() -> None:
    """Item 3."""
    core = make_leader(1, [1])
    core.disk_runs = False
    core.propose(b"a")
    assert core.raft.commit_index == 1
    core.disk_runs = True
    core.pump()
    assert core.raft.commit_index == 2


def test_03_the_others_may_commit_without_the_leaders_own_disk() -> None:
    """Item 3: a majority is a majority."""
    core = make_settled_leader()
    core.disk_runs = False
    core.propose(b"a")
    core.acknowledge(2, 2)
    core.acknowledge(3, 2)
    assert (core.raft.commit_index, core.raft.stable_index) == (2, 1)


def test_03_what_a_follower_acknowledged_in_an_earlier_life_and_lost_is_not_counted_any_more() -> None:
    """Item 3: it does not know that it lost anything, so it votes; nothing may be committed on its word."""
    core = make_settled_leader(voters=range(1, 6))
    core.propose(b"a")
    core.step(AppendReply(source=2, target=1, term=1, index=2, life=6))
    core.step(AppendReply(source=2, target=1, term=1, index=1, life=7))  # what it still holds
    core.step(
        AppendReply(source=2, target=1, term=1, index=2, rejected=True, hint_index=1, hint_term=1, life=7)
    )
    core.acknowledge(3, 2)
    assert core.raft.commit_index == 1  # the leader and one more of five
    core.step(AppendReply(source=2, target=1, term=1, index=2, life=7))
    assert core.raft.commit_index == 2


def write_one(core: Core) -> list[Message]:
    """The oldest Ready that is not durable becomes so."""
    ready = core.unwritten.popleft()
    core.raft.persisted(ready.number)
    return ready.messages_after


def test_03_a_write_that_was_overtaken_makes_nothing_durable() -> None:
    """Item 3: A, then B in its place, then A again, while the first write is still under way."""
    core = make(terms=[1])
    core.disk_runs = False
    core.step(append(term=1, prev=(1, 1), terms=[1]))
    core.step(append(term=2, prev=(1, 1), terms=[2], source=3))
    core.step(append(term=3, prev=(1, 1), terms=[1, 3], source=2))
    assert core.terms == [1, 1, 3]
    assert [ready.truncate_from for ready in core.unwritten] == [None, 2, 2]
    for expected in (1, 1, 3):
        write_one(core)
        assert core.raft.stable_index == expected


def test_03_a_write_before_a_truncation_that_is_not_yet_taken_makes_nothing_durable() -> None:
    """Item 3: the same, with the truncation still inside the core."""
    core = make(terms=[1])
    core.disk_runs = False
    core.step(append(term=1, prev=(1, 1), terms=[1, 1]))
    core.raft.step(append(term=2, prev=(2, 1), terms=[2], source=3))  # not pumped
    write_one(core)
    assert core.raft.stable_index == 2
    core.raft.step(append(term=3, prev=(1, 1), terms=[3], source=2))
    assert core.raft.stable_index == 1


def test_03_a_write_before_an_install_makes_nothing_durable() -> None:
    """Item 3: what was written is about to be replaced by a snapshot."""
    core = make(terms=[1])
    core.disk_runs = False
    core.step(append(term=1, prev=(1, 1), terms=[1, 1]))
    snapshot = Snapshot(9, 2, Configuration.of([1, 2, 3]), b"")
    install = InstallSnapshot(source=3, target=1, term=2, snapshot=snapshot)
    assert core.step(install) == []
    write_one(core)
    assert core.raft.stable_index == 0
    assert AppendReply(source=1, target=3, term=2, index=9) in write_one(core)
    assert core.raft.stable_index == 9


def test_03_a_write_before_an_install_that_is_not_yet_taken_makes_nothing_durable() -> None:
    """Item 3: the same, with the snapshot, and what follows it, still inside the core."""
    core = make(terms=[1])
    core.disk_runs = False
    core.step(append(term=1, prev=(1, 1), terms=[1] * 11))
    snapshot = Snapshot(9, 2, Configuration.of([1, 2, 3]), b"")
    core.raft.step(InstallSnapshot(source=3, target=1, term=2, snapshot=snapshot))  # not pumped
    core.raft.step(append(term=2, prev=(9, 2), terms=[2, 2, 2], source=3))  # nor this
    write_one(core)
    assert core.raft.stable_index == 0


# 4. Truncation only on a real term conflict, never at or below the commit index.
#    Scenarios: old_messages, reordered_message, crashed_leader_truncation.


def test_04_a_stale_append_of_the_same_term_truncates_nothing() -> None:
    """Item 4."""
    core = make(term=1)
    core.step(append(term=1, terms=[1, 1, 1]))
    for terms in ([], [1], [1, 1], [1, 1, 1]):
        core.step(append(term=1, terms=terms))
        assert core.terms == [1, 1, 1]
    assert all(ready.truncate_from is None for ready in core.readies)


def test_04_only_what_conflicts_is_replaced() -> None:
    """Item 4: also where the logs part in the midst of a run."""
    core = make(terms=[1, 2, 2, 3], term=4)
    core.step(append(term=4, prev=(1, 1), terms=[2, 2, 2, 2, 4]))
    assert core.terms == [1, 2, 2, 2, 2, 4]
    assert [ready.truncate_from for ready in core.readies if ready.entries] == [4]
    assert core.on_disk == {entry.index: entry for entry in entries(*core.terms)}


def test_04_an_append_before_the_commit_index_is_answered_and_changes_nothing() -> None:
    """Item 4: even if it held something else there, which no leader's can."""
    core = make(term=3)
    core.step(append(term=3, terms=[1, 2, 3], commit=2))
    (reply,) = core.step(append(term=3, prev=(0, 0), terms=[3, 3]))
    assert reply == AppendReply(source=1, target=2, term=3, index=2)
    assert core.terms == [1, 2, 3]


def test_04_an_append_before_the_start_of_the_log_is_answered_with_what_is_committed() -> None:
    """Item 4: a late message about a part that retention has dropped."""
    core = make(terms=[1, 1, 1, 1], commit=3)
    core.raft.drop_head(3)
    assert core.step(append(term=1, prev=(1, 1), terms=[1])) == [
        AppendReply(source=1, target=2, term=1, index=3)
    ]


def test_04_a_heartbeat_truncates_nothing_and_commits_only_what_is_there() -> None:
    """Item 4."""
    core = make(terms=[1, 1, 1])
    for commit in (0, 2, 1, 9):
        core.step(Heartbeat(source=2, target=1, term=1, commit=commit))
        assert core.terms == [1, 1, 1]
    assert core.raft.commit_index == 3


@given(st.data())
def test_04_appends_in_any_order_never_take_back_what_was_acknowledged(data: st.DataObject) -> None:
    """Item 4: slices of one leader's log, late, repeated and reordered, to a follower with another tail."""
    shared = data.draw(st.integers(0, 4), label="shared")
    log = [1] * shared + data.draw(
        st.lists(st.integers(3, 5), min_size=1, max_size=8).map(sorted), label="log"
    )
    own = [1] * shared + data.draw(st.lists(st.just(2), max_size=8), label="own")
    core = make(terms=own, term=5, commit=data.draw(st.integers(0, shared), label="commit") or None)
    acknowledged = 0
    for _ in range(data.draw(st.integers(1, 12), label="messages")):
        first = data.draw(st.integers(0, len(log)))
        last = data.draw(st.integers(first, len(log)))
        prev = (first, log[first - 1] if first else 0)
        commit_before = core.raft.commit_index
        commit, in_runs = data.draw(st.integers(0, last)), data.draw(st.booleans())
        sent = core.step(append(term=5, prev=prev, terms=log[first:last], commit=commit, in_runs=in_runs))
        for reply in sent:
            assert isinstance(reply, AppendReply)
            if not reply.rejected:
                acknowledged = max(acknowledged, reply.index)
        assert core.terms[:acknowledged] == log[:acknowledged]
        assert [core.on_disk[index].term for index in range(1, acknowledged + 1)] == log[:acknowledged]
        assert core.raft.commit_index >= commit_before
        assert core.terms[: core.raft.commit_index] == log[: core.raft.commit_index]


# 5. Only entries of the current term are committed by counting; a no-op opens each term.
#    Scenario: figure8_no_commit_of_old_term.


def test_05_old_entries_on_every_disk_are_not_committed_by_counting() -> None:
    """Item 5."""
    core = make_leader(terms=[1, 1, 2])
    for follower in (2, 3):
        core.acknowledge(follower, 3)
    assert core.raft.commit_index == 0
    core.acknowledge(2, 4)
    assert core.raft.commit_index == 4


def test_05_every_leader_opens_its_term_with_a_no_op() -> None:
    """Item 5."""
    group = Group.of(3)
    for replica in (1, 2, 3):
        group.tick(TIMEOUT)
        for core in group:
            core.raft.become_follower(core.raft.term, None)
        leader = group.elect(replica)
        assert is_noop(leader.on_disk[leader.raft.term_start_index])
        assert leader.on_disk[leader.raft.term_start_index].term == leader.raft.term


# 6. Every reply carries the term; a stale leader is answered and steps down.
#    Scenarios: old_messages, free_stuck_candidate.


@pytest.mark.parametrize(
    "answer",
    [
        lambda ends: AppendReply(**ends, index=0, rejected=True),
        lambda ends: HeartbeatReply(**ends),
        lambda ends: VoteReply(**ends, granted=False),
        lambda ends: VoteReply(**ends, granted=False, pre=True),
    ],
)
def test_06_any_answer_with_a_newer_term_makes_a_leader_step_down(
    answer: Callable[[dict[str, int]], Message],
) -> None:
    """Item 6."""
    core = make_settled_leader()
    core.step(answer({"source": 2, "target": 1, "term": 5}))
    assert (core.raft.role, core.raft.term) == (Role.FOLLOWER, 5)


def test_06_whatever_a_stale_leader_sends_is_answered_with_the_newer_term() -> None:
    """Item 6."""
    stale = make_settled_leader()
    others = make(2, term=7)
    sent = stale.propose(b"a") + stale.tick(SETTINGS.heartbeat_ticks)
    answers = others.step(*[message for message in sent if message.target == 2])
    assert len(answers) == 2
    assert {answer.term for answer in answers} == {7}
    stale.step(answers[0])
    assert (stale.raft.role, stale.raft.term) == (Role.FOLLOWER, 7)


# 7. Votes are deduplicated; granting again is idempotent.


@pytest.mark.parametrize("pre", [True, False])
def test_07_a_vote_that_arrives_again_and_again_counts_once(pre: bool) -> None:
    """Item 7."""
    core = make(1, range(1, 6))
    core.campaign()
    if not pre:
        for voter in (2, 3):
            core.step(VoteReply(source=voter, target=1, term=1, granted=True, pre=True))
    role = core.raft.role
    for _ in range(5):
        core.step(VoteReply(source=2, target=1, term=1, granted=True, pre=pre))
    assert core.raft.role is role
    core.step(VoteReply(source=3, target=1, term=1, granted=True, pre=pre))
    assert core.raft.role > role


def test_07_refusals_count_once_too() -> None:
    """Item 7."""
    core = make(1, range(1, 6))
    core.campaign()
    for voter in (2, 3):
        core.step(VoteReply(source=voter, target=1, term=1, granted=True, pre=True))
    for _ in range(5):
        core.step(VoteReply(source=2, target=1, term=1, granted=False))
    assert core.raft.role is Role.CANDIDATE


def test_07_votes_of_strangers_and_learners_do_not_count() -> None:
    """Item 7: one voter, one voice; everyone else none."""
    core = make(1, range(1, 4), learners=(4,))
    core.campaign()
    for stranger in (4, 8, 9):
        core.step(VoteReply(source=stranger, target=1, term=1, granted=True, pre=True))
    assert core.raft.role is Role.PRE_CANDIDATE


def test_07_granting_again_gives_the_same_answer_and_writes_nothing() -> None:
    """Item 7."""
    core = make()
    first = core.step(request_vote(term=1, source=2))
    writes = [ready for ready in core.readies if ready.must_persist]
    assert core.step(request_vote(term=1, source=2)) == first
    assert [ready for ready in core.readies if ready.must_persist] == writes


def test_07_votes_of_an_earlier_term_are_not_carried_over() -> None:
    """Item 7."""
    core = make()
    core.campaign()
    core.step(VoteReply(source=2, target=1, term=1, granted=True, pre=True))
    core.tick(TIMEOUT)
    core.step(VoteReply(source=2, target=1, term=2, granted=True, pre=True))
    assert core.raft.term == 2
    core.step(VoteReply(source=3, target=1, term=1, granted=True))
    assert core.raft.role is Role.CANDIDATE


# 8. Pre-vote and check-quorum. Scenarios: prevote, prevote_checkquorum, checkquorum, disruptive_follower.


def test_08_a_replica_that_rejoins_starts_no_election() -> None:
    """Item 8."""
    group = Group.of(3)
    group.elect(1)
    group.isolate(3)
    group.tick(10 * TIMEOUT)
    group.propose(1, b"a")
    group.heal()
    group.tick(2 * TIMEOUT)
    assert group.leaders == [1]
    assert {core.raft.term for core in group} == {1}
    assert group[3].terms == group[1].terms


def test_08_an_isolated_leader_steps_down_within_one_election_timeout() -> None:
    """Item 8."""
    group = Group.of(5)
    group.elect(1)
    group.tick(SETTINGS.heartbeat_ticks)
    for other in (2, 3, 4):
        group.cut |= {(1, other), (other, 1)}
    group.tick(TIMEOUT)
    assert group[1].raft.role is Role.FOLLOWER


def test_08_a_new_leader_is_given_one_election_timeout_to_be_heard() -> None:
    """Item 8."""
    core = make_leader()
    core.tick(TIMEOUT - 1)
    assert core.has_role(Role.LEADER)
    core.tick()
    assert core.has_role(Role.FOLLOWER)


def test_08_who_is_no_voter_any_more_no_longer_counts_as_heard() -> None:
    """Item 8."""
    core = make_settled_leader()
    for _ in range(TIMEOUT):
        core.tick()
        core.step(HeartbeatReply(source=2, target=1, term=1))
    assert core.has_role(Role.LEADER)
    assert core.raft.propose_configuration(Configuration.of([1, 3], [2])) is None
    core.tick()
    assert core.has_role(Role.FOLLOWER)


# 9. Follower progress. Scenarios: probe_and_replicate, replicate_pause, fast_log_rejection.


def appends(messages: list[Message], target: int = 2) -> list[Append]:
    return [message for message in messages if isinstance(message, Append) and message.target == target]


def test_09_a_probe_is_one_message_until_it_is_answered() -> None:
    """Item 9."""
    core = make_leader()
    assert repr(core.raft.progress[2]) == "probe match=0 next=1 waiting"
    assert appends(core.propose(b"a") + core.propose(b"b")) == []
    assert len(appends(core.acknowledge(2, 1))) == 1
    assert core.raft.progress[2].feeding is Feeding.REPLICATE


def test_09_messages_under_way_are_limited_by_count() -> None:
    """Item 9."""
    core = make_settled_leader(settings=Settings(inflight_messages_max=3))
    sent = [appends(core.propose(b"x")) for _ in range(6)]
    assert [len(each) for each in sent] == [1, 1, 1, 0, 0, 0]
    (after,) = appends(core.acknowledge(2, 2))
    assert [entry.index for entry in singly(after.entries)] == [5, 6, 7]


def test_09_messages_under_way_are_limited_by_bytes() -> None:
    """Item 9."""
    core = make_settled_leader(settings=Settings(inflight_messages_max=99, inflight_bytes_max=250))
    sent = [appends(core.propose(bytes(30), bytes(70))) for _ in range(6)]
    assert [len(each) for each in sent] == [1, 1, 1, 0, 0, 0]
    assert len(appends(core.acknowledge(2, 7))) == 1


def test_09_a_follower_below_the_start_of_the_log_is_sent_a_snapshot_and_nothing_else() -> None:
    """Item 9."""
    core = make_settled_leader()
    core.propose(b"a", b"b")
    core.acknowledge(3, 3)
    core.snapshot = Snapshot(3, 1, core.raft.configuration, b"")
    core.raft.drop_head(3)
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": 1}
    sent = core.step(AppendReply(**ends, index=3, rejected=True, hint_index=1, hint_term=1))
    assert [type(message) for message in sent] == [InstallSnapshot]
    assert core.raft.progress[2].feeding is Feeding.INSTALL
    assert appends(core.propose(b"c")) == []
    assert [entry.index for entry in singly(appends(core.acknowledge(2, 3))[0].entries)] == [4]


def test_09_a_rejection_passes_over_whole_terms() -> None:
    """Item 9."""
    core = make_leader(terms=[1, 1, 4, 4, 4, 4])
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": 5}
    sent = core.step(AppendReply(**ends, index=6, rejected=True, hint_index=5, hint_term=3))
    assert [message.prev_index for message in appends(sent)] == [2]


def test_09_a_follower_names_the_last_place_that_may_agree() -> None:
    """Item 9."""
    core = make(terms=[1, 1, 2, 2, 5, 5], term=6)
    (reply,) = core.step(append(term=6, prev=(6, 4)))
    assert reply == AppendReply(source=1, target=2, term=6, index=6, rejected=True, hint_index=4, hint_term=2)


def test_09_entries_read_in_an_earlier_term_are_not_sent_in_a_later_one() -> None:
    """Item 9: while the disk was read, another leader may have overwritten what was read."""
    core = make(terms=[1, 1], term=1)
    late = append(term=1, terms=[1, 1]).entries
    core.step(append(term=2, prev=(1, 1), terms=[2]))  # entry 2 is another now
    core.tick(TIMEOUT)
    core.grant(3)
    core.step(AppendReply(source=2, target=1, term=3, index=2, rejected=True))
    core.raft.progress[2].next_index = 1
    core.raft.fetched(2, late)
    sent = [entry for message in appends(core.pump()) for entry in singly(message.entries)]
    assert all(entry.term != 1 or entry.index == 1 for entry in sent)


@pytest.mark.parametrize("idle", [False, True], ids=["more is written", "idle"])
def test_09_a_follower_that_lost_its_tail_and_does_not_know_is_fed_again(idle: bool) -> None:
    """Item 9: a disk that lied, a backup that was restored. What it rejects is what it had acknowledged."""
    group = Group.of(3)
    leader = group.elect(1)
    group.propose(1, b"a", b"b", b"c")
    group.tick(TWO_HEARTBEATS)
    group.cores[2] = make(2, terms=[1, 1], term=1, vote=1, life=7)
    leader.raft.lost_contact(2)
    if not idle:
        group.propose(1, b"d")
    group.tick(2 * TWO_HEARTBEATS)
    assert group[2].terms == leader.terms
    assert leader.raft.progress[2].counted_index == leader.raft.log.last_index


def test_09_a_rejection_of_the_same_life_that_was_overtaken_is_old_news() -> None:
    """Item 9: what was acknowledged since is there."""
    leader = make_settled_leader()
    leader.propose(b"a", b"b")
    leader.step(AppendReply(source=2, target=1, term=1, index=3, life=7))
    assert leader.step(AppendReply(source=2, target=1, term=1, index=2, rejected=True, life=7)) == []
    assert leader.raft.progress[2].match_index == 3


# 10. A lost append is recovered by the heartbeat reply, with no further traffic.
#     Scenario: heartbeat_resp_recovers_from_probing.


@pytest.mark.parametrize("lost", [(1, 3), (3, 1)], ids=["append", "acknowledgement"])
@pytest.mark.parametrize("settled", [True, False], ids=["replicating", "probing"])
def test_10_what_was_lost_is_recovered_by_heartbeats_alone(lost: tuple[int, int], settled: bool) -> None:
    """Item 10."""
    group = Group.of(3)
    leader = group[1]
    if settled:
        group.elect(1)
        group.tick(TWO_HEARTBEATS)
        group.cut.add(lost)
        group.propose(1, b"a")
    else:
        leader.campaign()
        sent = leader.grant(2)
        group.run(*[message for message in sent if (message.source, message.target) != (1, 3)])
    group.heal()
    group.tick(3 * SETTINGS.heartbeat_ticks)
    assert group[3].terms == leader.terms
    assert leader.raft.progress[3].match_index == leader.raft.log.last_index


def test_10_a_full_window_that_was_lost_is_recovered_too() -> None:
    """Item 10: the limits keep anything more from being sent, so only an empty message can find out."""
    group = Group.of(3, settings=Settings(heartbeat_ticks=2, election_ticks=TIMEOUT, inflight_messages_max=2))
    group.elect(1)
    group.tick(TWO_HEARTBEATS)
    group.cut.add((1, 3))
    for payload in (b"a", b"b", b"c"):
        group.propose(1, payload)
    group.heal()
    group.tick(3 * SETTINGS.heartbeat_ticks)
    assert group[3].terms == group[1].terms


def test_10_a_snapshot_that_was_lost_is_sent_again() -> None:
    """Item 10."""
    group = Group.of(3)
    leader = group.elect(1)
    group.isolate(3)
    group.propose(1, b"a", b"b")
    leader.snapshot = Snapshot(3, 1, leader.raft.configuration, b"")
    leader.raft.drop_head(3)
    group.heal()
    leader.raft.fetched_snapshot(3, leader.snapshot)
    leader.raft.progress[3].next_index = 2
    leader.raft.fetched_snapshot(3, leader.snapshot)
    assert any(isinstance(message, InstallSnapshot) for message in leader.pump())  # and that is all of it
    group.tick(TIMEOUT + TWO_HEARTBEATS)
    assert group[3].raft.log.start_index == 3


def test_10_retention_may_overtake_a_follower_whose_window_is_full() -> None:
    """Item 10: nothing of what was sent will be acknowledged, and what was to be sent next is gone."""
    settings = Settings(heartbeat_ticks=2, election_ticks=TIMEOUT, inflight_messages_max=2)
    group = Group.of(3, settings=settings)
    leader = group.elect(1)
    group.tick(TWO_HEARTBEATS)
    group.cut.add((1, 3))
    for payload in (b"a", b"b", b"c", b"d"):
        group.propose(1, payload)
    leader.snapshot = Snapshot(5, 1, leader.raft.configuration, b"")
    leader.raft.drop_head(5)
    assert leader.raft.progress[3].next_index <= leader.raft.log.start_index
    group.heal()
    group.tick(3 * SETTINGS.heartbeat_ticks)
    assert group[3].raft.log.start_index == 5


def test_10_entries_that_could_not_be_read_are_asked_for_again() -> None:
    """Item 10: a read that failed is like a message that was lost."""
    leader = make_leader(terms=[1] * 5)
    leader.acknowledge(3, 6)
    leader.acknowledge(2, 6)
    leader.propose(b"a")
    leader.acknowledge(3, 7)
    assert leader.raft.log.tail_first == 7  # what everyone is known to hold is let go of
    lost = AppendReply(source=2, target=1, term=2, index=6, rejected=True, recovering=True)
    leader.raft.step(lost)
    (fetch,) = leader.raft.ready().fetches
    assert fetch == FetchEntries(2, 1, leader.raft.settings.append_bytes_max)
    leader.raft.fetched(2, [])
    assert leader.raft.ready().fetches == []
    leader.raft.step(HeartbeatReply(source=2, target=1, term=2, recovering=True))
    assert leader.raft.ready().fetches == [fetch]


# 11. Group fsync, message size cap, limit on uncommitted bytes. Scenario: uncommitted_entry_limit.


def test_11_a_message_carries_only_so_many_bytes_but_always_one_entry() -> None:
    """Item 11."""
    settings = Settings(append_bytes_max=250, inflight_messages_max=99)
    core = make_settled_leader(settings=settings)
    sent = appends(core.propose(*[bytes(100)] * 5, bytes(1_000), bytes(10)))
    assert [[len(entry.payload) for entry in singly(message.entries)] for message in sent] == [
        [100, 100],
        [100, 100],
        [100],
        [1_000],
        [10],
    ]


def test_11_uncommitted_bytes_are_limited_and_the_limit_is_given_back() -> None:
    """Item 11."""
    core = make_settled_leader(settings=Settings(uncommitted_bytes_max=1_000))
    assert core.raft.refuses(5_000) is None  # one is always let through
    core.propose(bytes(250), bytes(350))
    assert core.raft.refuses(400) is None
    assert core.raft.refuses(401) is Refusal.OVERLOADED
    core.acknowledge(2, 2)
    assert core.raft.uncommitted_bytes == 350
    core.acknowledge(2, 3)
    assert core.raft.uncommitted_bytes == 0
    assert core.raft.refuses(5_000) is None


def test_11_a_new_leader_counts_what_it_inherits() -> None:
    """Item 11."""
    core = make(term=1, settings=Settings(uncommitted_bytes_max=1_000, election_ticks=TIMEOUT))
    old = [Entry(index, 1, 2, bytes(450)) for index in (1, 2)]
    core.step(Append(source=2, target=1, term=1, prev_index=0, prev_term=0, entries=old, commit=0))
    core.tick(TIMEOUT)
    core.grant(3)
    assert core.raft.refuses(101) is Refusal.OVERLOADED
    core.acknowledge(2, 3)
    assert core.raft.uncommitted_bytes == 0


def test_11_memory_stays_flat_while_a_follower_is_down() -> None:
    """Item 11."""
    settings = Settings(tail_bytes_max=10_000, heartbeat_ticks=2, election_ticks=TIMEOUT)
    group = Group.of(3, settings=settings)
    leader = group.elect(1)
    group.isolate(3)
    sizes = []
    for _ in range(200):
        group.propose(1, bytes(1_000))
        sizes.append(leader.raft.log.tail_bytes)
    assert max(sizes) <= settings.tail_bytes_max + 1_000
    assert max(core.raft.log.tail_bytes for core in (group[2],)) <= 2_000
    group.heal()
    group.tick(3 * TIMEOUT)
    assert group[3].terms == leader.terms  # read from the disk


def test_11_a_leader_whose_own_disk_hangs_takes_only_so_much() -> None:
    """Item 11: the others commit, so the limit on uncommitted bytes alone would not be felt."""
    settings = Settings(uncommitted_bytes_max=5_000, tail_bytes_max=3_000)
    core = make_settled_leader(settings=settings)
    core.disk_runs = False
    taken = 0
    while core.raft.refuses(1_000) is None:
        core.propose(bytes(1_000))
        taken += 1
        for follower in (2, 3):
            core.acknowledge(follower, core.raft.log.last_index)
        assert taken < 100
    assert core.raft.log.tail_bytes <= settings.uncommitted_bytes_max + settings.tail_bytes_max
    core.disk_runs = True
    core.pump()
    assert core.raft.refuses(1_000) is None


def test_11_what_comes_while_the_disk_is_busy_is_synced_together() -> None:
    """Item 11: one fsync for many."""
    stage = Stage(Configuration.of([1]), Settings(), [1])
    stage.do(1, lambda replica: replica.raft.campaign())
    stage.set_disk(1, "stopped")
    for number in range(20):
        write(stage, 1, encode_values([b"%d" % number], timestamp=0))
    stage.set_disk(1, None)
    syncs = count_syncs(stage, lambda: stage.finish_job(1))
    assert stage.replica(1).raft.commit_index == 21
    assert syncs == 2  # the one that was under way, and one for the other nineteen


def count_syncs(stage: Stage, action: Callable[[], object]) -> int:
    store = stage.replica(1).store
    real, count = store.sync, 0

    def sync() -> None:
        nonlocal count
        count += 1
        real()

    store.sync = sync  # type: ignore[method-assign]
    action()
    store.sync = real  # type: ignore[method-assign]
    return count


# 12. ReadIndex. Scenarios: read_index_safe, read_index_new_leader.


def test_12_a_partitioned_old_leader_serves_nothing_it_cannot_confirm() -> None:
    """Item 12."""
    group = Group.of(3)
    group.elect(1)
    group.isolate(1)
    group[2].tick(TIMEOUT)
    group[3].raft.elapsed = TIMEOUT
    group.elect(2)
    group.propose(2, b"a")
    assert group.leaders == [1, 2]
    group[1].raft.read(7)
    group[2].raft.read(8)
    group.run()
    assert (group[1].reads, group[2].reads) == ([], [(8, 3)])
    group[1].tick(TIMEOUT)
    assert (group[1].reads, group[1].failed_reads) == ([], [7])


def test_12_a_follower_refuses_at_once() -> None:
    """Item 12."""
    core = make()
    core.raft.read(7)
    core.pump()
    assert core.failed_reads == [7]


def test_12_an_answer_confirms_the_round_it_was_asked_in_and_no_later_one() -> None:
    """Item 12: when it was given, the later read had not been asked for."""
    core = make_settled_leader()
    for request in (7, 8):
        core.raft.read(request)
        core.pump()
    core.step(HeartbeatReply(source=2, target=1, term=1, round=1))
    assert core.reads == [(7, 1)]
    core.step(HeartbeatReply(source=2, target=1, term=1, round=2))
    assert core.reads == [(7, 1), (8, 1)]


def test_12_confirmations_of_an_earlier_term_confirm_nothing() -> None:
    """Item 12."""
    core = make_settled_leader()
    core.raft.read(7)
    core.pump()
    core.step(Heartbeat(source=2, target=1, term=2, commit=0))
    assert core.failed_reads == [7]
    core.tick(TIMEOUT)
    core.grant(3)
    core.acknowledge(3, core.raft.log.last_index)
    core.raft.read(8)
    core.pump()
    core.step(HeartbeatReply(source=2, target=1, term=1, round=9))
    assert core.reads == []


# 13. Retention is prefix truncation that keeps (index, term) and the small state.
#     Scenarios: slow_follower_after_retention, stale_install.


def test_13_the_start_of_the_log_keeps_its_place_and_term() -> None:
    """Item 13."""
    core = make(terms=[1, 2, 2, 3], commit=3)
    core.raft.drop_head(3)
    assert (core.raft.log.start_index, core.raft.log.start_term, core.terms) == (3, 2, [3])
    (reply,) = core.step(append(term=3, prev=(3, 2), terms=[3, 3]))
    assert reply == AppendReply(source=1, target=2, term=3, index=5)


def test_13_retention_takes_nothing_of_what_follows_it_also_where_both_came_together() -> None:
    """Item 13: a run is cut."""
    core = make_settled_leader()
    core.propose(b"a", b"bc", b"def", b"g")
    core.acknowledge(2, 3)
    core.raft.drop_head(3)
    log = core.raft.log
    assert (log.start_index, log.tail_first, log.last_index, log.tail_bytes) == (3, 4, 5, 4)
    assert [entry.payload for entry in singly(log.tail(4))] == [b"def", b"g"]
    core.acknowledge(2, 5)
    assert (core.raft.commit_index, core.raft.uncommitted_bytes) == (5, 0)


def test_13_a_follower_that_is_at_the_start_needs_no_snapshot() -> None:
    """Item 13."""
    core = make_settled_leader()
    core.propose(b"a")
    core.acknowledge(3, 2)
    core.raft.drop_head(1)
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": 1}
    sent = core.step(AppendReply(**ends, index=2, rejected=True, hint_index=1, hint_term=1))
    assert [message.prev_index for message in appends(sent)] == [1]


def test_13_only_what_is_applied_and_durable_may_go() -> None:
    """Item 13."""
    core = make(terms=[1, 1, 1], commit=2)
    with pytest.raises(AssertionError):
        core.raft.drop_head(3)


def test_13_a_snapshot_brings_the_configuration_that_was_in_force() -> None:
    """Item 13."""
    core = make_settled_leader()
    core.raft.propose_configuration(Configuration.of([1, 2, 3], [4]))
    core.pump()
    core.propose(b"a")
    core.acknowledge(2, 3)
    assert talweg.raft.configuration_at(core.raft, 1) == Configuration.of([1, 2, 3])
    assert talweg.raft.configuration_at(core.raft, 2) == Configuration.of([1, 2, 3], [4])
    core.raft.drop_head(3)
    assert talweg.raft.configuration_at(core.raft, 3) == Configuration.of([1, 2, 3], [4])
    follower = make(4)
    snapshot = Snapshot(3, 1, talweg.raft.configuration_at(core.raft, 3), b"")
    follower.step(InstallSnapshot(source=1, target=4, term=1, snapshot=snapshot))
    assert follower.raft.configuration == Configuration.of([1, 2, 3], [4])


def test_13_a_snapshot_from_before_the_start_of_the_log_replaces_nothing() -> None:
    """Item 13: it was sent long ago, and a newer one came first."""
    core = make(term=1)
    for index in (9, 4):
        snapshot = Snapshot(index, 1, Configuration.of([1, 2, 3]), b"")
        (reply,) = core.step(InstallSnapshot(source=2, target=1, term=1, snapshot=snapshot))
        assert reply == AppendReply(source=1, target=2, term=1, index=9)
    assert (core.raft.log.start_index, core.raft.commit_index) == (9, 9)


def test_13_every_rejection_leads_further_back() -> None:
    """Item 13: whatever the hint says, no place is tried twice, so that rejections come to an end."""
    leader = make_settled_leader()
    leader.propose(b"a", b"b")
    leader.acknowledge(2, 3)
    ends: dict[str, Any] = {"source": 2, "target": 1, "term": 1, "recovering": True, "hint_term": 1}
    for index in (3, 2, 1):
        (sent,) = appends(leader.step(AppendReply(**ends, index=index, rejected=True, hint_index=3)))
        assert sent.prev_index == index - 1


def test_13_a_follower_that_lost_its_disk_is_fed_from_below_the_start_of_the_log() -> None:
    """Item 13: the leader believes that it holds everything, and has dropped what it needs."""
    group = Group.of(3)
    leader = group.elect(1)
    group.propose(1, *[b"x"] * 9)
    group.tick(TWO_HEARTBEATS)
    leader.snapshot = Snapshot(8, 1, leader.raft.configuration, b"")
    leader.raft.drop_head(8)
    group.cores[2] = make(2, recovering=True)
    group.tick(4 * SETTINGS.heartbeat_ticks)
    assert (group[2].raft.log.start_index, group[2].raft.log.last_index) == (8, 10)
    assert not group[2].raft.recovering


# 14. Learners, then one-at-a-time membership change, only after the term's no-op.
#     Scenarios: all of membership.


def test_14_no_change_before_the_no_op_is_committed() -> None:
    """Item 14."""
    core = make_leader()
    change = Configuration.of([1, 2, 3, 4])
    assert core.raft.propose_configuration(change) is Refusal.TERM_NOT_OPEN
    core.acknowledge(2, 1)
    assert core.raft.propose_configuration(change) is None


def test_14_no_change_while_one_of_an_earlier_leader_is_under_way() -> None:
    """Item 14."""
    core = make(terms=[1])
    change = Configuration.of([1, 2, 3, 4])
    core.step(
        Append(
            source=2,
            target=1,
            term=1,
            prev_index=1,
            prev_term=1,
            entries=[Entry(2, 1, 1, change.to_bytes())],
            commit=1,
        )
    )
    core.tick(TIMEOUT)
    core.grant(2, 3)
    assert core.raft.role is Role.LEADER
    assert core.raft.propose_configuration(Configuration.of([1, 2, 3])) is Refusal.CHANGE_PENDING


@pytest.mark.parametrize("settled", [False, True])
def test_14_who_is_removed_by_a_change_that_is_not_committed_may_have_to_lead(settled: bool) -> None:
    """Item 14: it may be the only one with that entry, and refuses the others its vote (thesis, 4.2.2)."""
    core = make(terms=[1])
    core.step(
        Append(
            source=2,
            target=1,
            term=1,
            prev_index=1,
            prev_term=1,
            entries=[Entry(2, 1, 1, Configuration.of([2, 3]).to_bytes())],
            commit=2 if settled else 1,
        )
    )
    core.tick(TIMEOUT)
    core.grant(2, 3)
    assert core.has_role(Role.FOLLOWER if settled else Role.LEADER)
    if not settled:
        for follower in (2, 3):
            core.acknowledge(follower, 3)
        assert core.has_role(Role.FOLLOWER)  # once it is committed it goes


def test_14_learners_count_neither_for_elections_nor_for_commits_nor_for_the_leaders_stay() -> None:
    """Item 14."""
    core = make(1, [1, 2, 3], learners=[4, 5])
    assert {message.target for message in core.campaign()} == {2, 3}
    leader = make_settled_leader(learners=(4, 5))
    leader.propose(b"a")
    for learner in (4, 5):
        leader.acknowledge(learner, 2)
    assert leader.raft.commit_index == 1
    for _ in range(TIMEOUT):
        leader.tick()
        for learner in (4, 5):
            leader.step(HeartbeatReply(source=learner, target=1, term=1))
    assert leader.raft.role is Role.FOLLOWER


def test_14_a_learner_never_stands() -> None:
    """Item 14."""
    core = make(4, [1, 2, 3], learners=[4])
    assert core.tick(10 * TIMEOUT) == []
    assert core.campaign() == []
    assert core.step(TimeoutNow(source=1, target=4, term=1)) == []


def test_14_fewer_voters_may_be_a_majority_of_what_went_before() -> None:
    """Item 14: with its last fellow voter removed, a leader is a majority by itself, once that is durable."""
    core = make_settled_leader(voters=(1, 2))
    core.propose(b"a")
    assert core.raft.commit_index == 1
    core.raft.propose_configuration(Configuration.of([1]))
    core.pump()
    assert core.raft.commit_index == 3


# 15. Leadership transfer, with a time limit. Scenarios: all of transfer_and_reads that begin with transfer.


def test_15_leadership_is_handed_over_within_one_round_trip() -> None:
    """Item 15."""
    group = Group.of(3)
    leader = group.elect(1)
    group.propose(1, b"a")
    leader.raft.transfer(3)
    group.run()
    assert group.leaders == [3]
    assert group[3].raft.term == 2


def test_15_a_transfer_ends_after_one_election_timeout() -> None:
    """Item 15."""
    group = Group.of(3)
    leader = group.elect(1)
    group.isolate(3)
    leader.raft.transfer(3)
    group.tick(TIMEOUT - 1)
    assert leader.raft.refuses(1) is Refusal.TRANSFERRING
    group.tick()
    assert leader.raft.refuses(1) is None


def test_15_asking_again_does_not_begin_the_time_limit_anew() -> None:
    """Item 15: otherwise one who asks again and again would stop all writes."""
    group = Group.of(3)
    leader = group.elect(1)
    group.isolate(3)
    for _ in range(TIMEOUT):
        leader.raft.transfer(3)
        group.tick()
    assert leader.raft.refuses(1) is None


def test_15_only_to_a_voter_and_only_by_a_leader() -> None:
    """Item 15."""
    leader = make_settled_leader(learners=(4,))
    assert leader.raft.transfer(4) is Refusal.NOT_A_VOTER
    assert leader.raft.transfer(9) is Refusal.NOT_A_VOTER
    assert make().raft.transfer(2) is Refusal.NOT_LEADER


# Of a replica that lost its log (item 2 again: nobody votes twice, and nobody forgets what it acknowledged).
# Scenarios: empty_node_recovery, last_entry_corruption, checksum_failure_in_middle_refuses.


def test_02_who_has_forgotten_does_not_vote_nor_stand() -> None:
    """Item 2."""
    core = make(recovering=True)
    for pre in (True, False):
        assert grants(core.step(request_vote(term=3, last=(9, 2), pre=pre))) == [False]
    core.tick(5 * TIMEOUT)
    core.campaign()
    core.step(TimeoutNow(source=2, target=1, term=3))
    assert core.raft.role is Role.FOLLOWER


def test_02_who_has_forgotten_votes_again_once_it_holds_all_that_it_may_have_acknowledged() -> None:
    """Item 2: a committed entry of the leader's term alone is not enough; 2 and 3 may follow the loss."""
    core = make(recovering=True)
    core.step(append(term=1, terms=[1, 1], commit=2))
    assert core.is_forgetful()  # the message may be older than the loss
    core.step(append(term=1, prev=(2, 1), terms=[1], commit=3, recovery_index=4))
    assert core.is_forgetful()
    core.step(append(term=1, prev=(3, 1), terms=[1], commit=4))
    assert not core.is_forgetful()
    assert core.hard_state == HardState(1, 2)  # its vote of this term, whatever it was, is the leader's


def test_02_who_has_forgotten_waits_until_what_it_got_back_is_durable() -> None:
    """Item 2: otherwise a crash could make it forget once more, and vote all the same."""
    core = make(recovering=True)
    core.disk_runs = False
    core.step(append(term=1, terms=[1, 1], commit=2, recovery_index=2))
    assert core.is_forgetful()
    core.disk_runs = True
    core.pump()
    assert not core.is_forgetful()
    assert core.hard_state == HardState(1, 2)


def test_02_what_recovery_waits_for_begins_anew_with_each_leader() -> None:
    """Item 2."""
    core = make(recovering=True)
    core.step(append(term=1, terms=[1, 1], commit=0, recovery_index=2))
    core.step(append(term=2, prev=(2, 1), terms=[2], commit=3, source=3))
    assert core.raft.recovering


def test_02_a_leader_that_hears_of_a_loss_names_the_end_of_its_log() -> None:
    """Item 2: whatever the follower acknowledged to this leader is at or below that."""
    leader = make_settled_leader()
    leader.propose(b"a", b"b")
    leader.acknowledge(2, 3)
    rejected = AppendReply(source=2, target=1, term=1, index=3, rejected=True, recovering=True, life=7)
    (sent,) = appends(leader.step(rejected))
    assert (sent.prev_index, sent.recovery_index) == (0, 0)  # not yet: perhaps it leads no more
    leader.propose(b"c")
    leader.step(HeartbeatReply(source=2, target=1, term=1, round=1, recovering=True, life=7))
    (sent,) = appends(leader.step(AppendReply(source=2, target=1, term=1, index=3, recovering=True, life=7)))
    assert sent.recovery_index == 0  # its own word does not count
    leader.step(HeartbeatReply(source=3, target=1, term=1, round=1))
    leader.step(AppendReply(source=2, target=1, term=1, index=4, recovering=True, life=7))
    sent = next(message for message in appends(leader.propose(b"d")) if message.target == 2)
    assert (sent.recovery_index, sent.life) == (3, 7)
    leader.step(AppendReply(source=2, target=1, term=1, index=5, life=6))  # from before the loss
    sent = next(message for message in appends(leader.propose(b"e")) if message.target == 2)
    assert sent.recovery_index == 3
    leader.step(AppendReply(source=2, target=1, term=1, index=6, life=7))
    sent = next(message for message in appends(leader.propose(b"f")) if message.target == 2)
    assert sent.recovery_index == 0


def test_02_what_a_forgetful_voter_says_keeps_no_leader_in_office_and_commits_nothing() -> None:
    """Item 2: it may have helped to elect another one since."""
    leader = make_settled_leader()
    leader.propose(b"a")
    committed = leader.raft.commit_index
    leader.step(AppendReply(source=2, target=1, term=1, index=2, recovering=True, life=7))
    assert leader.raft.commit_index == committed
    for _ in range(2 * TIMEOUT):
        leader.tick()
        leader.step(HeartbeatReply(source=2, target=1, term=1, recovering=True, life=7))
    assert leader.raft.role is not Role.LEADER


def test_02_a_forgetful_voter_is_not_told_of_an_earlier_loss() -> None:
    """Item 2: what was named then may lie before what it has acknowledged since."""
    core = make(recovering=True, life=8)
    core.step(append(term=1, terms=[1, 1], commit=2, recovery_index=2, life=7))
    assert core.is_forgetful()
    core.step(append(term=1, terms=[1, 1], commit=2, recovery_index=2, life=8))
    assert not core.is_forgetful()


def test_02_a_heartbeat_does_not_commit_what_a_forgetful_voter_may_hold_instead() -> None:
    """Item 2: the leader believes that 1 still holds its entry 2; 1 has one of an earlier leader there."""
    core = make(recovering=True)
    core.step(append(term=1, terms=[1, 1], commit=0))
    core.step(Heartbeat(source=3, target=1, term=2, commit=2))
    assert core.raft.commit_index == 0


def test_02_who_is_whole_again_in_an_idle_group_counts_without_another_entry() -> None:
    """Item 2: nobody has to write something first."""
    group = Group.of(3)
    leader = group.elect(1)
    group.propose(1, b"a", b"b")
    group.tick(TWO_HEARTBEATS)
    group.cores[2] = make(2, recovering=True, life=7)
    group.tick(6 * TWO_HEARTBEATS)
    assert not group[2].raft.recovering
    assert leader.raft.progress[2].counted_index == leader.raft.log.last_index


# 16. Producer id + sequence deduplication lives in the replicated state: a retry across a failover writes
#     once.


def make_stage(count: int = 3) -> Stage:
    voters = range(1, count + 1)
    return Stage(
        Configuration.of(voters), Settings(), voters, timeouts=dict.fromkeys(voters, 20), segment_bytes=1_000
    )


def elect(stage: Stage, broker: int) -> None:
    for other in stage.running:
        stage.replica(other).raft.elapsed = TIMEOUT
    stage.do(broker, lambda replica: replica.raft.campaign())
    stage.stabilize()
    assert stage.replica(broker).raft.role is Role.LEADER


def write(stage: Stage, broker: int, *frames: bytes) -> list[Outcome]:
    outcomes: list[Outcome] = []
    stage.do(broker, lambda replica: replica.append(list(frames), outcomes.append))
    return outcomes


def commit(stage: Stage, broker: int, position: Position) -> None:
    stage.do(broker, lambda replica: replica.commit_positions([position], lambda _: None))


def numbered(sequence: int, *values: bytes) -> bytes:
    return encode_values(list(values), timestamp=0, producer_id=7, producer_epoch=0, sequence=sequence)


@pytest.mark.parametrize("heard_of", [True, False], ids=["acknowledged", "answer lost"])
def test_16_a_retry_across_a_failover_writes_once(heard_of: bool) -> None:
    """Item 16."""
    stage = make_stage()
    elect(stage, 1)
    first = write(stage, 1, numbered(0, b"a", b"b"))
    if heard_of:
        stage.stabilize()
        assert not isinstance(first[0], TalwegError)
    else:
        stage.stabilize({1, 2})
    stage.crash(1)
    stage.network.clear()
    elect(stage, 2)
    again = write(stage, 2, numbered(0, b"a", b"b"))
    new = write(stage, 2, numbered(2, b"c"))
    stage.stabilize()
    assert not isinstance(again[0], TalwegError)
    assert not isinstance(new[0], TalwegError)
    assert [(one.first_offset, one.duplicate) for one in (*again[0], *new[0])] == [(0, True), (2, False)]
    stage.pass_time(4)
    for broker in (2, 3):
        assert read_all(stage.replica(broker)) == [b"a", b"b", b"c"]


def test_16_a_retry_is_recognised_before_its_first_copy_is_committed() -> None:
    """Item 16: the committed state alone would not know it."""
    stage = make_stage()
    elect(stage, 1)
    first = write(stage, 1, numbered(0, b"a"))
    again = write(stage, 1, numbered(0, b"a"))
    assert first == again == []  # neither is answered before the copy is committed
    stage.stabilize()
    assert [
        one.duplicate for outcome in first + again if not isinstance(outcome, TalwegError) for one in outcome
    ] == [
        False,
        True,
    ]
    assert read_all(stage.replica(1)) == [b"a"]


def test_16_a_first_copy_that_was_overwritten_is_written_anew() -> None:
    """Item 16: what never came to be is no reason to refuse."""
    stage = make_stage()
    elect(stage, 1)
    lost = write(stage, 1, numbered(0, b"a"))
    stage.network.clear()
    stage.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    elect_other_side(stage)
    again = write(stage, 2, numbered(0, b"a"))
    stage.stabilize()
    stage.cut.clear()
    stage.pass_time(6)
    assert isinstance(lost[0], TalwegError)
    assert not isinstance(again[0], TalwegError)
    assert [one.duplicate for one in again[0]] == [False]
    assert [read_all(stage.replica(broker)) for broker in (1, 2, 3)] == [[b"a"]] * 3


def elect_other_side(stage: Stage) -> None:
    for broker in (2, 3):
        stage.replica(broker).raft.elapsed = TIMEOUT
    stage.do(2, lambda replica: replica.raft.campaign())
    stage.stabilize()
    assert stage.replica(2).raft.role is Role.LEADER


def test_16_what_a_snapshot_replaced_is_still_recognised() -> None:
    """Item 16: the state goes with the snapshot."""
    stage = make_stage()
    elect(stage, 1)
    stage.cut = {(1, 3), (3, 1)}
    write(stage, 1, numbered(0, b"a"))
    stage.stabilize()
    stage.do(1, Replica.snapshot_now)
    stage.do(1, lambda replica: replica.retain(bytes_max=0, before_timestamp=None))
    stage.cut.clear()
    stage.pass_time(6)
    assert stage.replica(3).raft.log.start_index == 2
    elect(stage, 3)
    again = write(stage, 3, numbered(0, b"a"))
    stage.stabilize()
    assert not isinstance(again[0], TalwegError)
    assert [one.duplicate for one in again[0]] == [True]


# 19. A disk that is full or failing steps down and never acknowledges. Scenarios: no_commit_with_disk_down,
#     hung_disk_steps_down.


def test_19_a_leader_whose_disk_fails_steps_down_and_does_not_stand_again() -> None:
    """Item 19."""
    core = make_settled_leader()
    core.raft.disk_state(failed=True)
    assert core.raft.role is Role.FOLLOWER
    assert core.raft.refuses(1) is Refusal.NOT_LEADER
    assert core.tick(5 * TIMEOUT) == []
    assert core.campaign() == []
    assert core.step(TimeoutNow(source=2, target=1, term=1)) == []
    core.raft.disk_state(failed=False)
    assert core.tick(TIMEOUT) != []


def test_19_a_candidate_whose_disk_fails_does_not_become_leader() -> None:
    """Item 19."""
    core = make()
    core.campaign()
    core.step(VoteReply(source=2, target=1, term=1, granted=True, pre=True))
    core.raft.disk_state(failed=True)
    core.step(VoteReply(source=2, target=1, term=1, granted=True))
    assert core.raft.role is Role.FOLLOWER


@pytest.mark.parametrize("state", ["full", "failing"])
def test_19_nothing_is_acknowledged_by_a_disk_that_is_full_or_failing(state: str) -> None:
    """Item 19: neither to the client, nor by a follower to its leader."""
    stage = make_stage()
    elect(stage, 1)
    stage.set_disk(2, state)
    stage.cut = {(1, 3), (3, 1)}
    outcomes = write(stage, 1, numbered(0, b"a"))
    stage.stabilize()
    assert outcomes == []
    assert stage.replica(1).raft.progress[2].match_index == 1
    stage.set_disk(1, state)
    outcomes += write(stage, 1, numbered(1, b"b"))
    stage.stabilize()
    assert stage.replica(1).raft.role is Role.FOLLOWER
    assert all(isinstance(outcome, TalwegError) for outcome in outcomes)
    for broker in (1, 2):
        stage.set_disk(broker, None)
        stage.finish_job(broker)
    stage.cut.clear()
    stage.pass_time(40)
    assert read_all(stage.replica(1)) == read_all(stage.replica(2)) == read_all(stage.replica(3))


def test_19_a_leader_whose_disk_hangs_makes_way_and_does_not_stand_before_it_is_durable() -> None:
    """Item 19: the others hear it and commit without it, so nothing else would ever unseat it."""
    settings = Settings(heartbeat_ticks=2, election_ticks=TIMEOUT, write_ticks_max=3 * TIMEOUT)
    patient = make(3, settings=settings, election_timeout=lambda: 3 * TIMEOUT)
    group = Group(make(1, settings=settings), make(2, settings=settings), patient)
    leader = group.elect(1)
    leader.disk_runs = False
    group.propose(1, b"a")
    group.tick(settings.write_ticks_max)
    assert group.leaders == [1]
    group.tick(2 * TIMEOUT)
    assert group.leaders == [2]
    group.propose(2, b"b")
    assert group[2].raft.commit_index == group[2].raft.log.last_index
    group.isolate(1)
    assert leader.tick(5 * TIMEOUT) == leader.campaign() == []
    assert leader.step(TimeoutNow(source=2, target=1, term=leader.raft.term)) == []
    leader.disk_runs = True
    leader.pump()
    assert leader.tick(TIMEOUT) != []


def test_19_a_disk_that_is_slow_but_works_keeps_its_leader() -> None:
    """Item 19: it is the age of one write that counts, not that there always is one."""
    settings = Settings(heartbeat_ticks=2, election_ticks=TIMEOUT, write_ticks_max=TIMEOUT)
    group = Group.of(3, settings=settings)
    leader = group.elect(1)
    leader.disk_runs = False
    group.propose(1, b"a")
    for _ in range(10):
        group.tick(TIMEOUT)
        under_way = len(leader.unwritten)
        group.propose(1, b"b")
        for _ in range(under_way):
            write_one(leader)
    assert group.leaders == [1]


@pytest.mark.parametrize("voters", [[1], [1, 2], [1, 2, 3]], ids=["alone", "of two", "one of three is away"])
def test_19_a_leader_without_which_nobody_can_lead_has_nobody_to_make_way_for(voters: list[int]) -> None:
    """Item 19: what is there can be read meanwhile."""
    settings = Settings(heartbeat_ticks=2, election_ticks=TIMEOUT, write_ticks_max=TIMEOUT)
    group = Group(*[make(voter, voters, settings=settings) for voter in voters])
    leader = group.elect(1)
    if len(voters) > 2:
        group.isolate(3)
    leader.disk_runs = False
    group.propose(1, b"a")
    group.tick(3 * TIMEOUT)
    assert leader.raft.disk_hangs
    assert group.leaders == [1]


# 20. Raft index is not message offset: no-ops and position updates take an index and no offset.


def test_20_offsets_are_gapless_although_other_entries_take_indexes() -> None:
    """Item 20."""
    stage = make_stage()
    expected: list[bytes | None] = []
    for broker in (1, 2, 3, 1):
        elect(stage, broker)  # a no-op each time
        value = b"from %d" % len(expected)
        outcomes = write(stage, broker, encode_values([value, value], timestamp=0))
        commit(stage, broker, Position("reader", len(expected)))
        stage.stabilize()
        learner = Configuration.of([1, 2, 3], [9] if broker == 1 else [])
        assert stage.replica(broker).raft.propose_configuration(learner) is None
        stage.work(broker)
        stage.stabilize()
        assert not isinstance(outcomes[0], TalwegError)
        assert [one.first_offset for one in outcomes[0]] == [len(expected)]
        expected += [value, value]
    stage.pass_time(4)
    for broker in (1, 2, 3):
        replica = stage.replica(broker)
        assert read_all(replica) == expected
        assert replica.high_watermark == len(expected) == 8
        assert replica.state.positions == {"reader": 6}
        headers = [read_header(entry.payload) for entry in committed(replica) if entry.kind == Kind.RECORDS]
        assert [header.first_offset for header in headers] == [0, 2, 4, 6]
        assert replica.raft.log.last_index == 16  # four each of no-ops, records, positions, configurations
