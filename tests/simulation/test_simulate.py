"""The command line of the simulation."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simulation import broken_cores
from talweg.raft import Raft
from talweg.testing import simulate
from talweg.testing.simulation import Report, run

COMMAND = [sys.executable, "-u", "-m", "talweg.testing.simulate"]


def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_seeds_that_hold_give_a_summary_of_what_happened_in_them() -> None:
    done = run_command("--seeds", "4", "--first", "3", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "4 of 4 seeds from 3 on, 0 failed" in done.stdout
    assert "batches acknowledged" in done.stdout


def test_the_summary_is_to_be_had_as_json() -> None:
    done = run_command("--seeds", "3", "--jobs", "2", "--json")
    summary = msgspec.json.decode(done.stdout)
    assert (summary["seeds"], summary["done"], summary["failures"]) == (3, 3, [])
    assert summary["counts"]["elections"] > 0


# What workers run instead of a sound seed. They import it from here.


def run_broken(seed: int, **options: Any) -> Report:
    with broken_cores.retries_are_not_recognised():
        return run(seed, **options)


def run_in_its_process(seed: int) -> Report:
    return Report(seed, 1, "", {f"seeds in process {os.getpid()}": 1})


def run_and_tell_whether_it_hears(seed: int) -> Report:
    deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return Report(seed, 1, "", {"deaf" if deaf else "hears": 1})


def run_and_be_killed(seed: int) -> Report:
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_in_its_process(seed)


def run_for_ever(seed: int) -> Report:
    def tick(raft: Raft) -> None:
        while True:
            pass

    if seed != 1:
        return run_in_its_process(seed)
    with broken_cores.patched(Raft, tick=tick):
        return run(seed)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_seed_that_fails_is_shown_and_replayed(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "3", "--jobs", jobs], run_broken) == 1
    shown = capsys.readouterr().out
    assert "failed seeds: 0 1 2" in shown
    assert "seed 1 fails at step" in shown
    assert "--first 1 --seeds 1 --verbose" in shown
    block = next(block for block in shown.split("\n\n") if block.startswith("seed 1 fails"))
    failure, *events, _ = block.splitlines()
    assert len(events) >= 50

    assert simulate.main(["--seeds", "1", "--first", "1", "--verbose"], run_broken) == 1
    replayed = capsys.readouterr().out.splitlines()
    assert failure in replayed
    assert replayed[: replayed.index(failure)][-len(events) :] == events


def test_few_seeds_are_shared_out_among_all_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "2", "--jobs", "2", "--json"], run_in_its_process) == 0
    counts = msgspec.json.decode(capsys.readouterr().out)["counts"]
    assert list(counts.values()) == [1, 1]


def test_a_process_that_dies_costs_the_seed_that_it_had_and_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate.main(["--seeds", "5", "--jobs", "2"], run_and_be_killed) == 1
    shown = capsys.readouterr().out
    assert "seed 1 fails at step 0: its process ended, killed by signal 9\n" in shown
    assert "5 of 5 seeds from 0 on, 1 failed" in shown


def test_a_seed_that_never_ends_is_named_and_says_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "5", "--jobs", "2", "--seconds-max", "1"], run_for_ever) == 1
    shown = capsys.readouterr().out
    failed = re.search(r"^seed 1 fails at step \d+: .*still running after 1 s \[(.*)\]$", shown, re.MULTILINE)
    assert failed is not None
    assert re.search(r"test_simulate\.py:\d+ tick", failed[1])
    assert "5 of 5 seeds from 0 on" in shown


def test_failures_are_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    with broken_cores.offsets_are_indexes():
        assert simulate.main(["--seeds", "1", "--jobs", "1", "--json"]) == 1
    summary: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
    assert summary["failures"][0]["seed"] == 0
    assert "offsets have no gaps" in summary["failures"][0]["failure"]


def test_an_interrupt_ends_it_with_what_there_is() -> None:
    # In a group of its own, which gets the interrupt as a whole: as from a terminal.
    process = subprocess.Popen(
        [*COMMAND, "--seeds", "100000", "--jobs", "2", "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "it has begun"
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 100000 seeds from 0 on" in output
    assert "Traceback" not in errors


def test_an_interrupt_ends_the_workers_too() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--seeds", "100000", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    wait_for_children(process.pid, 2)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)  # ends only when every worker has closed its end
    assert process.returncode == 130
    assert "seeds from 0 on" in output
    assert "Traceback" not in errors


def test_an_interrupt_is_heard_by_the_first_process_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "2", "--jobs", "2", "--json"], run_and_tell_whether_it_hears) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["counts"] == {"deaf": 2}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def wait_for_children(pid: int, count: int) -> None:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while len(children.read_text().split()) <= count:  # the workers, and what keeps track of their resources
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "--seeds: '0', expected a whole number, 1 or more"),
        (["--seeds", "abc"], "--seeds: 'abc', expected a whole number, 1 or more"),
        (["--jobs", "none"], "--jobs: 'none', expected a whole number, 1 or more"),
        (["--first", "-3"], "--first: '-3', expected a whole number, 0 or more"),
        (["--unknown"], "--unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        simulate.main(arguments)
    assert exit_.value.code == 2
    errors = capsys.readouterr().err
    assert "usage" in errors
    assert said in errors
