"""Writes constraints.txt: the exact version of everything that any extra of the package pulls in.

Run it by `make pins` after a change of dependencies, read the difference, run `make test`, commit. Only
names and versions are written: where packages are fetched from is each machine's own affair.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HEADER = """\
# Every package that an extra of Talweg pulls in, at the version it is tested with. Written by `make pins`.
"""


def canonical(name: str) -> str:
    """A distribution's name as the index compares it: lower case, runs of -_. are one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(root: Path) -> dict[str, str]:
    """Ask pip which versions it would install now, for all extras at once."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = ",".join(sorted(project["optional-dependencies"]))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    command += ["--disable-pip-version-check", "--report", "-", f"{root}[{extras}]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = (item["metadata"] for item in report["install"])
    pins = {canonical(item["name"]): str(item["version"]) for item in found}
    del pins[canonical(project["name"])]
    return pins


def main() -> None:
    """Resolve and write."""
    root = Path(__file__).resolve().parent.parent
    pins = resolve(root)
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    (root / "constraints.txt").write_text(HEADER + lines)
    print(f"constraints.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
