"""Every scenario prints what was recorded. `pytest tests/raft --record` records it anew."""

from pathlib import Path

import pytest

from raft import scenario
from raft.commands import Play

DIRECTORY = Path(__file__).parent / "scenarios"
EXPECTED = {
    "paper": ["figure7_all_logs", "figure8_no_commit_of_old_term"],
    "election": [
        "prevote",
        "prevote_checkquorum",
        "checkquorum",
        "dueling_candidates",
        "disruptive_follower",
        "free_stuck_candidate",
        "split_vote",
    ],
    "replication": [
        "probe_and_replicate",
        "replicate_pause",
        "heartbeat_resp_recovers_from_probing",
        "lagging_commit",
        "fast_log_rejection",
        "reordered_message",
        "old_messages",
        "duplicate_append_reply",
        "uncommitted_entry_limit",
        "conflict_tail_large_backlog",
    ],
    "storage": [
        "append_aba_race",
        "recover_with_partial_last_entry",
        "last_entry_corruption",
        "checksum_failure_in_middle_refuses",
        "no_commit_with_disk_down",
        "hung_disk_steps_down",
        "crashed_leader_truncation",
        "empty_node_recovery",
        "kill9_all_under_load",
    ],
    "install": ["slow_follower_after_retention", "stale_install"],
    "membership": [
        "add_single",
        "remove_leader_steps_down",
        "learner_does_not_vote",
        "remove_partitioned_node",
        "change_overwritten",
    ],
    "transfer_and_reads": [
        "transfer_to_slow_follower",
        "transfer_timeout",
        "transfer_back",
        "transfer_with_prevote",
        "read_index_safe",
        "read_index_new_leader",
    ],
}


@pytest.mark.parametrize(
    "path", scenario.files(DIRECTORY), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_scenario(path: Path, recording: bool) -> None:
    text = path.read_text(encoding="utf-8")
    blocks = scenario.parse(text)
    assert blocks[0].prose, "a scenario opens with what it shows"
    played = scenario.render(scenario.replay(blocks, Play().run))
    if recording:
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text


def test_every_scenario_that_was_promised_is_there() -> None:
    found = {f"{path.parent.name}/{path.stem}" for path in scenario.files(DIRECTORY)}
    assert {f"{group}/{name}" for group, names in EXPECTED.items() for name in names} <= found


def test_a_scenario_that_prints_something_else_is_noticed() -> None:
    text = "# Prose.\n\ncluster voters=1\ncampaign 1\n----\nnothing of the kind\n"
    played = scenario.render(scenario.replay(scenario.parse(text), Play().run))
    assert "1 becomes leader of term 1" in played
    assert played != text
