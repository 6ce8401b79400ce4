"""A simulation that has never failed is not to be trusted: each of these mistakes is found, and quickly."""

from random import Random
from typing import Any

import msgspec
import pytest

from simulation import broken_cores
from simulation.broken_cores import Breakage
from talweg.raft import Settings
from talweg.replication.state import RECENT_BATCHES
from talweg.testing.simulation import Profile, draw_profile, run
from talweg.testing.simulation.network import Weather
from talweg.testing.simulation.schedule import TICK_US

SEEDS_MAX = 60
# What Python says of a mistake that does not fit the code, or no longer does. It proves nothing.
MISFITS = ("TypeError:", "AttributeError:")

EAGER = Settings(heartbeat_ticks=1, election_ticks=5)  # elections are short, and many fit in
CALM = {"voters": 3, "spares": 0, "duration_ticks": 400, "operations": (), "journal_bytes": 0}
JOURNALED = {"journal_bytes": 1500, "segment_bytes": 65_536, "fault_interval_ticks": 15}
BUSY = {"producers": 4, "pause_between_batches_ticks": 4, "client_timeout_ticks": 8}
LARGE_WRITES = {  # over several sectors
    "producers": 4,
    "pause_between_batches_ticks": 1,
    "batches_at_once": RECENT_BATCHES,
    "disk_us": 10_000,
    "settings": Settings(),
}


class Mistake(msgspec.Struct, frozen=True):
    """Something that is broken, and where it shows."""

    broken: Breakage
    # A seed that is known to find it, or one shortly before: the search begins there, so that it is quick.
    # Should the generator change, those after it are tried.
    first: int = 0
    changes: dict[str, Any] = {}  # to the profile that a seed draws: what goes wrong often enough to show it

    def profile(self, seed: int) -> Profile:
        """What the run with this seed is like."""
        return msgspec.structs.replace(draw_profile(Random(seed)), **self.changes)


