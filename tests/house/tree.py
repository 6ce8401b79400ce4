"""How the tree itself is kept: nothing unfinished, nothing overgrown, nothing of one machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LINES_MAX = 450  # of a file in src; past some 400 it wants to be two nouns

DIRECTORIES = ("src", "tests", "tools", "docs", "bench", "examples", ".ci")
NO_TEXT = frozenset({".bin", ".gz", ".png", ".pyc"}) | {".log"}  # logs are what tools leave behind

# Spelt so that this file does not name what it looks for.
LEFTOVERS = re.compile(r"\b(?:" + "|".join(["FIX" + "ME", "TO" + "DO", "XX" + "X"]) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:home|root|work|Users|opt|farm)/\w[\w./-]*|/tmp/[a-z]\w+")
HOSTS = re.compile(r"(?:https?|ftp)://([\w.-]+\.[a-z]{2,})", re.IGNORECASE)
# Licences and papers may be pointed at. Where packages come from is each machine's own affair.
HOSTS_ALLOWED = frozenset({"www.apache.org", "raft.github.io", "arrow.apache.org"})
INDEX_OPTIONS = re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host")


def files(root: Path) -> Iterator[Path]:
    """Every text file that belongs to the project."""
    found = [path for path in root.iterdir() if path.is_file()]
    for directory in DIRECTORIES:
        found += [path for path in (root / directory).rglob("*") if path.is_file()]
    for path in sorted(found):
        if path.suffix not in NO_TEXT and "__pycache__" not in path.parts:
            yield path


def _lines_that_match(root: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for path in files(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            for match in pattern.finditer(line):
                yield f"{path.relative_to(root)}:{number}", match


def leftovers(root: Path) -> list[str]:
    """Notes to self that nobody kept."""
    return [f"{place}: {match[0]}" for place, match in _lines_that_match(root, LEFTOVERS)]


def machine_paths(root: Path) -> list[str]:
    """Directories that exist on somebody's machine."""
    return [f"{place}: {match[0]}" for place, match in _lines_that_match(root, MACHINE_PATHS)]


def foreign_hosts(root: Path) -> list[str]:
    """Addresses of package registries, and any other host that has no business here."""
    found = [f"{place}: {match[1]}" for place, match in _lines_that_match(root, HOSTS)]
    strangers = [entry for entry in found if entry.rpartition(": ")[2].lower() not in HOSTS_ALLOWED]
    options = [f"{place}: {match[0]}" for place, match in _lines_that_match(root, INDEX_OPTIONS)]
    return strangers + [entry for entry in options if not entry.startswith("tests/house/")]


def _sources(root: Path) -> Iterator[Path]:
    yield from sorted((root / "src").rglob("*.py"))


def overgrown(root: Path) -> list[str]:
    """Files in src that want to be two."""
    counted = ((path, len(path.read_text().splitlines())) for path in _sources(root))
    return [f"{path.relative_to(root)}: {lines} lines" for path, lines in counted if lines > LINES_MAX]


def speechless(root: Path) -> list[str]:
    """Files in src that do not open with their responsibility."""
    silent = (path for path in _sources(root) if not ast.get_docstring(ast.parse(path.read_text())))
    return [f"{path.relative_to(root)}: no docstring" for path in silent]


def unexplained(root: Path) -> list[str]:
    """Methods of public classes in src that no docstring explains, here or in a contract that they keep."""
    bare: list[tuple[str, str]] = []
    explained: set[str] = set()
    for path in _sources(root):
        for holder in ast.walk(ast.parse(path.read_text())):
            if not isinstance(holder, ast.ClassDef) or holder.name.startswith("_"):
                continue
            for method in holder.body:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if ast.get_docstring(method):
                    explained.add(method.name)
                elif not method.name.startswith("_"):
                    bare.append((f"{path.relative_to(root)}:{method.lineno}: {holder.name}", method.name))
    return [f"{place}.{name}: no docstring" for place, name in bare if name not in explained]
