"""Commands that documents name, and whether they exist."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from house.pieces import Piece
from talweg.cli.main import app

if TYPE_CHECKING:
    from house.documents import Tree

PROGRAMS = frozenset("apt-get bash cd cp curl git head pip pytest python python3".split())
WRAPPERS = frozenset({"env", "sudo"})  # what is run is the command behind them
IN_ENVIRONMENT = frozenset("mypy pip pytest python python3 ruff talweg".split())  # of .venv/bin
KNOWN_MODULES = frozenset("bench mypy pip pytest ruff venv".split())

_PYTHON = re.compile(r"python[\d.]*")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_OPERATORS = frozenset({"&&", "||", "|", ";", "&"})
_REDIRECTIONS = frozenset({"<", ">", ">>"})

Subcommands = Mapping[str, "Subcommands"]
"""What may stand behind `talweg`, by name; behind each what may stand there."""


def talweg_subcommands() -> Subcommands:
    """Those that there are."""

    def below(command: object) -> Subcommands:
        return {name: below(inner) for name, inner in getattr(command, "commands", {}).items()}

    return below(typer.main.get_command(app))


def wrong_command(tree: "Tree", piece: Piece) -> list[str] | None:
    """A command, target, module or subcommand that does not exist."""
    try:
        commands = list(_simple_commands(piece.text))
    except ValueError as error:  # no closing quotation
        return [f"not to be read as a command: {error}"] if piece.in_block else None
    answers = [_wrong(tree, words, piece) for words in commands if words]
    known = [answer for answer in answers if answer is not None]
    return [problem for answer in known for problem in answer] if known else None


def _simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each, of a line that may have several; without what only stands in front of them."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="<>|;&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in _OPERATORS:
            yield _unwrapped(words)
            words = []
        elif token in _REDIRECTIONS:
            next(tokens, None)
        else:
            words.append(token)
    yield _unwrapped(words)


def _unwrapped(words: list[str]) -> list[str]:
    wrapped = False
    for number, word in enumerate(words):
        if word in WRAPPERS:
            wrapped = True
        elif not _ASSIGNMENT.match(word) and not (wrapped and word.startswith("-")):
            return words[number:]
    return []


def _wrong(tree: "Tree", words: list[str], piece: Piece) -> list[str] | None:
    program, arguments = words[0], words[1:]
    name = program.removeprefix(".venv/bin/")
    if name == "make":
        return _wrong_make(tree, arguments)
    if name == "talweg" and arguments:
        return _wrong_talweg(tree, arguments, piece)
    if name == "pytest":
        return _wrong_test_paths(tree, arguments, piece)
    if _PYTHON.fullmatch(name) and arguments[:1] == ["-m"]:
        return _wrong_module(tree, arguments[1:], piece)
    if not piece.in_block:
        return None
    if "/" in program:
        return [] if tree.path_exists(program.removeprefix("./"), piece.document) else ["no such program"]
    return [] if program in PROGRAMS or program == "talweg" else ["no such program"]


def _wrong_make(tree: "Tree", arguments: list[str]) -> list[str]:
    problems = []
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        known = tree.make_variables if is_variable else tree.make_targets
        if name not in known:
            problems.append(f"make has no {name}")
    return problems


def _wrong_talweg(tree: "Tree", arguments: list[str], piece: Piece) -> list[str]:
    if "--" in arguments:  # `talweg up -- COMMAND`
        begin = arguments.index("--")
        behind = arguments[begin + 1 :]
        inner = _wrong(tree, behind, piece) if behind and not behind[0].isupper() else None
        return _wrong_talweg(tree, arguments[:begin], piece) + (inner or [])
    known, path = tree.subcommands, "talweg"
    for word in arguments:
        if not known or word.startswith("-"):
            break
        if word not in known:
            return [f"{path} has no {word}"]
        known, path = known[word], f"{path} {word}"
    return []


def _wrong_test_paths(tree: "Tree", arguments: list[str], piece: Piece) -> list[str]:
    paths = [word.split("::")[0] for word in arguments if "/" in word and not word.startswith("-")]
    return [f"no {path} to test" for path in paths if not tree.path_exists(path, piece.document)]


def _wrong_module(tree: "Tree", arguments: list[str], piece: Piece) -> list[str]:
    module, rest = arguments[0], arguments[1:]
    if module == "pytest":
        return _wrong_test_paths(tree, rest, piece)
    if module == "bench":
        return [] if (tree.root / "bench/__main__.py").is_file() else ["no module bench"]
    return [] if module in KNOWN_MODULES or tree.name_exists(module) else [f"no module {module}"]
