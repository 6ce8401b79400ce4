"""The examples of docs/testing.md run, as the files of a user."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing.sessions import Session

pytestmark = pytest.mark.xdist_group("testing")

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
PLUGIN, TESTS, ARGUMENTS, SCRIPT = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_tests_of_the_document_pass(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.write("conftest.py", PLUGIN)
    session.write("test_user.py", TESTS)
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


def test_the_arguments_of_the_document_are_taken(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.write("conftest.py", PLUGIN + ARGUMENTS)
    session.write(
        "test_user.py",
        """
        def test_it(talweg_cluster):
            assert len(talweg_cluster.statuses()) == 5
            assert len(talweg_cluster.managers) == 3
        """,
    )
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_script_of_the_document_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("broker-")
