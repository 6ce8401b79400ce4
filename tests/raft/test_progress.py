"""Follower progress: probe, replicate, install, and the limits on what is under way."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from talweg.raft import Feeding, Progress

MESSAGES_MAX, BYTES_MAX = 3, 100


def paused(progress: Progress) -> bool:
    return progress.paused(MESSAGES_MAX, BYTES_MAX)


def replicating(match: int = 5) -> Progress:
    progress = Progress(match + 1, clock=0)
    progress.acknowledged(match)
    assert progress.feeding is Feeding.REPLICATE
    return progress


def test_a_probe_is_sent_once_and_then_waited_for() -> None:
    progress = Progress(6, clock=0)
    assert progress.feeding is Feeding.PROBE
    assert not paused(progress)
    progress.sent(9, 40)
    assert paused(progress)
    assert progress.next_index == 6  # nothing is taken for granted yet


def test_an_acknowledged_probe_begins_replication_after_what_is_known() -> None:
    progress = Progress(6, clock=0)
    progress.sent(9, 40)
    assert progress.acknowledged(7)
    assert (progress.feeding, progress.match_index, progress.next_index) == (Feeding.REPLICATE, 7, 8)


def test_replication_runs_ahead_of_the_answers() -> None:
    progress = replicating(5)
    progress.sent(7, 10)
    progress.sent(9, 10)
    assert (progress.match_index, progress.next_index) == (5, 10)
    assert not paused(progress)


def test_too_many_messages_under_way_pause_it() -> None:
    progress = replicating(5)
    for index in (6, 7, 8):
        assert not paused(progress)
        progress.sent(index, 1)
    assert paused(progress)
    progress.acknowledged(6)
    assert not paused(progress)


def test_too_many_bytes_under_way_pause_it() -> None:
    progress = replicating(5)
    progress.sent(6, BYTES_MAX)
    assert paused(progress)
    progress.acknowledged(6)
    assert not paused(progress)


def test_one_answer_can_acknowledge_many_messages() -> None:
    progress = replicating(5)
    for index in (6, 7, 8):
        progress.sent(index, 50)
    progress.acknowledged(8)
    assert not paused(progress)
    assert progress.match_index == 8


def test_an_acknowledgement_is_news_only_once() -> None:
    progress = replicating(5)
    progress.sent(6, 1)
    assert progress.acknowledged(6)
    assert not progress.acknowledged(6)
    assert not progress.acknowledged(4)
    assert (progress.match_index, progress.next_index) == (6, 7)


def test_a_rejected_probe_goes_back_as_far_as_the_hint() -> None:
    progress = Progress(20, clock=0)
    progress.sent(25, 1)
    assert progress.rejected(19, retry_index=7)
    assert progress.next_index == 8
    assert not paused(progress)


def test_a_rejected_probe_always_goes_back() -> None:
    progress = Progress(20, clock=0)
    progress.sent(25, 1)
    assert progress.rejected(19, retry_index=30)
    assert progress.next_index == 19


def test_a_rejection_of_an_earlier_probe_means_nothing() -> None:
    progress = Progress(20, clock=0)
    progress.rejected(19, retry_index=7)
    progress.sent(20, 1)
    assert not progress.rejected(19, retry_index=3)
    assert progress.next_index == 8


def test_a_rejection_while_replicating_probes_again_from_what_is_known() -> None:
    progress = replicating(5)
    progress.sent(7, 10)
    progress.sent(9, 10)
    assert progress.rejected(7, retry_index=3)
    assert (progress.feeding, progress.match_index, progress.next_index) == (Feeding.PROBE, 5, 6)
    assert not paused(progress)


def test_a_rejection_while_replicating_heeds_a_later_hint() -> None:
    progress = replicating(5)
    for index in (6, 7, 8):
        progress.sent(index, 10)
    assert progress.rejected(8, retry_index=6)
    assert progress.next_index == 7


def test_what_was_acknowledged_is_never_probed_again() -> None:
    progress = replicating(5)
    assert not progress.rejected(5, retry_index=1)
    assert not progress.rejected(3, retry_index=1)
    assert progress.feeding is Feeding.REPLICATE


def test_nothing_else_is_sent_while_a_snapshot_is_under_way() -> None:
    progress = Progress(2, clock=0)
    progress.installing(10, clock=7)
    assert paused(progress)
    assert not progress.rejected(1, retry_index=0)
    progress.acknowledged(4)  # of something older
    assert progress.feeding is Feeding.INSTALL
    progress.acknowledged(10)
    assert (progress.feeding, progress.next_index) == (Feeding.REPLICATE, 11)
    assert not paused(progress)


def test_a_snapshot_that_got_lost_is_probed_for() -> None:
    progress = replicating(5)
    progress.installing(10, clock=7)
    progress.probe_again()
    assert (progress.feeding, progress.next_index) == (Feeding.PROBE, 6)
    assert not paused(progress)


def test_a_read_from_disk_pauses_it() -> None:
    progress = replicating(5)
    progress.fetching = True
    assert paused(progress)


def test_it_is_stalled_when_two_heartbeats_find_it_at_the_same_place() -> None:
    progress = replicating(5)
    assert not progress.stalled()
    assert progress.stalled()
    progress.acknowledged(6)
    assert not progress.stalled()


def test_a_follower_that_lost_its_log_is_believed() -> None:
    progress = replicating(9)
    progress.sent(12, 10)
    progress.lost_its_log(4)
    assert (progress.feeding, progress.match_index, progress.next_index) == (Feeding.PROBE, 4, 5)
    assert not paused(progress)
    assert progress.counted_index == 9  # it does not vote before it has all of that again


def test_one_that_lost_its_log_and_votes_is_not_counted_on() -> None:
    progress = replicating(9)
    progress.lost_its_log(4, recovering=False)
    assert (progress.match_index, progress.next_index, progress.counted_index) == (4, 5, 4)


def test_what_is_acknowledged_while_it_recovers_moves_it_on_but_does_not_count() -> None:
    progress = replicating(9)
    assert not progress.acknowledged(12, recovering=True)
    assert (progress.match_index, progress.next_index, progress.counted_index) == (12, 13, 9)
    assert progress.acknowledged(12)
    assert progress.counted_index == 12


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_the_limits_are_overstepped_by_one_message_at_most(sizes_bytes: list[int]) -> None:
    progress = replicating(0)
    under_way: list[int] = []
    for index, size_bytes in enumerate(sizes_bytes, 1):
        if paused(progress):
            break
        assert len(under_way) < MESSAGES_MAX
        assert sum(under_way) < BYTES_MAX
        progress.sent(index, size_bytes)
        under_way.append(size_bytes)
    else:
        assert len(under_way) == len(sizes_bytes)


class AnyProgress(RuleBasedStateMachine):
    """Whatever comes in whatever order, what is matched lies below what is sent next."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(4, clock=0)
        self.match_max = 0

    @rule(length=st.integers(0, 3), size_bytes=st.integers(0, 60))
    def send(self, length: int, size_bytes: int) -> None:
        if not paused(self.progress):
            self.progress.sent(self.progress.next_index + length, size_bytes)

    @rule(index=st.integers(0, 12))
    def acknowledge(self, index: int) -> None:
        self.match_max = max(self.match_max, index)
        self.progress.acknowledged(index)

    @rule(prev_index=st.integers(0, 12), retry_index=st.integers(0, 12))
    def reject(self, prev_index: int, retry_index: int) -> None:
        self.progress.rejected(prev_index, retry_index)

    @rule(index=st.integers(1, 12))
    def install(self, index: int) -> None:
        self.progress.installing(index, clock=0)

    @rule()
    def probe_again(self) -> None:
        self.progress.probe_again()

    @invariant()
    def matched_below_next(self) -> None:
        assert self.progress.match_index < self.progress.next_index
        assert self.progress.match_index == self.match_max

    @invariant()
    def never_stuck_without_a_reason(self) -> None:
        # In PROBE a heartbeat's reply frees it, in INSTALL time does; here an answer always can.
        if self.progress.feeding is Feeding.REPLICATE and paused(self.progress):
            assert "inflight=" in repr(self.progress)


TestAnyProgress = AnyProgress.TestCase
