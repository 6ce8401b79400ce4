"""`tools/prepare` copes with the machines it may meet."""

import os
import re
import signal
from pathlib import Path

import pytest

from house.machine import Machine


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


def test_an_environment_serves_by_whatever_way_the_tree_is_entered(machine: Machine) -> None:
    machine.python()
    machine.prepare()
    way = machine.directory / "way"
    way.symlink_to(machine.tree)
    machine.tree = way
    machine.calls.write_text("")
    assert machine.prepare().returncode == 0
    assert machine.noted("-m venv") == []


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


def test_a_chosen_interpreter_may_have_a_space_in_its_path(machine: Machine) -> None:
    machine.python("python3")
    machine.python("python3.12", directory=machine.directory / "my programs")
    answer = machine.prepare(PYTHON=f"{machine.directory}/my programs/python3.12")
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
    machine.policy.write_text("#!/bin/sh\nexit 101\n")
    machine.policy.chmod(0o755)
    assert machine.prepare("--servers").returncode == 0
    assert machine.policy.exists()


def test_a_policy_that_a_killed_run_left_is_taken_away(machine: Machine) -> None:
    machine.python()
    machine.packages()
    works = (machine.programs / "apt-get").read_text()
    machine.program("apt-get", 'case "$*" in *install*) kill -9 $PPID ;; esac')
    assert machine.prepare("--servers").returncode == -signal.SIGKILL
    assert machine.policy.exists()
    (machine.programs / "apt-get").write_text(works)
    assert machine.prepare().returncode == 0, "even by one that installs nothing"
    assert not machine.policy.exists()


def test_a_policy_of_another_run_that_still_installs_is_left_alone(machine: Machine) -> None:
    machine.python()
    machine.packages()
    machine.program("apt-get", f"cat {machine.policy} >{machine.directory}/policy")
    machine.prepare("--servers")
    (own,) = re.findall(r"process (\d+)$", (machine.directory / "policy").read_text(), re.MULTILINE)
    text = (machine.directory / "policy").read_text().replace(own, str(os.getpid()))
    machine.policy.write_text(text)
    assert machine.prepare().returncode == 0
    assert machine.policy.read_text() == text


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


@pytest.mark.parametrize(("version", "major"), [("11.0.20", 11), ("1.8.0_392", 8)])
def test_a_java_that_is_too_old_for_spark_is_none(machine: Machine, version: str, major: int) -> None:
    machine.python()
    machine.java(version)
    machine.user(1000)
    answer = machine.prepare("--java")
    assert answer.returncode == 1
    assert f"Java 17 or newer, and the one on the PATH is {major}\n" in answer.stderr
    machine.user(0)
    machine.packages()
    assert machine.prepare("--java").returncode == 0
    assert machine.noted("^apt-get .* install .* openjdk-17-jre-headless$")


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough_is_left_alone(machine: Machine, version: str) -> None:
    machine.python()
    machine.packages()
    machine.java(version)
    assert machine.prepare("--java").returncode == 0
    assert machine.noted("^apt-get") == []


def test_java_is_looked_for_where_spark_does(machine: Machine) -> None:
    machine.python()
    machine.packages()
    home = machine.directory / "java"
    machine.java("21.0.1", home / "bin")
    assert machine.prepare("--java", JAVA_HOME=str(home)).returncode == 0
    machine.java("17.0.15")
    machine.java("11.0.20", home / "bin")
    answer = machine.prepare("--java", JAVA_HOME=str(home))
    assert answer.returncode == 1, "Spark would take it, whatever is on the PATH"
    assert f"the one in JAVA_HOME ({home}) is 11\n" in answer.stderr
    assert machine.noted("^apt-get") == []


def test_what_can_do_without_java_says_so_and_goes_on(machine: Machine) -> None:
    machine.python()
    machine.user(1000)
    answer = machine.prepare("--extras", "dev,bench", "--try-java")
    assert answer.returncode == 0
    assert "there is none on the PATH" in answer.stderr
    assert "going on without" in answer.stderr
    machine.packages()
    machine.user(0)
    answer = machine.prepare("--extras", "dev,bench", "--try-java")
    assert (answer.returncode, "going on without" in answer.stderr) == (0, False)
    assert machine.noted("^apt-get .* install .* openjdk-17-jre-headless$")
