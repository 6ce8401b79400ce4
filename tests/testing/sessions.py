"""A session of pytest in a directory of its own, as a user of Talweg has it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

CONFTEST = 'pytest_plugins = ["talweg.testing.fixture"]\n'
# Of whoever runs these tests, too: a session is to be judged by what it is told here.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-W", "error")


class Session:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "pytest.ini").write_text("[pytest]\n")
        self.write("conftest.py", CONFTEST)

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(textwrap.dedent(text))

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TALWEG_", "PYTEST_"))}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *options],
            cwd=self.directory,
            env=kept,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
