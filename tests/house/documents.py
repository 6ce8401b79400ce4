"""What the documents name, and whether it exists.

The convention, for README.md and the other documents at the top, and all of docs/:

- A link to a file leads to a file, and to a heading if it has one.
- A path in backticks (`tests/raft/`, `errors.py`, with `*` for any) exists: at the top, in src, in
  src/talweg, or beside the document. Of `.venv/` the programs count that commands.py names.
- A command, in backticks or in an `sh` block, exists: a `make` target and its variables, a module after
  `python -m`, the paths given to pytest, a subcommand of `talweg`, or a program that commands.py names.
- A block says its language, so that commands are known for what they are.
- An option (`--record`) is spelt out somewhere in the code, the tools, the tests or the Makefile.
- A setting (`TALWEG_…`) is in src/talweg/config, and each one there is in some document.
- A dotted name of ours (`talweg.raft.Entry`) and a class name (`Entry`, `LogStore.read`) are in the code.
- What does not exist yet stands in a line (or a block whose introducing line) says "not yet"; such a line
  is wrong, too, once everything it names has come to exist.
"""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from house.commands import IN_ENVIRONMENT, Subcommands, wrong_command
from house.pieces import BARE_FENCE, Piece, pieces_of, says_not_yet

SUFFIXES = (".py", ".md", ".toml", ".txt", ".json", ".sh", ".yaml", ".yml", ".cfg", ".ini", ".csv")

_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"^\.?[\w*.-]+(/[\w*.-]+)*/?$")
_CLASS = re.compile(r"^([A-Z][a-zA-Z0-9]*[a-z][a-zA-Z0-9]*)(?:\.(\w+))?(?:\([^)]*\))?$")
_DOTTED = re.compile(r"^(talweg|myqueue)(\.\w+)+(\([^)]*\))?$")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_SETTING = re.compile(r"\bTALWEG_[A-Z0-9_]*[A-Z0-9]\b")


class Tree:
    """A source tree, and the look-ups that the checks need."""

    def __init__(self, root: Path, subcommands: Subcommands | None = None) -> None:
        self.root = root
        self.subcommands = subcommands or {}  # of `talweg`

    @cached_property
    def documents(self) -> list[Path]:
        return sorted([*self.root.glob("*.md"), *(self.root / "docs").rglob("*.md")])

    @cached_property
    def pieces(self) -> list[Piece]:
        return [piece for document in self.documents for piece in pieces_of(document)]

    @cached_property
    def make_targets(self) -> frozenset[str]:
        return frozenset(re.findall(r"^([a-z][\w-]*):(?!=)", self._text("Makefile"), re.MULTILINE))

    @cached_property
    def make_variables(self) -> frozenset[str]:
        return frozenset(re.findall(r"^(?:export )?([A-Z]+)\b", self._text("Makefile"), re.MULTILINE))

    @cached_property
    def code(self) -> dict[Path, str]:
        """The text of everything that is code."""
        files = [
            path for name in ("src", "tests", "tools", "bench") for path in (self.root / name).rglob("*")
        ]
        files += [self.root / "Makefile", self.root / "pyproject.toml"]
        texts = (path for path in files if path.is_file() and path.suffix != ".pyc")
        return {path: path.read_text(errors="replace") for path in texts}

    @cached_property
    def options(self) -> frozenset[str]:
        """Every option that is spelt out. Those that the house's own tests plant are none."""
        planted = self.root / "tests/house"
        texts = (text for path, text in self.code.items() if planted not in path.parents)
        return frozenset(option for text in texts for option in _OPTION.findall(text))

    @cached_property
    def classes(self) -> dict[str, set[str]]:
        """Every class in the code, and every other name for a type, with the names of its attributes and of
        its bases."""
        found: dict[str, set[str]] = {}
        for path, text in self.code.items():
            if path.suffix != ".py":
                continue
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(_names_in_class(node))
            for node in tree.body:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                        found.setdefault(name, set())
        return found

    def attribute_exists(self, name: str, attribute: str) -> bool:
        """Whether a class, or a base of it in the code, has the attribute."""
        names = self.classes.get(name, set())
        if attribute in names:
            return True
        bases = {base[1:] for base in names if base.startswith("<")}
        return any(self.attribute_exists(base, attribute) for base in bases if base != name)

    @cached_property
    def settings(self) -> frozenset[str]:
        config = self.root / "src" / "talweg" / "config"
        texts = (text for path, text in self.code.items() if config in path.parents)
        return frozenset(name for text in texts for name in _SETTING.findall(text))

    def path_exists(self, path: str, document: Path) -> bool:
        """At the top, in src or src/talweg, or beside the document. An empty directory is none."""
        if path.startswith(".venv/"):
            return path == ".venv/" or path.removeprefix(".venv/bin/") in IN_ENVIRONMENT
        places = (self.root, self.root / "src", self.root / "src/talweg", document.parent)
        found = (match for place in places for match in place.glob(path.rstrip("/")))
        return any(match.is_file() or any(file.is_file() for file in match.rglob("*")) for match in found)

    def name_exists(self, dotted: str) -> bool:
        """Whether a dotted name is a module, or something in one."""
        parts = dotted.split(".")
        for size in range(len(parts), 0, -1):
            path = self.root / "src" / Path(*parts[:size])
            module = next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
            if module is not None:
                rest = parts[size:]
                if not rest:
                    return True
                if rest[0] not in _names_in_module(ast.parse(module.read_text())):
                    return False
                return len(rest) == 1 or self.attribute_exists(rest[0], rest[1])
            if path.is_dir() and size == len(parts):
                return True
        return False

    def _text(self, path: str) -> str:
        file = self.root / path
        return file.read_text() if file.is_file() else ""


