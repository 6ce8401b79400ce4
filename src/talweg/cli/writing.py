"""Files of messages, out: lines, JSON lines, Parquet. A file is there when it is whole."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from talweg.cli.complaints import Failed
from talweg.cli.files import STANDARD, Format
from talweg.cli.message_line import encode_line
from talweg.cli.output import is_one_line
from talweg.client.received import ReceivedBatch
from talweg.errors import InvalidSetting
from talweg.records import SCHEMA

_ROWS: Final = 100_000  # of a row group, about
_COLUMNS: Final = ["partition", *SCHEMA.names]


class Writer(Protocol):
    """Writes batches in some format."""

    def write(self, batch: ReceivedBatch) -> None:
        """Raises Failed for a message that the format cannot hold, and OSError."""

    def close(self) -> None:
        """The end of the file."""


class LinesWriter:
    """Values, a line each."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, batch: ReceivedBatch) -> None:
        """Raises Failed for a value that is no line."""
        values = batch.values()
        for index, value in enumerate(values):
            if value is None or not is_one_line(value):
                what = "has no value" if value is None else "holds a line break"
                place = f"offset {batch.first_offset + index} of partition {batch.partition}"
                raise Failed(f"the message at {place} {what}: lines cannot hold it; say --format json")
        self._stream.write(b"".join(b"%s\n" % value for value in values))

    def close(self) -> None:
        """Nothing follows the last line."""


class JsonWriter:
    """Messages, a JSON object a line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, batch: ReceivedBatch) -> None:
        """Anything goes."""
        self._stream.write(b"".join(encode_line(message) + b"\n" for message in batch.messages()))

    def close(self) -> None:
        """Nothing follows the last line."""


class ParquetWriter:
    """Messages as columns, with the partition before them. Small batches are put together."""

    def __init__(self, stream: IO[bytes]) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - other formats do not need it

        schema = pa.schema([("partition", pa.int32()), *SCHEMA])
        self._writer = pq.ParquetWriter(stream, schema, compression="zstd")
        self._gathered: list[Any] = []
        self._rows = 0

    def write(self, batch: ReceivedBatch) -> None:
        """Anything goes."""
        self._gathered.append(batch.to_arrow(_COLUMNS))
        self._rows += len(batch)
        if self._rows >= _ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered))
            self._gathered, self._rows = [], 0

    def close(self) -> None:
        """The last rows, and the footer."""
        self._write_group()
        self._writer.close()


_WRITERS: Final[dict[Format, type[LinesWriter] | type[JsonWriter] | type[ParquetWriter]]] = {
    "lines": LinesWriter,
    "json": JsonWriter,
    "parquet": ParquetWriter,
}


@contextlib.contextmanager
def writing(file: str, form: Format, *, force: bool) -> Iterator[Writer]:
    """A writer to a file, a device, a pipe, or standard output. What is not finished leaves no file."""
    if file == STANDARD:
        if form == "parquet" and sys.stdout.isatty():
            raise InvalidSetting(
                "Parquet is nothing for a terminal: name a file, or send the output elsewhere"
            )
        writer = _WRITERS[form](sys.stdout.buffer)
        yield writer
        writer.close()
        return
    path = Path(file).resolve()  # what a link points to is written, and the link stays
    if path.exists() and not path.is_file():
        # A device or a pipe cannot be replaced when the file is whole: it would be a file from then on.
        with path.open("wb") as stream:
            writer = _WRITERS[form](stream)
            yield writer
            writer.close()
        return
    if path.exists() and not force:
        raise Failed(f"{file} is there already: name another file, or say --force to overwrite it")
    draft = path.with_name(f".{path.name}.unfinished")
    with draft.open("wb") as stream:
        try:
            if path.exists():
                shutil.copymode(path, draft)
            writer = _WRITERS[form](stream)
            yield writer
            writer.close()
            stream.flush()
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
