"""Files of messages, in and out: lines, JSON lines, Parquet. Mistakes are told with their line.

Whatever the format, messages come in pieces of bounded size: a table of Arrow with the column `value` and,
where there are any, `key`, `timestamp` and `headers`.
"""

import contextlib
import io
import math
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Literal

import msgspec
import pyarrow as pa

from talweg.cli.complaints import Failed
from talweg.cli.message_line import ReadMessage, decode_line
from talweg.errors import InvalidSetting
from talweg.records.columns import HEADERS_TYPE, TIMESTAMP_TYPE

Format = Literal["lines", "json", "parquet"]
STANDARD: Final = "-"  # standard input, or output

_SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "lines",
    ".log": "lines",
    "": "lines",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PIECE_MESSAGES: Final = 10_000
PIECE_BYTES: Final = 4 << 20
PIECE_SECONDS: Final = 0.4  # that lines wait for others that come slowly
_READ_BYTES: Final = 1 << 20  # at once from a pipe: more than streams buffer
_COLUMNS: Final = ("value", "key", "timestamp", "headers")


def format_of(file: str, given: Format | None) -> Format:
    """The format that was given, or that the suffix says; raises InvalidSetting for one that says nothing."""
    if given is not None:
        return given
    suffix = "" if file == STANDARD else Path(file).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidSetting(
            f"{file}: no format has the suffix {suffix}; say --format lines, --format json or parquet"
        )
    return _SUFFIXES[suffix]


class Piece(msgspec.Struct, frozen=True):
    """Some messages of a file."""

    table: Any  # a RecordBatch
    raw_bytes: int  # read from the file for them

    def __len__(self) -> int:
        """How many."""
        return int(self.table.num_rows)


class Source(msgspec.Struct, frozen=True):
    """A file, or standard input, that messages are read from."""

    file: str
    format: Format
    message_bytes_max: int

    @property
    def is_standard(self) -> bool:
        """Whether it is standard input."""
        return self.file == STANDARD

    @property
    def is_read_once(self) -> bool:
        """Whether what was read is gone, as it is of pipes: standard input, or one with a name."""
        path = Path(self.file)
        return self.is_standard or (path.exists() and not path.is_file() and not path.is_dir())

    @property
    def name(self) -> str:
        """For people."""
        return "standard input" if self.is_standard else self.file

    def total_bytes(self) -> int | None:
        """Of the file, if that is known."""
        with contextlib.suppress(OSError):
            return None if self.is_read_once else Path(self.file).stat().st_size
        return None

    def pieces(self) -> Iterator[Piece]:
        """All messages; raises Failed with the line of the first that is wrong, and OSError."""
        if self.format == "parquet":
            yield from _parquet_pieces(self)
            return
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if self.is_standard else stack.enter_context(Path(self.file).open("rb"))
            yield from _line_pieces(self, stream)

    def wrong(self, number: int, reason: str) -> Failed:
        """What is wrong with a line (or, in Parquet, a row), counted from 1."""
        return Failed(f"{self.name}: {'row' if self.format == 'parquet' else 'line'} {number}: {reason}")


def _line_pieces(source: Source, stream: IO[bytes]) -> Iterator[Piece]:
    """What stands before a line that is wrong comes before the complaint about it."""
    as_table = _json_table if source.format == "json" else _lines_table
    # In JSON a byte may take six, and a message has headers and a key besides.
    line_bytes_max = source.message_bytes_max * (8 if source.format == "json" else 1)
    read = _pipe_lines if source.is_read_once else _file_lines
    coming = read(stream, line_bytes_max)
    first = 1
    while True:
        lines, raw_bytes = _some_lines(coming, line_bytes_max)
        if not lines:
            return
        too_long = len(lines[-1]) > line_bytes_max
        table, problem = as_table(source, lines[:-1] if too_long else lines, first)
        if problem is None and too_long:
            number = first + len(lines) - 1
            problem = source.wrong(number, f"longer than {line_bytes_max} bytes, the most a message may have")
        yield Piece(table, raw_bytes)
        if problem is not None:
            raise problem
        first += len(lines)


def _some_lines(coming: Iterator[bytes | None], line_bytes_max: int) -> tuple[list[bytes], int]:
    """Lines without their ends, and how many bytes were read; the last may be too long, and cut.

    Fewer than there is room for when they come slowly: those that are there are not kept waiting.
    """
    lines: list[bytes] = []
    raw_bytes, deadline = 0, math.inf
    for line in coming:
        if line is not None:
            if not lines:
                deadline = time.monotonic() + PIECE_SECONDS
            raw_bytes += len(line)
            lines.append(line.removesuffix(b"\n").removesuffix(b"\r"))
            if len(lines) >= PIECE_MESSAGES or raw_bytes >= PIECE_BYTES or len(lines[-1]) > line_bytes_max:
                break
        if time.monotonic() >= deadline:
            break
    return lines, raw_bytes


