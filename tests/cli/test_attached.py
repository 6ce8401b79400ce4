"""Servers as a local cluster starts them: the same settings as by the command, without loading it."""

import subprocess
import sys

import pytest

from cli.talweg_command import clean_environment
from talweg.cli.attached import read_flags
from talweg.errors import InvalidSetting


def test_flags_are_read_with_their_values() -> None:
    given = ["--port", "5", "--read-only", "--data", "a b", "--no-read-only"]
    assert read_flags(given) == {"--port": "5", "--read-only": "false", "--data": "a b"}


@pytest.mark.parametrize("given", [["--port"], ["port", "5"], ["--port", "5", "--data"]])
def test_a_flag_without_a_value_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidSetting, match=given[-1] if len(given) != 2 else "port"):
        read_flags(given)


@pytest.mark.parametrize("role", ["broker", "manager"])
def test_a_wrong_setting_ends_it_with_one_line(role: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "talweg.cli.attached", role, "--port", "x"],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("talweg: --port: expected a whole number")


def test_the_command_line_is_not_loaded() -> None:
    code = "import sys, talweg.cli.attached; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert not {"typer", "rich", "talweg.broker", "talweg.manager"} & set(loaded)
