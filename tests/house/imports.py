"""Which module may import which: the table of design.md as data, and the reading of imports to hold it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ANYTHING = frozenset({"*"})

# A module may import those in its row, and `errors`, which lies below everything: whoever calls a layer
# may have to raise or catch what that layer does. Only `raft` has not even that, so that the core can be
# read and tested with nothing else in mind.
TABLE: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "version": frozenset(),
    "databases": frozenset(),
    "config": frozenset({"errors"}),
    "http": frozenset({"errors"}),
    "records": frozenset({"errors"}),
    "raft": frozenset(),
    "storage": frozenset({"records", "raft", "databases", "errors"}),
    "replication": frozenset({"raft", "storage", "records", "errors"}),
    "protocol": frozenset({"http", "errors"}),
    "broker": frozenset(
        {"replication", "storage", "records", "raft", "config", "http", "protocol", "version", "errors"}
    ),
    "metadata": frozenset({"databases", "errors"}),
    "manager": frozenset({"metadata", "records", "config", "http", "protocol", "version", "errors"}),
    "client": frozenset({"records", "config", "http", "protocol", "version", "errors"}),
    "gateway": frozenset({"config", "errors"}),
    "spark": frozenset({"client", "errors"}),
    "pipeline": frozenset({"spark", "client", "errors"}),
    "console": frozenset({"client", "errors"}),
    "cli": ANYTHING,
    "testing": ANYTHING,
    # Outside the package's layers: its face, and the two modules beside it.
    "talweg": frozenset({"client", "protocol", "version", "errors"}),
    "myqueue": frozenset({"client", "errors"}),
    "pyspark_talweg": frozenset({"spark"}),
}

SERVERS = frozenset({"storage", "replication", "broker", "metadata", "manager"})
CLIENTS = frozenset({"client", "spark", "pipeline", "console", "myqueue"})

_CALCULATION = frozenset(
    "__future__ abc bisect collections contextlib dataclasses enum functools heapq itertools math "
    "operator string struct types typing".split()
)
# What a pure module may import besides talweg's own: nothing that waits, looks at a clock, throws dice,
# writes to a log or touches a file.
PURE: dict[str, frozenset[str]] = {
    "raft": _CALCULATION | {"msgspec"},
    "records": _CALCULATION
    | {"base64", "datetime", "io", "json", "sys", "crc32c", "msgspec", "numpy", "pyarrow"},
    "metadata/model.py": _CALCULATION | {"msgspec"},
    "metadata/placement.py": _CALCULATION | {"msgspec"},
}
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint"})
IMPURE_METHODS = frozenset({"now", "utcnow", "today"})  # a calendar may be consulted, a clock may not

# Bytes from outside must never become code.
UNSAFE_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle"})
UNSAFE_CALLS = frozenset({"eval", "exec"})

# Third-party packages that come with an extra, and who alone may import them.
EXTRAS: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"spark", "pipeline", "cli"}),
    "matplotlib": frozenset({"pipeline", "cli"}),
    "nicegui": frozenset({"console"}),
    "psycopg": frozenset({"storage", "metadata"}),
    "pymysql": frozenset({"storage", "metadata"}),
    "redis": frozenset({"metadata"}),
    "pytest": frozenset({"testing"}),
}


class Import(NamedTuple):
    """One module that a file imports, by its full dotted name."""

    line: int
    target: str


class SourceFile(NamedTuple):
    """A file of the source tree, its place in the table, and what it imports."""

    path: Path  # relative to src
    layer: str  # its row in TABLE
    imports: list[Import]
    calls: list[Import]  # of plain names and of methods: open, .now


def layer_of(path: Path) -> str:
    """The row of a file in src: its package in talweg, or the top-level module that it is."""
    parts = path.with_suffix("").parts
    if parts[0] != "talweg" or parts[1] == "__init__":
        return parts[0]
    return parts[1]


def target_layer(target: str) -> str | None:
    """The row that an imported module belongs to; None for what is not ours."""
    parts = target.split(".")
    if parts[0] not in {"talweg", "myqueue", "pyspark_talweg"}:
        return None
    if parts[0] == "talweg" and len(parts) > 1 and (parts[1] in TABLE or len(parts) > 2):
        return parts[1]
    return parts[0]


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            anchor = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*anchor, *([module] if module else [])])
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]
        ):
            yield name
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            yield name


def read_source(source: Path) -> list[SourceFile]:
    """Every Python file below a `src` directory."""
    files = []
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        package = ".".join(relative.parent.parts)
        imports, calls = [], []
        for node in ast.walk(ast.parse(path.read_text())):
            line = getattr(node, "lineno", 0)
            imports += [Import(line, target) for target in _imported(node, package)]
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    calls.append(Import(line, name))
                case ast.Call(func=ast.Attribute(attr=name)):
                    calls.append(Import(line, f".{name}"))
        files.append(SourceFile(relative, layer_of(relative), imports, calls))
    return files


def layers_without_a_row(files: list[SourceFile]) -> list[str]:
    """Files of a module that the table does not know."""
    return [f"{file.path}: {file.layer} is not in the table" for file in files if file.layer not in TABLE]


def imports_against_the_table(files: list[SourceFile]) -> list[str]:
    """Imports of our own modules that the importing module's row does not allow."""
    problems = []
    for file in files:
        allowed = TABLE.get(file.layer, frozenset())
        for line, target in file.imports:
            layer = target_layer(target)
            if layer is None or layer == file.layer or layer in allowed:
                continue
            if allowed is ANYTHING and (layer != "testing" or file.layer == "cli"):
                continue
            problems.append(f"{file.path}:{line}: {file.layer} may not import {target}")
    return problems


def impurities(files: list[SourceFile]) -> list[str]:
    """What pure modules import or call that reaches outside."""
    problems = []
    for file in files:
        place = "/".join(file.path.parts[1:])
        allowed = PURE.get(file.layer, PURE.get(place))
        if allowed is None:
            continue
        for line, target in file.imports:
            if target_layer(target) is None and target.split(".")[0] not in allowed:
                problems.append(f"{file.path}:{line}: a pure module may not import {target}")
        for line, name in file.calls:
            if name in IMPURE_CALLS or name.removeprefix(".") in IMPURE_METHODS:
                problems.append(f"{file.path}:{line}: a pure module may not call {name}()")
    return problems


def unsafe_bytes(files: list[SourceFile]) -> list[str]:
    """Ways in which bytes could become code."""
    problems = []
    for file in files:
        used = [entry for entry in file.imports if entry.target.split(".")[0] in UNSAFE_MODULES]
        used += [entry for entry in file.calls if entry.target in UNSAFE_CALLS]
        problems += [f"{file.path}:{line}: {target} is never used here" for line, target in used]
    return problems


def undeclared(files: list[SourceFile], core: frozenset[str], standard: frozenset[str]) -> list[str]:
    """Third-party imports that an installed core would not have, outside the places that want an extra."""
    problems = []
    for file in files:
        for line, target in file.imports:
            top = target.split(".")[0]
            ours = target_layer(target) is not None
            if ours or top in standard or top in core or file.layer in EXTRAS.get(top, frozenset()):
                continue
            problems.append(f"{file.path}:{line}: {top} is no dependency of {file.layer}")
    return problems
