"""The menu is complete and true, and what it starts is sound. How machines are prepared: test_prepare.py."""

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}


def run(
    *command: str, cwd: Path = ROOT, environment: Mapping[str, str] = PLAIN
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=dict(environment), text=True, capture_output=True, timeout=60, check=False
    )


def menu() -> dict[str, str]:
    answer = run("make", "help")
    assert answer.returncode == 0, answer.stderr
    return dict(re.findall(r"^  (\w+) +(\S.*)$", answer.stdout, re.MULTILINE))


def test_make_alone_prints_the_menu_without_preparing_anything() -> None:
    assert run("make").stdout == run("make", "help").stdout
    assert run("make", "-n").returncode == 0


def test_the_menu_holds_what_the_house_promises() -> None:
    assert {"test", "check", "simulate", "bench", "help"} <= menu().keys()


def test_every_target_is_on_the_menu_or_a_step_of_one() -> None:
    targets = re.findall(r"^\.PHONY: (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) == menu().keys() | {"environment", "java", "servers"}


@pytest.mark.parametrize("target", ["test", "check", "simulate", "bench", "demo", "chaos"])
def test_every_target_prepares_before_it_works(target: str) -> None:
    steps = run("make", "-n", target).stdout.splitlines()
    assert steps[0].startswith("tools/prepare")


@pytest.mark.parametrize(("target", "asked"), [("demo", "--java"), ("bench", "--try-java")])
def test_what_runs_spark_gets_java_and_what_can_do_without_it_tries(target: str, asked: str) -> None:
    assert asked in run("make", "-n", target).stdout.splitlines()[0].split()


def test_the_checks_see_all_code() -> None:
    steps = run("make", "-n", "check").stdout
    code = {"src", "tests", "tools", "bench", "examples"}
    for tool, places in (("ruff check", code), ("ruff format --check", code), ("mypy", code - {"tests"})):
        (step,) = re.findall(rf"-m {tool} (.+)", steps)
        assert places <= set(step.split())


def test_the_tests_get_their_servers_and_the_checks_come_first() -> None:
    steps = run("make", "-n", "test").stdout
    assert -1 < steps.find("tools/prepare --servers") < steps.find("-m mypy") < steps.find("-m pytest")


def test_simulate_passes_its_seeds_on() -> None:
    steps = run("make", "-n", "simulate", "SEEDS=7", "FIRST=41").stdout
    assert "-m talweg.testing.simulate --seeds 7 --first 41" in steps


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("\nmake test")


def test_scripts_are_sound_and_executable() -> None:
    for script in (ROOT / "tools/prepare", ROOT / ".ci/run"):
        assert os.access(script, os.X_OK)
        assert "set -euo pipefail" in script.read_text()
        assert run("bash", "-n", str(script)).returncode == 0


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_by_name_and_version_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {canonical(re.split(r"[^\w.-]", text)[0]) for text in wanted} - {"talweg"}
    assert names <= {line.partition("==")[0] for line in pins}
