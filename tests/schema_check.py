"""Holds a running server to its own OpenAPI document: no 5xx, and no answer that it does not declare."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

TESTS = Path(__file__).resolve().parent

# What a schema allows may still be refused: a topic that is not there, a name that no topic may have, or
# 1.0 where a whole number is meant, which JSON Schema takes for an integer and we do not.
EXCLUDED = ("positive_data_acceptance",)


def check_schema(
    endpoint: str,
    *,
    examples: int = 30,
    seed: int = 1,
    excluded: tuple[str, ...] = EXCLUDED,
    parameters: Mapping[str, str | int] = MappingProxyType({}),
) -> None:
    """Run Schemathesis against a server, in a process of its own; fails with what it found.

    `parameters` are values that exist there, so that more than refusals is tried.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{endpoint}/openapi.json", "--no-color"]
    command += ["--seed", str(seed), "--max-examples", str(examples), "--generation-database", "none"]
    if excluded:
        command += ["--exclude-checks", ",".join(excluded)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as directory:
        known = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
        Path(directory, "schemathesis.toml").write_text(f"[parameters]\n{known}")
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=directory, check=False, timeout=240
        )
    found = ran.stdout + ran.stderr
    assert ran.returncode == 0, found
    # What could not be tried is no success either.
    assert re.search(r"^=+ (No issues found|\d+ warnings?) in ", found, re.MULTILINE), found
    assert re.search(r"Selected: ([1-9]\d*)/\1\n +Tested: \1\n", found), found
