"""Scenario files: prose, commands and what they printed when they were last recorded.

    # What is shown, and why it matters.

    command argument name=value
    another command
    ----
    what they print, line by line

Blocks are set apart by blank lines; a line that begins with `#` is prose and stays as it is.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

RULE = "----"
NOTHING = "ok"  # stands for no output, so that a block always has some


class Block(msgspec.Struct, frozen=True):
    """Prose, and the commands that follow it with their output."""

    prose: list[str]
    commands: list[str]
    output: list[str]


class Command(msgspec.Struct, frozen=True):
    """`name word word key=value`."""

    name: str
    words: list[str]
    values: dict[str, str]


def parse(text: str) -> list[Block]:
    """The blocks of a file."""
    blocks = []
    for part in text.strip("\n").split("\n\n"):
        lines = part.split("\n")
        prose = [line for line in lines if line.startswith("#")]
        rest = lines[len(prose) :]
        if lines[: len(prose)] != prose or (rest and rest.count(RULE) > 1):
            raise ValueError(f"prose comes first, and one rule a block: {part!r}")
        cut = rest.index(RULE) if RULE in rest else len(rest)
        blocks.append(Block(prose, rest[:cut], rest[cut + 1 :]))
    return blocks


def render(blocks: list[Block]) -> str:
    """The text of a file."""
    parts = []
    for block in blocks:
        rule = [RULE] if block.commands else []
        parts.append("\n".join([*block.prose, *block.commands, *rule, *block.output]))
    return "\n\n".join(parts) + "\n"


def parse_command(line: str) -> Command:
    """One line of commands."""
    name, *rest = line.split()
    words = [word for word in rest if "=" not in word]
    values = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(name, words, values)


def replay(blocks: list[Block], run: Callable[[Command], list[str]]) -> list[Block]:
    """The same blocks with the output of now."""
    replayed = []
    for block in blocks:
        output = [line for command in block.commands for line in run(parse_command(command))]
        shown = (output or [NOTHING]) if block.commands else []
        replayed.append(msgspec.structs.replace(block, output=shown))
    return replayed


def files(directory: Path) -> list[Path]:
    """Every scenario below a directory."""
    return sorted(directory.glob("*/*.txt"))