MISTAKES = [
    Mistake(broken_cores.votes_are_not_persisted),
    Mistake(broken_cores.nothing_is_synced),
    Mistake(broken_cores.promises_leave_before_they_are_durable),
    Mistake(broken_cores.a_leader_counts_itself_before_it_is_durable),
    Mistake(
        broken_cores.a_wiped_replica_votes,
        changes=CALM | {"faults": ("wipe", "isolate_leader", "crash_leader"), "fault_interval_ticks": 10},
    ),
    Mistake(broken_cores.a_damaged_log_is_cut_and_forgotten, changes={"faults": ("rot",)}),
    Mistake(
        broken_cores.a_forgetful_voter_counts,
        changes=CALM | {"faults": ("forgetful_voter",), "fault_interval_ticks": 20},
    ),
    Mistake(
        broken_cores.a_forgetful_voter_is_whole_too_early,
        changes=CALM | {"faults": ("forgetful_voter", "wipe"), "fault_interval_ticks": 10},
    ),
    Mistake(
        broken_cores.votes_are_counted_twice,
        first=7,
        changes=CALM
        | {
            "voters": 5,
            "settings": EAGER,
            "weather": Weather(delay_us=9000, late=0.3, late_us=2 * TICK_US, duplicate=0.6, in_order=False),
            "faults": ("isolate_leader", "crash_leader", "connection_loss"),
            "fault_interval_ticks": 12,
        },
    ),
    Mistake(broken_cores.any_log_is_up_to_date),
    Mistake(broken_cores.any_overlap_truncates),
    Mistake(broken_cores.runs_that_begin_alike_are_alike, first=6),
    Mistake(broken_cores.truncation_goes_below_the_commit_index),
    Mistake(broken_cores.old_terms_are_committed_by_counting, first=4),
    Mistake(
        broken_cores.heartbeats_commit_whatever_is_there,
        changes=CALM | BUSY | {"faults": ("isolate_leader",), "fault_interval_ticks": 15},
    ),
    Mistake(
        broken_cores.two_voters_change_at_once,
        first=42,
        changes={
            "voters": 3,
            "spares": 2,
            "faults": ("isolate_leader", "partition"),
            "fault_interval_ticks": 15,
            "operations": ("add_voter", "remove", "demote", "promote"),
            "operation_interval_ticks": 4,
        },
    ),
    Mistake(
        broken_cores.reads_are_not_confirmed,
        changes=CALM | BUSY | {"faults": ("forgetful_voter",), "fault_interval_ticks": 15, "readers": 2},
    ),
    Mistake(broken_cores.retries_are_not_recognised),
    Mistake(
        broken_cores.only_what_is_committed_is_known,
        changes=CALM | BUSY | {"faults": ("isolate_leader", "slow_disk")},
    ),
    Mistake(broken_cores.an_epoch_begins_with_any_sequence, first=2),
    Mistake(broken_cores.offsets_are_indexes),
    Mistake(broken_cores.retention_keeps_no_state),
    Mistake(broken_cores.positions_may_go_back),
    Mistake(
        broken_cores.whoever_leads_no_more_turns_producers_away,
        first=6,
        changes=CALM
        | BUSY
        | {
            "settings": Settings(heartbeat_ticks=1),
            "faults": ("forgetful_voter", "isolate_leader"),
            "fault_interval_ticks": 15,
            "pause_between_batches_ticks": 2,
            "client_timeout_ticks": 5,
        },
    ),
    Mistake(
        broken_cores.a_rejection_of_nothing_is_heeded,
        changes=CALM
        | {
            "weather": Weather(late=0.3, late_us=10 * TICK_US, in_order=False),
            "faults": ("isolate_leader", "connection_loss"),
            "fault_interval_ticks": 10,
            "operations": ("transfer",),
            "operation_interval_ticks": 10,
        },
    ),
    Mistake(broken_cores.messages_are_lost_for_good),
    Mistake(
        broken_cores.no_reply_carries_a_newer_term,
        first=25,
        changes=CALM
        | {
            "settings": EAGER,
            "weather": Weather(drop=0.3),
            "faults": ("isolate_leader", "crash"),
            "fault_interval_ticks": 10,
            "operations": ("transfer",),
            "operation_interval_ticks": 5,
        },
    ),
    Mistake(
        broken_cores.a_meta_file_is_believed_after_its_sync_failed,
        first=11,
        changes=CALM
        | BUSY
        | {
            "duration_ticks": 1000,
            "faults": ("failing_sync", "crash"),
            "fault_interval_ticks": 10,
            "operations": ("retention",),
            "operation_interval_ticks": 5,
            "segment_bytes": 600,
        },
    ),
    Mistake(
        broken_cores.damage_hides_what_comes_before_it,
        first=5,
        changes=CALM
        | BUSY
        | {"faults": ("rot", "crash_during_disk_work"), "fault_interval_ticks": 10, "segment_bytes": 1500},
    ),
    Mistake(
        broken_cores.the_disk_is_read_up_to_what_is_applied,
        first=26,
        changes=CALM
        | BUSY
        | {"faults": ("isolate_leader", "slow_disk"), "fault_interval_ticks": 10, "readers": 4},
    ),
    Mistake(broken_cores.the_journal_is_not_synced, changes=JOURNALED | {"faults": ("crash", "crash_all")}),
    Mistake(
        broken_cores.the_journal_is_not_recovered, changes=JOURNALED | {"faults": ("crash", "crash_all")}
    ),
    Mistake(broken_cores.a_checkpoint_syncs_nothing, changes=JOURNALED | {"faults": ("crash", "crash_all")}),
    Mistake(
        broken_cores.the_journal_brings_back_what_was_cut,
        changes=JOURNALED | {"faults": ("crash", "crash_leader", "isolate_leader")},
    ),
    Mistake(
        broken_cores.zeros_that_a_power_cut_left_are_damage,
        first=8,
        changes=CALM | LARGE_WRITES | {"faults": ("crash_during_disk_work",), "fault_interval_ticks": 10},
    ),
    Mistake(
        broken_cores.only_what_comes_last_is_missing_after_a_power_cut,
        first=35,
        changes=CALM | LARGE_WRITES | {"faults": ("crash_during_disk_work",), "fault_interval_ticks": 10},
    ),
    Mistake(broken_cores.what_was_durable_is_not_missed, changes={"faults": ("rot",)}),
    Mistake(
        broken_cores.what_is_not_durable_yet_is_noted,
        first=2,
        changes=CALM | BUSY | {"faults": ("crash_all", "crash_during_disk_work"), "fault_interval_ticks": 10},
    ),
    Mistake(
        broken_cores.what_a_dead_process_left_is_believed,
        first=72,
        changes=CALM
        | BUSY
        | {
            "journal_bytes": 1500,
            "segment_bytes": 600,
            "disk_us": 50,
            "faults": ("crash_during_disk_work", "crash"),
            "fault_interval_ticks": 6,
        },
    ),
    Mistake(
        broken_cores.retention_takes_what_is_staged,
        changes=CALM | {"transactors": 4, "operations": ("retention",), "operation_interval_ticks": 4},
    ),
    Mistake(
        broken_cores.a_new_leader_forgets_what_was_published,
        changes=CALM | {"transactors": 4, "faults": ("crash_leader",), "fault_interval_ticks": 15},
    ),
    Mistake(broken_cores.what_has_expired_is_decided_on, changes=CALM | {"transactors": 4}),
    Mistake(
        broken_cores.who_leaves_itself_out_does_not_stand,
        first=22,
        changes=CALM
        | {
            "spares": 1,
            "faults": ("isolate_leader", "wipe"),
            "fault_interval_ticks": 10,
            "operations": ("add_voter", "remove", "demote"),
            "operation_interval_ticks": 8,
        },
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.broken.__name__)
def test_the_simulation_finds_out_when(mistake: Mistake) -> None:
    for seed in range(mistake.first, mistake.first + SEEDS_MAX):
        with mistake.broken():
            report = run(seed, mistake.profile(seed))
        if report.failure is not None:
            assert not report.failure.startswith(MISFITS), report.failure
            assert report.events, "it says what happened before"
            assert run(seed, mistake.profile(seed)).failure is None, (
                "the mistake, not the seed, makes it fail"
            )
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice it")
