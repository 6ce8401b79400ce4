"""`talweg import`: a file of messages into a topic. A file is read through before anything of it is sent."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.complaints import EXIT_INTERRUPTED, Failed, failed
from talweg.cli.options import TIMEOUT
from talweg.cli.output import bytes_text, counted, print_json, print_lines
from talweg.cli.progress import Stopwatch, progress
from talweg.errors import TalwegError

if TYPE_CHECKING:
    from talweg.cli.files import Source
    from talweg.client.producer import Producer

MESSAGE_BYTES_MAX: Final = 8 << 20  # what a producer takes, unless it is told otherwise


def import_(
    file: Annotated[
        str, typer.Argument(help="The file; - for standard input.", metavar="FILE", show_default=False)
    ],
    topic: options.Topic,
    *,
    form: options.FileFormat = None,
    partition: options.ToPartition = None,
    create: options.Create = False,
    check: Annotated[bool, typer.Option("--check", help="Only read the file, and send nothing.")] = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Send every message of a file to a topic: lines, JSON lines or Parquet, as its suffix says.

    A file is read through first: if something in it is wrong, the line is named and nothing is sent. Of
    standard input, or another pipe, what came before that line is sent.
    """
    # Only here: Arrow, which other commands do without.
    from talweg.cli.files import Source, format_of  # noqa: PLC0415
    from talweg.cli.sending import ensure_topic, open_producer  # noqa: PLC0415

    source = Source(file, format_of(file, form), MESSAGE_BYTES_MAX)
    watch = Stopwatch()
    messages = raw_bytes = 0
    if check or not source.is_read_once:
        messages, raw_bytes = _read_through(source)
    if not check:
        with open_admin(servers, timeout) as admin:
            ensure_topic(admin, topic, partition, create=create)
        messages, raw_bytes = _send(source, topic, partition, open_producer(servers, timeout))
    seconds = watch.seconds()
    if as_json:
        told = {"topic": topic, "messages": messages, "bytes": raw_bytes, "seconds": round(seconds, 3)}
        print_json({**told, "sent": not check})
        return
    done = f"in {source.name} are in order" if check else f"sent to {topic} in {seconds:.1f} s"
    print_lines([f"{counted(messages, 'message')} ({bytes_text(raw_bytes)}) {done}"])


def _read_through(source: "Source") -> tuple[int, int]:
    """Messages and bytes of a file without mistakes; raises Failed."""
    messages = raw_bytes = 0
    try:
        with progress("checking", source.total_bytes(), of_bytes=True) as advance:
            for piece in source.pieces():
                messages += len(piece)
                raw_bytes += piece.raw_bytes
                advance(piece.raw_bytes)
    except Failed as error:
        raise failed(error, "nothing was sent") from None
    except KeyboardInterrupt:
        raise Failed("interrupted; nothing was sent", EXIT_INTERRUPTED) from None
    return messages, raw_bytes


def _send(source: "Source", topic: str, partition: int | None, opened: "Producer") -> tuple[int, int]:
    from talweg.cli.sending import Sent  # noqa: PLC0415 - see above

    sent, raw_bytes = Sent(), 0
    try:
        with (
            opened as producer,
            progress("sending", source.total_bytes(), of_bytes=True) as advance,
        ):
            for piece in source.pieces():
                if len(piece):
                    sent.add(producer.send_arrow(topic, piece.table, partition=partition))
                raw_bytes += piece.raw_bytes
                advance(piece.raw_bytes)
        sent.finish()
    except (Failed, TalwegError) as error:
        raise failed(error, f"{sent.arrived()} messages were sent") from None
    except KeyboardInterrupt:
        raise sent.interrupted() from None
    return sent.arrived(), raw_bytes
