"""The machine that was measured on: facts without its name and without its paths."""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})  # fdatasync costs nothing there, and proves nothing
_PACKAGES = ("pyarrow", "msgspec", "crc32c", "uvloop", "pysyncobj")


def facts(directory: Path) -> dict[str, str]:
    """What a reader of the figures wants to know, by name."""
    return {
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{_memory_bytes() / 2**30:.0f} GB",
        "File system": file_system(directory),
        "Kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
    }


def load() -> str:
    """How busy it is, for a note beside the figures."""
    return f"{os.getloadavg()[0]:.1f}"


def file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`: the longest mount point above it decides."""
    best, kind = -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mounted_at = Path(before.split()[4])
        if directory.is_relative_to(mounted_at) and len(mounted_at.parts) >= best:
            best, kind = len(mounted_at.parts), after.split()[0]
    return kind


@contextmanager
def scratch_directory(chosen: Path | None) -> Iterator[Path]:
    """A directory on a disk, removed afterwards: below `chosen`, or where temporary files go.

    Where those are kept in memory, the working directory serves instead.
    """
    parent = chosen or Path(tempfile.gettempdir())
    if chosen is None and file_system(parent.resolve()) in _IN_MEMORY:
        parent = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="talweg-bench-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def java_major() -> int | None:
    """The version of the Java that Spark would run: JAVA_HOME's; only without that, the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(missing)"
