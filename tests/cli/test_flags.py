"""Settings as flags: each is one, is explained, and is told apart from one that was not given."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.talweg_command import run
from talweg.cli.flags import Flags, with_flags
from talweg.config import BrokerSettings, ManagerSettings, ProcessSettings, default_of, settings_of

PROCESSES = [BrokerSettings, ManagerSettings]


def flags_given(process: type[ProcessSettings], arguments: Sequence[str]) -> tuple[Flags, bool]:
    seen: list[tuple[Flags, bool]] = []
    app = typer.Typer()
    app.command()(with_flags(process)(lambda flags, attached: seen.append((flags, attached))))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return seen[0]


@pytest.mark.parametrize("process", PROCESSES)
def test_every_setting_is_a_flag(process: type[ProcessSettings]) -> None:
    for setting in settings_of(process).values():
        if setting.flag != "--read-only":
            assert flags_given(process, [setting.flag, "x"]) == ({setting.flag: "x"}, False)


def test_what_is_not_given_is_not_passed_on() -> None:
    assert flags_given(BrokerSettings, []) == ({}, False)


@pytest.mark.parametrize(
    ("argument", "value"), [("-r", True), ("--read-only", True), ("--no-read-only", False)]
)
def test_read_only_is_a_switch(argument: str, value: bool) -> None:
    assert flags_given(ManagerSettings, [argument]) == ({"--read-only": value}, False)


def test_a_file_and_a_parent_may_be_named() -> None:
    assert flags_given(ManagerSettings, ["--config", "a.toml", "--attached"]) == (
        {"--config": "a.toml"},
        True,
    )


@pytest.mark.parametrize("process", PROCESSES)
def test_help_explains_every_setting(process: type[ProcessSettings]) -> None:
    shown = run(process.section, "--help", environment={"COLUMNS": "400"})
    assert shown.returncode == 0
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown.stdout).split())
    for field, setting in settings_of(process).items():
        for text in (setting.flag, setting.variable, setting.purpose, setting.kind.expected):
            assert " ".join(text.split()) in words
        assert f"Default: {default_of(process, field)}." in words


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"talweg \d+\.\d+\.\d+\S*\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "environment", "named", "expected"),
    [
        (["broker", "--port", "x"], {}, "--port", "a whole number from 0 to 65535"),
        (["broker"], {"TALWEG_HEARTBEAT": "5"}, "TALWEG_HEARTBEAT", "a time with its unit"),
        (["manager"], {"PORT": "-1"}, "PORT", "a whole number"),
        (["manager", "--metadata", "mongodb://x"], {}, "--metadata", "sqlite:///file"),
        (["manager"], {"TALWEG_PROT": "1"}, "TALWEG_PROT", "TALWEG_PORT"),
        (["manager"], {"READ_ONLY": "perhaps"}, "READ_ONLY", "true or false"),
        (["up"], {"TALWEG_TICK": "soon"}, "TALWEG_TICK", "a time with its unit"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(
    arguments: list[str], environment: dict[str, str], named: str, expected: str, tmp_path: Path
) -> None:
    if arguments == ["up"]:
        arguments = ["up", "--data", str(tmp_path)]
    ended = run(*arguments, environment=environment)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert named in ended.stderr
    assert expected in ended.stderr


def test_a_wrong_setting_in_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "talweg.toml").write_text("[broker]\ntick = 5\n")
    ended = run("broker", "--config", str(tmp_path / "talweg.toml"))
    assert ended.returncode == 2
    assert "tick in [broker]" in ended.stderr


@pytest.mark.parametrize("arguments", [["broker", "--prot", "1"], ["breaker"], ["up", "--port", "none"]])
def test_what_is_no_flag_or_command_is_told_without_a_trace(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