def _file_lines(stream: IO[bytes], line_bytes_max: int) -> Iterator[bytes]:
    """Lines with their ends; one that is too long is cut."""
    return iter(lambda: stream.readline(line_bytes_max + 3), b"")


def _pipe_lines(stream: Any, line_bytes_max: int) -> Iterator[bytes | None]:
    """Likewise, as they come; None now and then, while nothing does."""
    begun: list[bytes] = []  # parts of a line whose end has not come
    while sum(map(len, begun)) < line_bytes_max + 3:
        while not _has_come(stream):
            yield None
        read = stream.read1(_READ_BYTES)  # all that is buffered, so that only the pipe need be watched
        if not read:
            break
        if b"\n" not in read:
            begun.append(read)
            continue
        *lines, rest = b"".join([*begun, read]).split(b"\n")
        begun = [rest]
        for line in lines:
            yield line + b"\n"
    if any(begun):
        yield b"".join(begun)


def _has_come(stream: IO[bytes]) -> bool:
    """Whether there is something to read, or the end; waits a while for it."""
    try:
        waiting = select.poll()
        waiting.register(stream.fileno(), select.POLLIN)
    except io.UnsupportedOperation:  # somebody has put a stream without one in its place
        return True
    return bool(waiting.poll(PIECE_SECONDS * 1000 / 2))


def _lines_table(_source: Source, lines: list[bytes], _first: int) -> tuple[Any, Failed | None]:
    return pa.record_batch([pa.array(lines, pa.binary())], names=["value"]), None


def _json_table(source: Source, lines: list[bytes], first: int) -> tuple[Any, Failed | None]:
    """Messages up to the first line that is wrong, and what is wrong with it."""
    messages: list[ReadMessage] = []
    problem: Failed | None = None
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        try:
            message = decode_line(line)
        except ValueError as error:
            problem = source.wrong(number, str(error))
            break
        if len(message.value or b"") > source.message_bytes_max:
            problem = source.wrong(number, f"longer than {source.message_bytes_max} bytes")
            break
        messages.append(message)
    return table_of(messages), problem


def table_of(messages: list[ReadMessage]) -> Any:
    """Messages as a RecordBatch; columns that nobody uses are left out."""
    columns: dict[str, Any] = {"value": pa.array([message.value for message in messages], pa.binary())}
    if any(message.key is not None for message in messages):
        columns["key"] = pa.array([message.key for message in messages], pa.binary())
    if any(message.timestamp is not None for message in messages):
        columns["timestamp"] = pa.array([message.timestamp for message in messages], pa.int64()).cast(
            TIMESTAMP_TYPE
        )
    if any(message.headers for message in messages):
        pairs = [[{"key": k, "value": v} for k, v in message.headers] for message in messages]
        columns["headers"] = pa.array(pairs, HEADERS_TYPE)
    return pa.record_batch(list(columns.values()), names=list(columns))


def _parquet_pieces(source: Source) -> Iterator[Piece]:
    if source.is_read_once:
        raise InvalidSetting(f"Parquet cannot be read from {source.name}: name a file that can be sought in")
    import pyarrow.parquet as pq  # noqa: PLC0415 - other formats do not need it

    try:
        with pq.ParquetFile(source.file) as file:
            names = _parquet_columns(source, file.schema_arrow)
            row = 0
            share = Path(source.file).stat().st_size / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(PIECE_MESSAGES, columns=names):
                _check_sizes(source, batch, row)
                yield Piece(batch, round(batch.num_rows * share))
                row += batch.num_rows
    except pa.ArrowException as error:
        raise Failed(f"{source.file}: not a Parquet file that can be read: {error}") from None


def _parquet_columns(source: Source, schema: Any) -> list[str]:
    if "value" not in schema.names:
        there = ", ".join(schema.names)
        raise Failed(f"{source.file}: no column `value`, which is what messages are made of (there: {there})")
    kept = [name for name in _COLUMNS if name in schema.names]
    for name in kept:
        if not _fits(name, schema.field(name).type):
            kind = schema.field(name).type
            raise Failed(f"{source.file}: column {name} is of type {kind}, expected {_EXPECTED[name]}")
    return kept


_EXPECTED: Final = {
    "value": "text or binary",
    "key": "text or binary",
    "timestamp": "a timestamp",
    "headers": "a list of key and value pairs",
}


def _fits(name: str, kind: Any) -> bool:
    types = pa.types
    if name == "timestamp":
        return bool(types.is_timestamp(kind))
    if name == "headers":
        return bool(types.is_list(kind) or types.is_map(kind))
    return any(
        check(kind)
        for check in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    )


def _check_sizes(source: Source, batch: Any, row: int) -> None:
    import pyarrow.compute as pc  # noqa: PLC0415 - likewise

    lengths = pc.binary_length(batch.column("value"))
    if (pc.max(lengths).as_py() or 0) > source.message_bytes_max:
        index = pc.index(pc.greater(lengths, source.message_bytes_max), value=True).as_py()
        raise source.wrong(
            row + index + 1, f"longer than {source.message_bytes_max} bytes, the most a message may have"
        )
