"""Two hundred clusters on virtual time: every invariant holds, and everything that should happen does."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from talweg.testing.simulation import run

SEEDS = 200
CHUNK = 10

# Each of these must happen in the seeds above: a simulation in which nothing happens proves nothing.
EXPECTED = (
    "heads dropped",
    "installs sent",
    "jobs failed: storage_error",
    "jobs failed: storage_full",
    "leaders stepped down",
    "learners added",
    "logs that rotted",
    "messages cut off",
    "messages dropped",
    "messages late",
    "messages repeated",
    "one-way partitions",
    "partitions",
    "pauses",
    "positions acknowledged",
    "promotions",
    "reads confirmed",
    "recoveries",
    "rejections",
    "removals",
    "retries recognised",
    "snapshots",
    "transfers",
    "truncations",
    "votes granted",
    "wipes",
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_invariant_holds_after_every_step(first: int) -> None:
    for seed in range(first, first + CHUNK):
        report = run(seed)
        assert report.failure is None, str(report)


def test_what_should_happen_happens_within_a_few_seeds() -> None:
    counts: Counter[str] = Counter()
    for seed in range(30):
        counts.update(run(seed).counts)
    assert [name for name in EXPECTED if not counts[name]] == []


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    program = "import sys; from talweg.testing.simulation import run; print(run(int(sys.argv[1])).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert digests != {run(4).digest + "\n"}
