"""The menu is complete and true, and `tools/prepare` copes with the machines it may meet.

The preparing script runs here on a machine made of small scripts: a PATH with nothing else on it.
"""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
TOOLS = "bash cat chmod cksum dirname env flock grep id mkdir rm sed sh tail touch true".split()


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


@pytest.mark.parametrize("target", ["bench", "demo"])
def test_what_runs_spark_gets_java(target: str) -> None:
    assert "--java" in run("make", "-n", target).stdout.splitlines()[0]


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


class Machine:
    """A copy of the tree's set-up on a machine of scripts, each of which notes how it was called."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = directory / "tree"
        self.programs = directory / "bin"
        self.system = directory / "system"
        self.calls = directory / "calls"
        for place in (self.tree / "tools", self.programs, self.system / "usr/sbin"):
            place.mkdir(parents=True)
        shutil.copy(ROOT / "tools/prepare", self.tree / "tools")
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.tree)
        for name in TOOLS:
            (self.programs / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name} here"))
        self.calls.touch()
        self.user(0)

    def program(self, name: str, script: str = "") -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n{script}\n')
        path.chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"echo {number}")

    def python(self, name: str = "python3", *, old: bool = False, ensurepip: str = "true") -> None:
        """An interpreter that makes environments of itself."""
        self.program(
            name,
            f"""case "$*" in
                *version_info*3,*11*) {"false" if old else "true"} ;;
                *ensurepip*) {ensurepip} ;;
                *print*) echo 3.11 ;;
                *-m\\ venv\\ --clear*) rm -rf .venv; mkdir -p .venv/bin; cat "$0" >.venv/bin/python
                    chmod +x .venv/bin/python ;;
            esac""",
        )

    def servers(self) -> None:
        for name in ("postgres", "mariadbd", "redis-server", "java"):
            self.program(name)

    def packages(self, *, update: str = "true") -> None:
        """apt-get and its lists; installing a server's package makes the server's program."""
        touched = " ".join(
            f"{package}) touch {self.programs}/{program}; chmod +x {self.programs}/{program} ;;"
            for package, program in [
                ("postgresql", "postgres"),
                ("mariadb-server", "mariadbd"),
                ("redis-server", "redis-server"),
                ("openjdk-17-jre-headless", "java"),
            ]
        )
        policy = self.system / "usr/sbin/policy-rc.d"
        self.program(
            "apt-get",
            f"""case "$*" in *update*) {update} || exit 100; exit ;; esac
            [ -x {policy} ] || exit 99
            echo "frontend $DEBIAN_FRONTEND" >>{self.calls}
            for package in "$@"; do
                case $package in {touched} *-venv) touch {self.directory}/venv ;; esac
            done""",
        )
        self.program("apt-cache")

    def prepare(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "HOME": "/nowhere", "PREPARE_ROOT": str(self.system)}
        return run("bash", "tools/prepare", *arguments, cwd=self.tree, environment=environment)

    def noted(self, pattern: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if re.search(pattern, line)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fresh_machine_gets_an_environment_with_pinned_dependencies(machine: Machine) -> None:
    machine.python()
    answer = machine.prepare()
    assert answer.returncode == 0, answer.stderr
    (installed,) = machine.noted(r"-m pip install .* -e ")
    assert "-c constraints.txt" in installed
    assert installed.endswith("-e .[dev]")


def test_a_second_run_does_nothing_and_says_nothing(machine: Machine) -> None:
    machine.python()
    machine.servers()
    assert machine.prepare("--servers").returncode == 0
    machine.calls.write_text("")
    answer = machine.prepare("--servers")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert machine.noted("pip|venv") == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_dependency_is_installed(machine: Machine, name: str) -> None:
    machine.python()
    machine.prepare()
    machine.calls.write_text("")
    with (machine.tree / name).open("a") as file:
        file.write("# changed\n")
    assert machine.prepare().returncode == 0
    assert machine.noted("-m pip install")
    assert not machine.noted("-m venv")


def test_each_set_of_extras_is_installed_once(machine: Machine) -> None:
    machine.python()
    machine.prepare()
    machine.calls.write_text("")
    machine.prepare("--extras", "dev,bench")
    machine.prepare("--extras", "dev,bench")
    assert len(machine.noted(r"-e \.\[dev,bench\]$")) == 1


def test_an_environment_that_was_moved_is_made_anew(machine: Machine) -> None:
    machine.python()
    machine.prepare()
    machine.tree = machine.tree.rename(machine.directory / "elsewhere")
    machine.calls.write_text("")
    assert machine.prepare().returncode == 0
    assert machine.noted("-m venv")
    assert machine.noted("-m pip install")


def test_a_failed_installation_is_tried_again(machine: Machine) -> None:
    machine.python()
    works = (machine.programs / "python3").read_text()
    (machine.programs / "python3").write_text(
        works + '\ncase "$*" in *-m\\ pip*) echo no route; exit 1 ;; esac\n'
    )
    answer = machine.prepare()
    assert answer.returncode != 0
    assert "no route" in answer.stderr
    (machine.tree / ".venv/bin/python").write_text(works)
    assert machine.prepare().returncode == 0
    assert machine.noted(r"-e \.\[dev\]")


def test_an_interpreter_that_is_too_old_is_passed_over(machine: Machine) -> None:
    machine.python("python3", old=True)
    machine.python("python3.12")
    answer = machine.prepare()
    assert answer.returncode == 0, answer.stderr
    assert machine.noted("^python3.12 -m venv")


def test_without_a_new_enough_interpreter_it_says_what_to_install(machine: Machine) -> None:
    machine.python("python3", old=True)
    answer = machine.prepare()
    assert answer.returncode == 1
    assert "no Python 3.11 or newer" in answer.stderr
    assert "python3-venv" in answer.stderr


def test_a_missing_ensurepip_is_installed_where_that_may_be_done(machine: Machine) -> None:
    machine.python(ensurepip=f"[ -e {machine.directory}/venv ]")
    machine.packages()
    answer = machine.prepare()
    assert answer.returncode == 0, answer.stderr
    assert machine.noted(r"^apt-get .* install .* python3\.11-venv$")


def test_a_missing_ensurepip_is_named_where_it_may_not(machine: Machine) -> None:
    machine.python(ensurepip="false")
    machine.packages()
    machine.user(1000)
    answer = machine.prepare()
    assert answer.returncode == 1
    assert "sudo apt-get install python3.11-venv" in answer.stderr
    assert machine.noted("^apt-get") == []


def test_missing_servers_and_java_are_installed_without_questions_and_not_started(machine: Machine) -> None:
    machine.python()
    machine.packages()
    answer = machine.prepare("--servers")
    assert answer.returncode == 0, answer.stderr
    installed = [line.split()[-1] for line in machine.noted("^apt-get .* install ")]
    assert installed == ["postgresql", "mariadb-server", "redis-server", "openjdk-17-jre-headless"]
    assert set(machine.noted("^frontend")) == {"frontend noninteractive"}
    # The policy that keeps services down was there while packages were installed, and is gone.
    assert list((machine.system / "usr/sbin").iterdir()) == []


def test_a_policy_of_the_machines_own_is_left_alone(machine: Machine) -> None:
    machine.python()
    machine.packages()
    policy = machine.system / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    assert machine.prepare("--servers").returncode == 0
    assert policy.exists()


def test_only_what_is_missing_is_installed(machine: Machine) -> None:
    machine.python()
    machine.packages()
    machine.servers()
    (machine.programs / "postgres").unlink()
    binary = machine.system / "usr/lib/postgresql/15/bin/postgres"
    binary.parent.mkdir(parents=True)
    binary.touch()
    (machine.programs / "redis-server").unlink()
    assert machine.prepare("--servers").returncode == 0
    assert [line.split()[-1] for line in machine.noted("^apt-get .* install ")] == ["redis-server"]


def test_a_list_that_cannot_be_fetched_is_no_reason_to_stop(machine: Machine) -> None:
    machine.python()
    machine.packages(update="false")
    answer = machine.prepare("--servers")
    assert answer.returncode == 0, answer.stderr
    assert (machine.programs / "postgres").exists()


def test_servers_that_may_not_be_installed_are_named(machine: Machine) -> None:
    machine.python()
    machine.packages()
    machine.servers()
    (machine.programs / "mariadbd").unlink()
    machine.user(1000)
    answer = machine.prepare("--servers")
    assert answer.returncode == 1
    assert "sudo apt-get install --no-install-recommends mariadb-server\n" in answer.stderr
    assert machine.noted("^apt-get") == []


def test_a_user_with_sudo_and_no_password_installs(machine: Machine) -> None:
    machine.python()
    machine.packages()
    machine.servers()
    (machine.programs / "redis-server").unlink()
    machine.user(1000)
    machine.program("sudo", 'shift; exec "$@"')
    answer = machine.prepare("--servers")
    assert answer.returncode == 0, answer.stderr
    assert machine.noted("^sudo -n env .*apt-get .*redis-server")
    assert list((machine.system / "usr/sbin").iterdir()) == []


@pytest.mark.parametrize("asked", ["--servers", "--java"])
def test_missing_java_is_named_where_it_may_not_be_installed(machine: Machine, asked: str) -> None:
    machine.python()
    machine.servers()
    (machine.programs / "java").unlink()
    machine.user(1000)
    answer = machine.prepare(asked)
    assert answer.returncode == 1
    assert "sudo apt-get install --no-install-recommends openjdk-17-jre-headless\n" in answer.stderr


def test_java_alone_is_installed_for_the_demo(machine: Machine) -> None:
    machine.python()
    machine.packages()
    assert machine.prepare("--java").returncode == 0
    installed = [line.split()[-1] for line in machine.noted("^apt-get .* install ")]
    assert installed == ["openjdk-17-jre-headless"]
