"""`talweg export`: a topic, or a range of it, into a file."""

import sys
from typing import Annotated

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.offsets import read_range
from talweg.cli.options import TIMEOUT
from talweg.cli.output import counted, print_json, print_lines
from talweg.cli.progress import Stopwatch, progress


def export(
    topic: options.Topic,
    file: Annotated[
        str, typer.Argument(help="The file; - for standard output.", metavar="FILE", show_default=False)
    ],
    offsets: options.Offsets = "start",
    *,
    form: options.FileFormat = None,
    partition: options.Partition = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Write the messages of a topic that are there now to a file: lines, JSON lines or Parquet.

    Lines hold the values alone; JSON lines and Parquet hold everything.
    """
    # Only here: Arrow, which other commands do without.
    from talweg.cli.files import STANDARD, format_of  # noqa: PLC0415
    from talweg.cli.reading import Reading, reader, spans_of  # noqa: PLC0415
    from talweg.cli.writing import writing  # noqa: PLC0415

    wanted, format_ = read_range(offsets), format_of(file, form)
    watch = Stopwatch()
    messages = 0
    with open_admin(servers, timeout) as admin:
        reading = Reading(admin, topic, spans_of(admin, topic, wanted, partition))
        with (
            writing(file, format_, force=force) as writer,
            progress("reading", reading.count) as advance,
        ):
            for batch in reading.batches(reader(topic, servers, timeout)):
                writer.write(batch)
                messages += len(batch)
                advance(len(batch))
    if file == STANDARD:
        sys.stdout.buffer.flush()
        return
    if as_json:
        told = {"topic": topic, "file": file, "format": format_, "messages": messages}
        print_json({**told, "seconds": round(watch.seconds(), 3)})
    else:
        found = counted(messages, "message")
        print_lines([f"{found} of {topic} written to {file} in {watch.seconds():.1f} s"])
