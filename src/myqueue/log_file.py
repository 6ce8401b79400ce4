r"""Log files: `producer_{id}.txt`, which is replayed, and `consumer_{id}.txt`, which is written.

    producer_1.txt   time, message, parallel tag, topic; separated by one or more tabs
                         21:52:23	INFO		P1-1		T1
    consumer_1.txt   topic, tab, message
                         T1	INFO

A message of a producer's file is taken as it stands; it cannot have a tab or a line's end. Any message can
come out, so in a consumer's file a backslash is written as \\, a line's end as \n or \r, and bytes that
are no UTF-8 as \xNN. A tab stays: only the first one of a line separates.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from talweg.errors import BadRequest

LINES_MAX: Final = 10_000_000
_LINE_BYTES_MAX: Final = 16 << 20

_SHAPE: Final = "time<TAB>message<TAB>parallel tag<TAB>topic"
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?")
_TABS: Final = re.compile(r"\t+")
# The two lines that stand above the example in the document, in case somebody copied all of it.
_HEADING: Final = re.compile(r"\[ts\s+msg\s+parallel\s+topic\]")
_RULE: Final = re.compile(r"-+")


class IncompatibleLogFile(BadRequest):
    """A log file of another shape: where, and what was expected. Nothing of it was sent."""

    code = "incompatible_log_file"

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line  # from 1


def _incompatible(path: Path, line: int, reason: str) -> IncompatibleLogFile:
    return IncompatibleLogFile(f"log file: incompatible: {path}, line {line}: {reason}", line)


class LogLine(NamedTuple):
    """A line of a producer's file."""

    number: int  # from 1
    time: str
    message: str
    tag: str  # lines that share it go out together
    topic: str


def producer_path(directory: Path, number: int) -> Path:
    """Where a producer's log is."""
    return directory / f"producer_{number}.txt"


def consumer_path(directory: Path, number: int) -> Path:
    """Where a consumer's log is."""
    return directory / f"consumer_{number}.txt"


def read_producer_log(path: Path, topics: Collection[str]) -> list[LogLine]:
    """All lines, once all of them are known to be right. Raises IncompatibleLogFile and OSError."""
    lines: list[LogLine] = []
    blank: int | None = None  # one at the end does no harm
    heading = False
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(_LINE_BYTES_MAX + 1), b""), start=1):
            text = _text(path, number, raw)
            if number == 1 and _HEADING.fullmatch(text.strip()):
                heading = True
            elif number == 2 and heading and _RULE.fullmatch(text.strip()):
                continue
            elif not text.strip():
                blank = blank or number
            elif blank is not None:
                raise _incompatible(path, blank, f"it is empty; expected {_SHAPE}")
            else:
                lines.append(_line(path, number, text, topics))
    if not lines:
        raise _incompatible(path, 1, f"there are no messages; expected lines of {_SHAPE}")
    return lines


def _text(path: Path, number: int, raw: bytes) -> str:
    if len(raw) > _LINE_BYTES_MAX or number > LINES_MAX:
        raise _incompatible(
            path, number, f"expected at most {LINES_MAX} lines of {_LINE_BYTES_MAX} bytes each"
        )
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise _incompatible(path, number, f"expected UTF-8: {error.reason}") from None


def _line(path: Path, number: int, text: str, topics: Collection[str]) -> LogLine:
    fields = _TABS.split(text)
    if len(fields) != 4 or not all(field.strip() for field in fields):
        raise _incompatible(path, number, f"it has {len(fields)} fields separated by tabs; expected {_SHAPE}")
    time, message, tag, topic = fields
    time, tag, topic = time.strip(), tag.strip(), topic.strip()
    if not _TIME.fullmatch(time):
        raise _incompatible(path, number, f"its time is {time!r}; expected HH:MM:SS as in {_SHAPE}")
    if topic not in topics:
        raise _incompatible(
            path, number, f"its topic is {topic!r}; expected one of --topics: {', '.join(topics)}"
        )
    return LogLine(number, time, message, tag, topic)


def by_tag(lines: Iterable[LogLine]) -> list[list[LogLine]]:
    """Lines that go out together, in the order in which their tags first appear."""
    groups: dict[str, list[LogLine]] = {}
    for line in lines:
        groups.setdefault(line.tag, []).append(line)
    return list(groups.values())


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
_MEANT: Final = {"\\": b"\\", "n": b"\n", "r": b"\r"}


def consumer_line(topic: str, value: bytes | None) -> str:
    """A line of a consumer's file, with its end."""
    # Backslashes first: those that are written for other bytes stand alone.
    text = (value or b"").replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return topic + "\t" + text.replace("\n", "\\n").replace("\r", "\\r") + "\n"


def read_consumer_log(path: Path) -> list[tuple[str, bytes]]:
    """Topics and messages as they were written. Raises IncompatibleLogFile and OSError."""
    read = []
    # Only this character ends a line; Python knows others, and they may be in messages.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        topic, separator, message = line.decode("utf-8", "replace").partition("\t")
        if not separator:
            raise _incompatible(path, number, "it has no tab; expected topic<TAB>message")
        read.append((topic, _meant(message)))
    return read


def _meant(text: str) -> bytes:
    pieces: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        pieces.append(text[position : match.start()].encode())
        code, letter = match.groups()
        pieces.append(bytes([int(code, 16)]) if code else _MEANT.get(letter, letter.encode()))
        position = match.end()
    return b"".join([*pieces, text[position:].encode()])
