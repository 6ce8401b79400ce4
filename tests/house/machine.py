"""A machine made of small scripts, for `tools/prepare`: a PATH with nothing else on it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "bash cat chmod cksum dirname env flock grep id mkdir rm sed sh tail touch true".split()


class Machine:
    """A copy of the tree's set-up on a machine of scripts, each of which notes how it was called."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = directory / "tree"
        self.programs = directory / "bin"
        self.shelf = directory / "shelf"  # programs that come with packages
        self.system = directory / "system"
        self.policy = self.system / "usr/sbin/policy-rc.d"
        self.calls = directory / "calls"
        for place in (self.tree / "tools", self.programs, self.shelf, self.policy.parent):
            place.mkdir(parents=True)
        shutil.copy(ROOT / "tools/prepare", self.tree / "tools")
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.tree)
        for name in TOOLS:
            (self.programs / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name} here"))
        self.calls.touch()
        self.user(0)

    def program(self, name: str, script: str = "", directory: Path | None = None) -> None:
        path = (directory or self.programs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n{script}\n')
        path.chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"echo {number}")

    def python(
        self,
        name: str = "python3",
        *,
        old: bool = False,
        ensurepip: str = "true",
        directory: Path | None = None,
    ) -> None:
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
            directory,
        )

    def java(self, version: str = "17.0.15", directory: Path | None = None) -> None:
        """One that says its version where Java does: on standard error, perhaps after other things."""
        said = f'Picked up JAVA_TOOL_OPTIONS: -Dx=11\nopenjdk version "{version}" 2025-04-15'
        self.program("java", f"echo '{said}' >&2", directory)

    def servers(self, directory: Path | None = None) -> None:
        for name in ("postgres", "mariadbd", "redis-server"):
            self.program(name, directory=directory)
        self.java(directory=directory)

    def packages(self, *, update: str = "true") -> None:
        """apt-get and its lists; installing a server's package makes the server's program."""
        self.servers(self.shelf)
        taken = " ".join(
            f"{package}) cat {self.shelf}/{program} >{self.programs}/{program}; "
            f"chmod +x {self.programs}/{program} ;;"
            for package, program in [
                ("postgresql", "postgres"),
                ("mariadb-server", "mariadbd"),
                ("redis-server", "redis-server"),
                ("openjdk-17-jre-headless", "java"),
            ]
        )
        self.program(
            "apt-get",
            f"""case "$*" in *update*) {update} || exit 100; exit ;; esac
            [ -x {self.policy} ] || exit 99
            echo "frontend $DEBIAN_FRONTEND" >>{self.calls}
            for package in "$@"; do
                case $package in {taken} *-venv) touch {self.directory}/venv ;; esac
            done""",
        )
        self.program("apt-cache")

    def prepare(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "HOME": "/nowhere", "PREPARE_ROOT": str(self.system)}
        return subprocess.run(
            ["bash", "tools/prepare", *arguments],
            cwd=self.tree,
            # The shell has the way by which a directory was entered from this variable.
            env=environment | {"PWD": str(self.tree)} | variables,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def noted(self, pattern: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if re.search(pattern, line)]
