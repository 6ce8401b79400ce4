"""Code in documents, piece by piece: what stands in backticks, and the commands of shell blocks."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SHELLS = frozenset({"sh", "bash", "console"})
BARE_FENCE = "```"  # of a block that does not say its language

_FENCE = re.compile(r"^\s*```(\w*)")
_SPAN = re.compile(r"`([^`\n]+)`")


class Piece(NamedTuple):
    """A span in backticks, a command of a shell block, or the fence of a block without a language."""

    document: Path
    line: int
    text: str
    in_block: bool
    promised: bool  # its line says "not yet"

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}: `{self.text}`"


def says_not_yet(line: str) -> bool:
    """Whether it speaks of what is still to come."""
    return "not yet" in line.lower()


def pieces_of(document: Path) -> Iterator[Piece]:
    """Every piece of a document, in order."""
    language, introduction = None, ""
    for number, line in _whole_lines(document.read_text().splitlines()):
        fence = _FENCE.match(line)
        if fence and language is None:
            language = fence[1]
            if not language:
                yield Piece(document, number, BARE_FENCE, False, False)
        elif fence:
            language = None
        elif language is None:
            for text in _SPAN.findall(line):
                yield Piece(document, number, text, False, says_not_yet(line))
            introduction = line or introduction
        elif language in SHELLS and (command := _command(line, language)):
            yield Piece(document, number, command, True, says_not_yet(introduction + line))


def _whole_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines by number, those that end with a backslash together with what continues them."""
    begun: list[str] = []
    for number, line in enumerate(lines, start=1):
        if begun and _FENCE.match(line):  # nothing is continued beyond its block
            yield number - len(begun), "".join(begun)
            begun = []
        begun.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield number - len(begun) + 1, "".join(begun)
            begun = []
    if begun:
        yield number - len(begun) + 1, "".join(begun)


def _command(line: str, language: str) -> str:
    """The command in a line of a shell block, without its comment; nothing for what a console answered."""
    stripped = line.strip()
    if language == "console" and not stripped.startswith("$ "):
        return ""
    return f" {stripped.removeprefix('$ ')}".split(" #")[0].strip()