def _names_in_class(node: ast.ClassDef) -> Iterator[str]:
    """Attributes and methods; a base's name with < before it."""
    for base in node.bases:
        yield "<" + ast.unparse(base).rpartition(".")[2]
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Attribute(attr=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
                yield from (target.attr for target in targets if isinstance(target, ast.Attribute))


def _names_in_module(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):  # loaded when they are first asked for
                yield from _names_in_module(ast.Module(body, []))


# Each of these says what is wrong with one piece: None when it is nothing of that check's sort, an empty
# list when it is and all is well.


def wrong_path(tree: Tree, piece: Piece) -> list[str] | None:
    """A path that does not exist."""
    text = re.sub(r"(::\w+|:\d+)+$", "", piece.text)
    if piece.in_block or not _PATH.match(text) or not ("/" in text or text.endswith(SUFFIXES)):
        return None
    return [] if tree.path_exists(text, piece.document) else ["no such path"]


def wrong_name(tree: Tree, piece: Piece) -> list[str] | None:
    """A dotted name or a class that is not in the code."""
    if _DOTTED.match(piece.text):
        return [] if tree.name_exists(piece.text.split("(")[0]) else ["no such name"]
    match = _CLASS.match(piece.text)
    if not match or piece.in_block or (tree.root / piece.text).exists():
        return None
    name, attribute = match.groups()
    if name not in tree.classes:
        return ["no such class"]
    return [] if attribute is None or tree.attribute_exists(name, attribute) else ["no such attribute"]


def wrong_option(tree: Tree, piece: Piece) -> list[str] | None:
    """An option that nothing takes."""
    options = _OPTION.findall(piece.text)
    if not options:
        return None
    return [f"nothing takes {option}" for option in options if option not in tree.options]


def wrong_block(tree: Tree, piece: Piece) -> list[str] | None:
    """A block of which nobody knows whether it holds commands."""
    return ["it does not say its language"] if piece.text == BARE_FENCE else None


CHECKS = (wrong_path, wrong_name, wrong_option, wrong_block, wrong_command)


def wrong_pieces(root: Path, subcommands: Subcommands) -> list[str]:
    """Everything in the documents that is named and does not exist, or is promised and does."""
    tree = Tree(root, subcommands)
    problems = []
    promises: dict[tuple[Path, int], list[bool]] = {}
    for piece in tree.pieces:
        answers = [answer for check in CHECKS if (answer := check(tree, piece)) is not None]
        if not answers:
            continue
        if piece.promised:
            promises.setdefault((piece.document, piece.line), []).append(not any(answers))
        else:
            problems += [f"{piece}: {problem}" for answer in answers for problem in answer]
    for (document, line), kept in promises.items():
        if all(kept):
            problems.append(f"{document.name}:{line}: says not yet of what exists")
    return problems


def wrong_links(root: Path) -> list[str]:
    """Links to files or headings that are not there."""
    problems = []
    for document in Tree(root).documents:
        for target in _LINK.findall(document.read_text()):
            if "://" in target:
                continue
            path, _, heading = target.partition("#")
            file = document.parent / path if path else document
            if not file.exists():
                problems.append(f"{document.name}: no {path} to link to")
            elif heading and heading not in headings(file):
                problems.append(f"{document.name}: {file.name} has no heading #{heading}")
    return problems


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings, as web pages make them."""
    lines = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in lines}


def wrong_settings(root: Path) -> list[str]:
    """Settings that only a document, or only the code, knows."""
    tree = Tree(root)
    named: dict[str, str] = {}
    for document in tree.documents:
        for line in document.read_text().splitlines():
            if not says_not_yet(line):
                named |= dict.fromkeys(_SETTING.findall(line), document.name)
    problems = [f"{named[name]}: there is no setting {name}" for name in named.keys() - tree.settings]
    return problems + [f"{name} is in no document" for name in tree.settings - named.keys()]
