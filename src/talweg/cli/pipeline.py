"""`talweg pipeline`: log pipelines on Spark; what they made, as tables and charts."""

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talweg.cli import options
from talweg.cli.complaints import Failed, failed
from talweg.cli.output import print_json, print_lines, print_table
from talweg.errors import InvalidSetting, TalwegError, TopicNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from talweg.pipeline.catalogue import Pipeline
    from talweg.pipeline.findings import Findings

app = typer.Typer(help="Log pipelines on Spark: run them, and see what they found.", no_args_is_help=True)

Archive = Annotated[
    Path, typer.Option("--archive", help="Directory of the tables that pipelines make.", metavar="DIR")
]
Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints",
        help="Directory of how far each pipeline came. Default: checkpoints, in the archive.",
        metavar="DIR",
        show_default=False,
    ),
]
Master = Annotated[
    str, typer.Option("--master", help="Spark: local[*], or spark://HOST:PORT.", metavar="URL")
]
SkipLost = Annotated[
    bool,
    typer.Option(
        "--skip-lost",
        help="Go on without messages that are gone before they were read: dropped by retention, or deleted "
        "with their topic. Else that is an error.",
    ),
]
Group = Annotated[
    str,
    typer.Option(
        "--group",
        help="What the names of their consumer groups begin with: PREFIX.NAME. A second set of pipelines "
        "over the same topics, with an archive of its own, wants another one.",
        metavar="PREFIX",
    ),
]
File = Annotated[
    list[Path] | None,
    typer.Option("--file", help="A Python file that makes pipelines; may be given again.", metavar="FILE"),
]
ARCHIVE = Path("talweg-archive")
MASTER = "local[*]"
GROUPS = "pipeline"  # as in `talweg.pipeline.names`, which would load Spark
_INTERRUPTED = 130


@app.command("run")
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Pipelines by name (see list), or Python files that make them. Default: all of the list.",
            metavar="NAME...",
            show_default=False,
        ),
    ] = None,
    *,
    file: File = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topics",
            help="Topics to read, with commas between them; may be given again. Default: all that pipelines "
            "do not write themselves; with --follow also those that are made later.",
            metavar="TOPICS",
            show_default=False,
        ),
    ] = None,
    archive: Archive = ARCHIVE,
    checkpoints: Checkpoints = None,
    master: Master = MASTER,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on with what comes, or end with what is there now.")
    ] = False,
    rows_max: Annotated[
        int, typer.Option("--rows-max", help="Messages in a batch at most.", min=1, metavar="COUNT")
    ] = 1_000_000,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            help="Have retention keep what they have not read, up to this size of a partition's log: 500MB, "
            "10GiB. It does so from then on, until talweg consumer release.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    group: Group = GROUPS,
    skip_lost: SkipLost = False,
    servers: options.Servers = None,
    as_json: options.Json = False,
) -> None:
    """Run pipelines over topics. What they did is done once, however often they are run or broken off."""
    _need_spark()
    from talweg.client.sizes import read_size  # noqa: PLC0415 - the client takes its time to load
    from talweg.pipeline.catalogue import choose  # noqa: PLC0415 - Spark takes a second to load
    from talweg.pipeline.names import check_prefix  # noqa: PLC0415
    from talweg.pipeline.places import TopicsSink, TopicsSource  # noqa: PLC0415
    from talweg.pipeline.progress import choose_display  # noqa: PLC0415
    from talweg.pipeline.runner import Run, RunSettings, run_to_end  # noqa: PLC0415
    from talweg.pipeline.standard import STANDARD  # noqa: PLC0415

    wanted = names or ([] if file else list(STANDARD))
    pipelines = _unless_spark_is_needed(wanted, file or [])
    keep_bytes = None if keep is None else read_size(keep)
    source = TopicsSource(
        servers,
        _split(topics),
        rows_max,
        keep_bytes=keep_bytes,
        skip_lost=skip_lost,
        group=check_prefix(group),
    )
    source.chosen()  # what is wrong with topics or servers is said before Spark starts
    settings = RunSettings(archive.absolute(), _checkpoints(archive, checkpoints), follow)
    told_to_stop = threading.Event()
    with _session(master, settings.checkpoints) as spark, _signals(told_to_stop):
        display = choose_display(as_json=as_json)
        try:
            pipelines = pipelines or choose(wanted, STANDARD, file or [])
            source = source.beside(pipelines, follow=follow)
            running = Run(spark, pipelines, source, TopicsSink(servers), settings)
            run_to_end(running, display.show, told_to_stop)
        finally:
            display.close()
    if told_to_stop.is_set() and not follow:
        raise typer.Exit(_INTERRUPTED)


def _unless_spark_is_needed(wanted: list[str], files: list[Path]) -> "list[Pipeline]":
    """The pipelines, so that what is wrong with them is said before Spark starts; none if it has to run."""
    from talweg.pipeline.catalogue import choose, needs_session  # noqa: PLC0415
    from talweg.pipeline.standard import STANDARD  # noqa: PLC0415

    try:
        return choose(wanted, STANDARD, files)
    except InvalidSetting as error:
        if not needs_session(error):
            raise
        return []


@app.command("list")
def list_pipelines(*, file: File = None, as_json: options.Json = False) -> None:
    """The pipelines that there are, and those that files make."""
    _need_spark()
    from talweg.pipeline.catalogue import choose  # noqa: PLC0415
    from talweg.pipeline.standard import STANDARD  # noqa: PLC0415

    found = choose(list(STANDARD), STANDARD, file or [])
    rows = [(each.name, _goes_to(each), each.purpose) for each in found]
    if as_json:
        print_json({"pipelines": [dict(zip(("name", "to", "purpose"), row, strict=True)) for row in rows]})
        return
    print_table(("pipeline", "goes to", "purpose"), rows)


