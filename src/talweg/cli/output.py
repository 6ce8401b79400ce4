"""What commands print: tables for people, JSON for programs, messages a line each.

Nothing that comes out of the cluster may take hold of a terminal: control characters are shown escaped.
"""

import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_NUMBER: Final = re.compile(r"[\d,]+(\.\d+)?%?")
_BREAKS: Final = re.compile(rb"[\r\n]")
NULL: Final = "(null)"


def print_json(value: Any) -> None:
    """One document in one line."""
    print_bytes(msgspec.json.encode(value) + b"\n")


def print_lines(lines: Iterable[str]) -> None:
    """Texts of ours, a line each."""
    print_bytes("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))


def print_bytes(data: bytes) -> None:
    """As they are."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:  # somebody has put a text stream in its place
        sys.stdout.write(data.decode())
        return
    sys.stdout.flush()
    left = memoryview(data)
    while left:  # with PYTHONUNBUFFERED, a pipe that closes meanwhile takes a part, and says so the next time
        left = left[stream.write(left) :]


def flush() -> None:
    """Whoever reads us sees it now."""
    sys.stdout.flush()


def check_reader() -> None:
    """Raise BrokenPipeError if whoever read us has gone: a pipe says so even if nothing is written."""
    with contextlib.suppress(io.UnsupportedOperation):  # somebody has put a stream without one in its place
        waiting = select.poll()
        waiting.register(sys.stdout.fileno(), 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0)):
            raise BrokenPipeError


def is_styled() -> bool:
    """Whether output goes to a terminal that shows colours, to somebody who wants them."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not unwanted


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Columns under headings, numbers to the right. Never cut or wrapped: programs read them, too."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    right = [bool(texts) and all(_is_number(row[i]) for row in texts) for i in range(len(headings))]
    widths = [max(len(row[i]) for row in [list(headings), *texts]) for i in range(len(headings))]
    bold = ("\x1b[1m", "\x1b[0m") if is_styled() else ("", "")
    print_lines(
        [
            *([bold[0] + title + bold[1]] if title else []),
            bold[0] + _aligned(headings, widths, right) + bold[1],
            *(_aligned(row, widths, right) for row in texts),
        ]
    )


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    return "-" if value is None else safe(str(value))


def _is_number(text: str) -> bool:
    return text == "-" or _NUMBER.fullmatch(text) is not None


def shown(value: bytes | None) -> str:
    """A value in one line: text as it is, line breaks and control characters escaped, other bytes in hex."""
    return NULL if value is None else safe(value.decode(errors="backslashreplace"))


def safe(text: str) -> str:
    """Without characters that a terminal would obey, or that would begin another line."""
    return _CONTROL.sub(_escaped, text) if not text.isprintable() else text


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def is_one_line(value: bytes) -> bool:
    """Whether it can be written as a line and read again."""
    return _BREAKS.search(value) is None


def counted(number: int, noun: str) -> str:
    """So many of something, for people; `noun` is one of them."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bytes_text(count: int) -> str:
    """A number of bytes, for people."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} TB"
