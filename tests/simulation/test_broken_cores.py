"""A simulation that has never failed is not to be trusted: each of these mistakes must be found."""

import pytest

from simulation import broken_cores
from talweg.testing.simulation import run

# Where the search begins: a seed that is known to find it, so that the tests are quick. Should the
# generator change, the seeds after it are tried.
MISTAKES = {
    "votes_are_not_persisted": 0,
    "nothing_is_synced": 0,
    "promises_leave_before_they_are_durable": 0,
    "a_leader_counts_itself_before_it_is_durable": 0,
    "a_wiped_replica_votes": 2,
    "a_damaged_log_is_cut_and_forgotten": 12,
    "a_forgetful_voter_counts": 67,
    "a_forgetful_voter_is_whole_too_early": 67,
    "any_log_is_up_to_date": 0,
    "any_overlap_truncates": 0,
    "truncation_goes_below_the_commit_index": 0,
    "old_terms_are_committed_by_counting": 1,
    "heartbeats_commit_whatever_is_there": 13,
    "reads_are_not_confirmed": 17,
    "retries_are_not_recognised": 0,
    "only_what_is_committed_is_known": 9,
    "an_epoch_begins_with_any_sequence": 0,
    "offsets_are_indexes": 0,
    "retention_keeps_no_state": 0,
    "positions_may_go_back": 1,
    "a_rejection_of_nothing_is_heeded": 10,
    "messages_are_lost_for_good": 2,
}
SEEDS_MAX = 60


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_simulation_finds_out_when(mistake: str) -> None:
    first = MISTAKES[mistake]
    for seed in range(first, first + SEEDS_MAX):
        with getattr(broken_cores, mistake)():
            report = run(seed)
        if report.failure is not None:
            assert run(seed).failure is None, "the mistake, not the seed, makes it fail"
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice it")