@app.command("report")
def report(
    *,
    archive: Archive = ARCHIVE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Directory for the charts and the page. Default: report, in the archive.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    servers: options.Servers = None,
    as_json: options.Json = False,
) -> None:
    """Print what pipelines found, draw the charts, and write a page that needs nothing else."""
    _need_spark()
    import msgspec  # noqa: PLC0415

    from talweg.pipeline.findings import find  # noqa: PLC0415
    from talweg.pipeline.places import tables_below  # noqa: PLC0415
    from talweg.pipeline.report import write_report  # noqa: PLC0415

    if not tables_below(archive):
        raise Failed(f"{archive}: nothing to report; run pipelines first: talweg pipeline run --archive DIR")
    findings = find(archive.absolute(), _alerts(servers))
    if not as_json:
        _print_tables(findings)  # first: what is known is told, also where nothing can be written
    try:
        paths = write_report(findings, (output or archive / "report").absolute())
    except OSError as error:
        raise failed(error, "--output DIR puts charts and page elsewhere") from None
    if as_json:
        print_json({"findings": msgspec.to_builtins(findings), "files": [str(path) for path in paths]})
    else:
        print_lines(map(str, paths))


@app.command("redrive")
def redrive(
    topic: options.Topic,
    *,
    archive: Archive = ARCHIVE,
    checkpoints: Checkpoints = None,
    master: Master = MASTER,
    skip_lost: SkipLost = False,
    servers: options.Servers = None,
    as_json: options.Json = False,
) -> None:
    """Send the dead letters of a topic back to it: those that were set aside since the last time."""
    _need_spark()
    from talweg.pipeline.redrive import letters_of  # noqa: PLC0415
    from talweg.pipeline.redrive import redrive as send_back  # noqa: PLC0415

    letters_of(servers, topic)  # what is wrong with it is said before Spark starts
    directory = _checkpoints(archive, checkpoints)
    with _session(master, directory) as spark:
        done = send_back(spark, servers, topic, directory, skip_lost=skip_lost)
    if as_json:
        print_json({"topic": topic, "letters": done.letters, "sent": done.sent})
        return
    stay = done.letters - done.sent
    typer.echo(
        f"{done.letters:,} dead letters of {topic} looked at, {done.sent:,} sent back"
        + (f"; {stay:,} stay: set aside too often, or without their origin" if stay else "")
    )


def _print_tables(findings: "Findings") -> None:
    from talweg.pipeline.levels import UNPARSED  # noqa: PLC0415
    from talweg.pipeline.report import sheets_of  # noqa: PLC0415

    for sheet in sheets_of(findings):
        print_table(sheet.headings, sheet.rows, title=sheet.title)
        print_lines([""])
    unparsed = findings.messages(level=UNPARSED)
    print_lines([f"{findings.messages():,} messages counted, {unparsed:,} of them not parsed"])


def _need_spark() -> None:
    try:
        import matplotlib  # noqa: F401, PLC0415
        import pyspark  # noqa: F401, PLC0415
    except ImportError as error:
        raise Failed(f"pipelines need {error.name}: pip install 'talweg[spark]'") from None


def _checkpoints(archive: Path, given: Path | None) -> Path:
    return (given or archive / "checkpoints").absolute()


def _split(topics: list[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for text in topics or () for name in text.split(",") if name.strip())


def _goes_to(each: Any) -> str:
    if each.to_topic is not None:
        return f"topic {each.to_topic or 'TOPIC.dlq'}"
    return f"table {each.to_table or each.table(Path()).directory.name}"


def _alerts(servers: str | None) -> tuple[dict[str, Any], ...]:
    """What the topic of alerts holds, if there ever was one. Without a cluster, a report says what the tables
    know."""
    from talweg.client.consumer import Consumer  # noqa: PLC0415
    from talweg.pipeline.alerts import TOPIC  # noqa: PLC0415

    try:
        with Consumer(TOPIC, servers=servers, api_timeout_ms=5_000) as consumer:
            values = [message.value for message in consumer.read_to_end()]
    except TopicNotFound:
        return ()
    except TalwegError as error:
        sys.stderr.write(f"talweg: alerts are left out: {error}\n")
        return ()
    return _objects(values)


def _objects(values: Iterable[bytes | None]) -> tuple[dict[str, Any], ...]:
    """Those of them that are JSON objects: anybody may write to that topic."""
    import msgspec  # noqa: PLC0415

    found = []
    for value in values:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.json.decode(value or b"", type=dict[str, Any]))
    return tuple(found)


@contextmanager
def _session(master: str, directory: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from talweg.pipeline.session import configured, hush, open_session, standard_error_into  # noqa: PLC0415

    if (running := SparkSession.getActiveSession()) is not None:
        yield configured(running)  # whoever started it will stop it
        return
    log = directory / "spark.log"
    with standard_error_into(log), _ctrl_c_later():
        try:
            spark = open_session(master, {"spark.ui.showConsoleProgress": "false"})
        except TalwegError as error:
            raise Failed(f"{error} (more in {log})") from None
    spark.sparkContext.setLogLevel("WARN")
    hush()  # what goes wrong is told in a line
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Until a JVM can be told to end: one that is left when it has only half started never does by itself."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed.is_set():
        raise KeyboardInterrupt


@contextmanager
def _signals(told_to_stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a run in good order. Spark has set a handler of its own, which cancels jobs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: told_to_stop.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
