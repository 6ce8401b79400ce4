"""Two hundred clusters on virtual time: every invariant holds, and everything that should happen does."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest

from talweg.testing.simulation import draw_profile, run
from talweg.testing.simulation.profile import FAULTS, OPERATIONS

SEEDS = 200
CHUNK = 10
CHUNKS = range(0, SEEDS, CHUNK)

# How often each of these must happen in all seeds together, which is about half of how often it does: a
# simulation in which nothing happens proves nothing.
EXPECTED = {
    "answers: not_leader": 10_000,
    "answers: out_of_sequence": 150,
    "answers: overloaded": 20,
    "answers: undecided": 200,
    "appends that begin in a run": 2_500,
    "appends that end in a run": 2_500,
    "applies that end in a run": 700,
    "batches acknowledged": 4_000,
    "batches acknowledged after a retry": 2_000,
    "candidacies": 900,
    "changes refused: CHANGE_PENDING": 15,
    "changes refused: TERM_NOT_OPEN": 5,
    "checkpoints": 500,
    "clocks that drift": 80,
    "connections lost": 800,
    "crashes": 600,
    "crashes during disk work": 60,
    "crashes of all": 50,
    "crashes with a job under way": 100,
    "damage found in use": 2,
    "decisions": 150,
    "decisions that came too late": 15,
    "demotions": 30,
    "elections": 600,
    "failing disks": 50,
    "failing syncs": 70,
    "fetches of a snapshot": 20,
    "fetches of entries": 2_000,
    "full disks": 50,
    "heads dropped": 120,
    "heads dropped in a run": 10,
    "installs sent": 20,
    "jobs failed: storage_error": 500,
    "jobs failed: storage_full": 200,
    "jobs that may go into the journal": 10_000,
    "kills": 100,
    "leaders isolated": 60,
    "leaders removed": 10,
    "leaders stepped down": 350,
    "leaders stopped": 30,
    "learners added": 50,
    "logs that rotted": 25,
    "messages cut off": 8_000,
    "messages dropped": 5_000,
    "messages late": 8_000,
    "messages read": 4_000,
    "messages repeated": 4_000,
    "one-way partitions": 120,
    "partitions": 150,
    "pauses": 90,
    "positions acknowledged": 700,
    "producer restarts": 200,
    "promotions": 25,
    "reads below the log's start": 80,
    "reads confirmed": 1_400,
    "reads refused": 1_500,
    "recoveries": 100,
    "rejections": 2_000,
    "removals": 40,
    "retentions": 120,
    "retries recognised": 700,
    "runs that were there in part": 40,
    "runs written": 1_000,
    "slow disks": 80,
    "snapshots": 800,
    "stages discarded": 80,
    "stages published": 150,
    "starts that failed": 10,
    "storms": 100,
    "transfers": 100,
    "truncations": 50,
    "truncations in a run": 2,
    "turns of publishing": 250,
    "voters added": 10,
    "voters that forgot": 3,
    "votes granted": 1_200,
    "wipes": 50,
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for all of this run's tests, whichever worker they are in."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.mark.parametrize("first", CHUNKS)
def test_every_invariant_holds_after_every_step(first: int, shared: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        report = run(seed)
        assert report.failure is None, str(report)
        counts.update(report.counts)
    _put(shared / f"{first}.json", counts)
    # Chunks run anywhere and in any order. Whichever comes last looks at what all of them did.
    files = [shared / f"{first}.json" for first in CHUNKS]
    if all(file.exists() for file in files):
        _check_coverage([msgspec.json.decode(file.read_bytes(), type=dict[str, int]) for file in files])


def _put(file: Path, counts: Counter[str]) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.encode(counts))
    unfinished.rename(file)


def _check_coverage(parts: list[dict[str, int]]) -> None:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part)
    rare = {name: counts[name] for name, least in EXPECTED.items() if counts[name] < least}
    assert rare == {}, "these should happen more often in all seeds together"


def test_every_kind_of_fault_and_operation_is_drawn_by_some_seed() -> None:
    profiles = [draw_profile(Random(seed)) for seed in range(50)]
    assert {name for profile in profiles for name in profile.faults} == set(FAULTS)
    assert {name for profile in profiles for name in profile.operations} == set(OPERATIONS)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    program = (
        "import sys; from talweg.testing.simulation import run; print(*(run(s).digest for s in range(4)))"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4
