"""Java libraries by way of Maven's own client, kept in the user's cache: a second run downloads nothing."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_SECONDS_MAX = 300.0
_LOG = "maven.log"  # in the cache: what Maven said last


class Artifact(msgspec.Struct, frozen=True):
    """A library, as Maven names it."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.name} {self.version}"


class Libraries(msgspec.Struct, frozen=True):
    """Some that are wanted together."""

    artifacts: tuple[Artifact, ...]
    with_dependencies: bool  # also what they need in turn

    def project(self) -> str:
        """The file that Maven reads."""
        return (
            "<project><modelVersion>4.0.0</modelVersion>\n"
            "<groupId>bench</groupId><artifactId>libraries</artifactId><version>1</version>\n"
            f"<dependencies>\n{''.join(map(self._dependency, self.artifacts))}</dependencies></project>\n"
        )

    def _dependency(self, artifact: Artifact) -> str:
        everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        nothing_else = "" if self.with_dependencies else f"<exclusions>{everything}</exclusions>"
        return (
            f"<dependency><groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
            f"<version>{artifact.version}</version>{nothing_else}</dependency>\n"
        )

    def directory(self, cache: Path) -> Path:
        """Where they are kept."""
        digest = hashlib.sha256(self.project().encode()).hexdigest()[:16]
        return cache / f"{self.artifacts[0].name}-{self.artifacts[0].version}-{digest}"


class NotFetched(Exception):
    """Maven is not there, or did not give what was asked for. Names no host: pages show it."""


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's programs keep what they can get again."""
    # The specification has it that a path that is not absolute is passed over.
    chosen = Path(environment.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "talweg-bench"


def fetch_first(choices: Sequence[Libraries], cache: Path) -> tuple[Libraries, Path]:
    """The first of them that can be had, and its directory of jars. One that is kept is asked of nobody."""
    for libraries in choices:
        if (directory := libraries.directory(cache)).is_dir():
            return libraries, directory
    command = shutil.which("mvn")
    if command is None:
        raise NotFetched("mvn is not installed")
    failures = []
    for libraries in choices:
        try:
            return libraries, _fetch(command, libraries, cache)
        except NotFetched as error:
            failures.append(str(error))
    raise NotFetched("; ".join(failures))


def _fetch(command: str, libraries: Libraries, cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    directory = libraries.directory(cache)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        project = Path(name) / "pom.xml"
        project.write_text(libraries.project())
        jars = Path(name) / "jars"
        arguments = ["--batch-mode", "--quiet", "--file", str(project), _COPY]
        arguments += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        with (cache / _LOG).open("wb") as log:
            try:
                run = subprocess.run(
                    [command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=_SECONDS_MAX,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise NotFetched(
                    f"mvn was not done with {libraries.artifacts[0]} in {_SECONDS_MAX:.0f} s"
                ) from None
        if run.returncode or not jars.is_dir():
            raise NotFetched(f"mvn did not get {libraries.artifacts[0]} (it says why in {_LOG} of its cache)")
        # Under its name only when it is whole.
        jars.replace(directory)
    return directory
