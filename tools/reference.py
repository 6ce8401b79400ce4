"""Writes docs/reference.md: every public name of every package, with the first sentence of its docstring.

Public is what a package's `__all__` lists, and every class and function of the single-file module
`talweg.errors`. The sources are read, not imported. The tidy test compares the file with what this
would write, so an export cannot appear, change its meaning or vanish without the difference being seen.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

INTRODUCTION = """\
# Reference

The public names, package by package, written by `make reference` from the code's own docstrings.
What is not here may change without notice.
"""
SINGLE_FILES = ("talweg.errors",)


class UnresolvedName(Exception):
    """A package exports a name that it does not have, or exports nothing."""


class Name(NamedTuple):
    """One public name: how it is written, and what it is in a sentence."""

    written: str
    sentence: str


class Module:
    """A source file: its syntax tree and its lines."""

    def __init__(self, dotted: str, path: Path) -> None:
        self.dotted = dotted
        self.source = path.read_text()
        self.tree = ast.parse(self.source)

    def exports(self) -> list[str] | None:
        """The literal value of `__all__`, None when there is none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and _targets(node) == ["__all__"]:
                return [str(name) for name in ast.literal_eval(node.value)]
        return None

    def said_of(self, node: ast.Assign | ast.AnnAssign) -> str:
        """What stands under a constant as a string, or behind it as a comment; else its value."""
        following = self.tree.body[self.tree.body.index(node) + 1 :][:1]
        match following:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                return text
        line = self.source.splitlines()[(node.end_lineno or node.lineno) - 1]
        comment = line.encode()[node.end_col_offset or 0 :].decode().strip().removeprefix("#").strip()
        if not comment and isinstance(node.value, ast.Constant):
            return f"The constant {node.value.value!r}."
        return comment[:1].upper() + comment[1:]


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def find_module(root: Path, dotted: str) -> Module | None:
    """The module of that name in the source tree."""
    path = root / "src" / Path(*dotted.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return Module(dotted, candidate)
    return None


def first_sentence(text: str | None) -> str:
    """Of a docstring or comment, on one line, fit for a table's cell."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0]
    return sentence.replace("|", "\\|")


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = function.args
    shown = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    if arguments.vararg:
        shown.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        shown.append(f"**{arguments.kwarg.arg}")
    return f"{function.name}({', '.join(shown)})"


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """With those that are imported for the type checker only, because they are loaded when first used."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from node.body


def describe(root: Path, module: Module, name: str) -> Name:
    """Find where a module's name is defined, through imports, and what is said of it there."""
    for node in _definitions(module.tree.body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Name(name, first_sentence(ast.get_docstring(node)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return Name(_signature(node), first_sentence(ast.get_docstring(node)))
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Name(name, first_sentence(module.said_of(node)))
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _describe_imported(root, node.module, alias.name)
    raise UnresolvedName(f"{module.dotted} exports {name}, which it does not define")


def _describe_imported(root: Path, source: str, name: str) -> Name:
    submodule = find_module(root, f"{source}.{name}")
    if submodule is not None:
        return Name(name, first_sentence(ast.get_docstring(submodule.tree)))
    module = find_module(root, source)
    if module is None:
        return Name(name, f"From `{source}`.")
    return describe(root, module, name)


def packages(root: Path) -> Iterator[Module]:
    """Every package in the source tree, and the single files that are public, in order of name."""
    source = root / "src"
    found = ((path, ".".join(path.parent.relative_to(source).parts)) for path in source.rglob("__init__.py"))
    modules = [Module(dotted, path) for path, dotted in found]
    modules += [module for name in SINGLE_FILES if (module := find_module(root, name))]
    yield from sorted(modules, key=lambda module: module.dotted)


def public_names(root: Path, module: Module) -> list[Name]:
    """What a package exports, in alphabetical order."""
    names = module.exports()
    if names is None and module.dotted in SINGLE_FILES:
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = [node.name for node in module.tree.body if isinstance(node, kinds)]
    if names is None:
        raise UnresolvedName(f"{module.dotted} has no __all__")
    public = (name for name in names if not name.startswith("_"))
    return [describe(root, module, name) for name in sorted(public, key=str.lower)]


def render(root: Path) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for module in packages(root):
        names = public_names(root, module)
        parts.append(f"\n## `{module.dotted}`\n\n{first_sentence(ast.get_docstring(module.tree))}\n")
        if names:
            parts.append("\n| name | what it is |\n|---|---|\n")
            parts += [f"| `{name.written}` | {name.sentence} |\n" for name in names]
    return "".join(parts)


def main() -> None:
    """Write the page."""
    root = Path(__file__).resolve().parent.parent
    try:
        page = render(root)
    except UnresolvedName as error:
        sys.exit(f"docs/reference.md was not written: {error}")
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "reference.md").write_text(page)


if __name__ == "__main__":
    main()
