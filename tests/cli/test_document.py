"""docs/cli.md names every command, and only what exists; its examples run."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.shell import Shell
from cli.talweg_command import clean_environment
from talweg.cli.main import app
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cli-commands")

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCUMENTS / "cli.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
SPANS = [span for span in re.findall(r"`([^`\n]+)`", TEXT) if span.startswith("talweg ")]
ENDLESS = ("talweg up", "talweg broker --", "talweg manager", "talweg tail -f")

ROOT: Any = get_command(app)


def commands(group: Any = ROOT, name: str = "talweg") -> Iterator[tuple[str, Any]]:
    yield name, group
    for each, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {each}")


ALL = dict(commands())
OURS = [name for name in ALL if name.split()[1:2] != ["pipeline"]]


def named(line: str) -> tuple[str, list[str]]:
    """The command that a line runs, and the options that it gives."""
    words = shlex.split(re.split(r" (?:\||<|--) ", line, maxsplit=1)[0])
    name = words.pop(0)
    while words and f"{name} {words[0]}" in ALL:
        name = f"{name} {words.pop(0)}"
    return name, [word for word in words if re.match(r"--?[a-z]", word)]


def test_every_command_is_named() -> None:
    told = {named(line)[0] for line in [*LINES, *SPANS]}
    # What has a page of its own need not be told twice.
    told |= {
        name
        for name in ALL
        for page in DOCUMENTS.glob("*.md")
        if page.name != "cli.md" and name in page.read_text()
    } - set(OURS)
    # A group by itself does nothing that its subcommands do not; `broker` is one that does.
    groups = {name for name, command in ALL.items() if hasattr(command, "commands")} - {"talweg broker"}
    assert set(ALL) - groups - told == set()


@pytest.mark.parametrize("line", [*LINES, *SPANS])
def test_what_is_named_exists(line: str) -> None:
    if re.search(r"\b[A-Z]{4,}\b", line.split()[1]):
        return  # talweg COMMAND
    name, given = named(line)
    assert name != "talweg" or not given or given[0].startswith("--"), line
    known = {"--help", "--install-completion", "--show-completion"}
    known |= {option for parameter in ALL[name].params for option in parameter.opts}
    assert set(given) <= known


def test_every_option_named_in_the_text_exists() -> None:
    known = {option for command in ALL.values() for each in command.params for option in each.opts}
    known |= {"--help", "--install-completion", "--show-completion"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) <= known


def test_exit_codes_are_the_documented_ones() -> None:
    from talweg.cli import complaints

    assert complaints.__doc__ is not None
    documented = set(re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE))
    assert documented == set(re.findall(r"^    (\d+) ", complaints.__doc__, re.MULTILINE))


def test_the_examples_run(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    talweg = Shell(cluster.url)
    for name in talweg("topic", "list").lines:
        talweg("topic", "delete", name, "--yes")
    (tmp_path / "app.log").write_text("one\ntwo\n")
    program = tmp_path / "bin" / "talweg"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m talweg.cli "$@"\n')
    program.chmod(0o755)
    ran = 0
    for line in LINES:
        if line.startswith(ENDLESS):
            continue
        ran += 1
        if not set("|<>") & set(line):
            talweg(*shlex.split(line)[1:])
            continue
        ended = subprocess.run(
            [shutil.which("bash") or "bash", "-eo", "pipefail", "-c", line],
            env=clean_environment(TALWEG_URL=cluster.url, PATH=f"{program.parent}:/usr/bin:/bin"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), line
    assert ran > 25
    assert (tmp_path / "logs.parquet").exists()
