"""The two documented set-ups, one command each: `python -m myqueue.setups 2P2C` and `5P3C`.

Every producer and every consumer is a process of its own. Consumers begin at the end of their topics, so they
are registered before the first producer starts. At the end everything that came is compared with everything
that was sent.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from myqueue.api_handler import ApiHandler
from myqueue.command import EXIT_FAILED, complain, natural, parser_for, positive_seconds, run, say, say_json
from myqueue.delivery import Delivery, check
from myqueue.log_file import LogLine, consumer_path, producer_path, read_consumer_log, read_producer_log
from myqueue.runconsume import READY
from talweg.errors import InvalidSetting, TalwegError, Unavailable

EXAMPLES: Final = Path("examples")
_LINES: Final = 24  # of each made log, if nobody says how many
_TABLE_COLUMNS: Final = 80  # of the table at least: a narrow terminal breaks its lines, and cuts no figures
_STOP_SECONDS_MAX: Final = 10.0
_LEVELS: Final = ("INFO", "WARN", "ERROR")


class Link(NamedTuple):
    """Who produces to a topic, and who consumes from it, by number."""

    producers: tuple[int, ...]
    consumers: tuple[int, ...]


SETUPS: Final[Mapping[str, Mapping[str, Link]]] = {
    "2P2C": {"T1": Link((1, 2), (1, 2)), "T2": Link((1, 2), (1, 2))},
    "5P3C": {
        "T1": Link((1, 2, 3), (1, 2, 3)),
        "T2": Link((1, 4, 5), (1,)),
        "T3": Link((1, 2), (1, 2, 3)),
    },
}
Setup = Mapping[str, Link]
Logs = dict[int, list[LogLine]]


def topics_by(setup: Setup, side: Callable[[Link], tuple[int, ...]]) -> dict[int, list[str]]:
    """The topics of each producer, or of each consumer."""
    numbers = sorted({number for link in setup.values() for number in side(link)})
    return {n: [topic for topic, link in setup.items() if n in side(link)] for n in numbers}


def make_logs(directory: Path, setup: Setup, lines: int) -> None:
    """Write a log of so many lines for each producer: a line for each of its topics, tag after tag."""
    for number, topics in topics_by(setup, lambda link: link.producers).items():
        with producer_path(directory, number).open("w", encoding="utf-8", newline="\n") as file:
            for line in range(lines):
                tag = line // len(topics) + 1
                clock = f"{tag // 3600 % 24:02}:{tag // 60 % 60:02}:{tag % 60:02}"
                message = f"{_LEVELS[line % len(_LEVELS)]} line {line + 1} of producer {number}"
                file.write(f"{clock}\t{message}\tP{number}-{tag}\t{topics[line % len(topics)]}\n")


class Running:
    """The processes of one set-up. All of them are gone when it is left."""

    def __init__(self, setup: Setup, directory: Path, broker: str | None, idle_seconds: float) -> None:
        self._setup = setup
        self._directory = directory
        self._broker = ["--broker", broker] if broker else []
        self._idle_seconds = idle_seconds
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, logs: Logs) -> list[str]:
        """What processes complained of."""
        consumers = {
            number: self._start(
                "runconsume",
                number,
                topics,
                [
                    "--count",
                    str(_expected(self._setup, logs, number)),
                    "--idle-seconds",
                    f"{self._idle_seconds}",
                ],
            )
            for number, topics in topics_by(self._setup, lambda link: link.consumers).items()
        }
        for number, consumer in consumers.items():
            _wait_until_ready(number, consumer)
        producers = {
            number: self._start("runproduce", number, topics, [])
            for number, topics in topics_by(self._setup, lambda link: link.producers).items()
        }
        complaints: list[str] = []
        for process in (*producers.values(), *consumers.values()):
            _, errors = process.communicate()
            complaints += errors.splitlines()
        return complaints

    def _start(self, module: str, number: int, topics: list[str], more: list[str]) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", f"myqueue.{module}", "--id", str(number), "--topics", *topics]
        command += [*self._broker, "--log_loc", str(self._directory), "--json", *more]
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Stop what still runs."""
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for process in self._processes:
            try:
                process.communicate(timeout=max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            except ValueError:
                process.wait()  # its pipes were read to their end already


def _expected(setup: Setup, logs: Logs, consumer: int) -> int:
    """How many messages a consumer should get."""
    return sum(
        line.topic == topic
        for topic, link in setup.items()
        if consumer in link.consumers
        for producer in link.producers
        for line in logs[producer]
    )


def _wait_until_ready(number: int, consumer: "subprocess.Popen[str]") -> None:
    assert consumer.stderr is not None
    line = consumer.stderr.readline()  # it says something, or ends: its own deadlines see to that
    if READY not in line:
        raise Unavailable(f"consumer {number} did not start: {line.strip() or 'it said nothing'}")


def check_all(setup: Setup, logs: Logs, directory: Path) -> list[Delivery]:
    """Compare what each consumer wrote with what it should have got. Raises IncompatibleLogFile, OSError."""
    deliveries = []
    for consumer, topics in topics_by(setup, lambda link: link.consumers).items():
        received = read_consumer_log(consumer_path(directory, consumer))
        for topic in topics:
            sent = {number: logs[number] for number in setup[topic].producers}
            came = [message.decode("utf-8", "backslashreplace") for t, message in received if t == topic]
            deliveries.append(check(consumer, topic, sent, came))
    return deliveries


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one set-up; returns the exit code."""
    parser = parser_for("setups", "Run a documented set-up, and check that everything came exactly once.")
    parser.add_argument("setup", choices=sorted(SETUPS), help="2 producers and 2 consumers, or 5 and 3")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--log_loc",
        "--log-loc",
        type=Path,
        metavar="DIR",
        help="where the logs are (default: examples/SETUP)",
    )
    where.add_argument("--lines", type=natural, metavar="N", help="make logs of so many lines instead")
    parser.add_argument(
        "--idle-seconds",
        type=positive_seconds,
        default=30.0,
        metavar="S",
        help="how long a consumer waits for its next message before it gives up (default: 30)",
    )
    given = parser.parse_args(arguments)
    if given.lines == 0:
        raise InvalidSetting("--lines: expected at least 1")
    setup = SETUPS[given.setup]
    directory, made = _find_logs(given.setup, given.log_loc, given.lines)
    right = False
    try:
        right = _run(given.setup, setup, directory, given.broker, given.idle_seconds, as_json=given.json)
    finally:
        if made and right:
            shutil.rmtree(directory, ignore_errors=True)
        elif made:
            complain(f"the logs are kept in {directory}")
    return 0 if right else EXIT_FAILED


def _find_logs(name: str, given: Path | None, lines: int | None) -> tuple[Path, bool]:
    """The directory of the logs, and whether they were made for this run."""
    directory = given or EXAMPLES / name
    if given is not None or (lines is None and directory.is_dir()):
        return directory, False
    directory = Path(tempfile.mkdtemp(prefix=f"myqueue-{name}-"))
    make_logs(directory, SETUPS[name], lines or _LINES)
    return directory, True


def _run(
    name: str, setup: Setup, directory: Path, broker: str | None, idle_seconds: float, *, as_json: bool
) -> bool:
    try:
        logs = {
            number: read_producer_log(producer_path(directory, number), topics)
            for number, topics in topics_by(setup, lambda link: link.producers).items()
        }
    except OSError as error:
        raise InvalidSetting(f"--log_loc: {error.filename} cannot be read: {error.strerror}") from None
    began_at = time.monotonic()
    with ApiHandler(broker) as api:
        for topic in setup:
            api.ensure_topic(topic)
        # A consumer ends with the last message that it should get: what comes later is seen by these, which
        # read nothing.
        observers = {topic: api.register_consumer(topic, start="latest") for topic in setup}
        running = Running(setup, directory, broker, idle_seconds)
        try:
            complaints = running.run(logs)
        finally:
            running.close()
        seconds = time.monotonic() - began_at
        surplus = sum(api.size(*observer) for observer in observers.items()) - sum(map(len, logs.values()))
    if surplus > 0:
        complaints.append(f"more messages were written than the producers sent: {surplus} too many")
    try:
        deliveries = check_all(setup, logs, directory)
    except (TalwegError, OSError) as error:
        complaints.append(str(error))
        deliveries = []
    complaints += [sentence for delivery in deliveries for sentence in delivery.complaints()]
    _tell(name, deliveries, complaints, seconds, as_json=as_json)
    return bool(deliveries) and not complaints


def _tell(
    name: str, deliveries: Sequence[Delivery], complaints: Sequence[str], seconds: float, *, as_json: bool
) -> None:
    if as_json:
        rows = [
            {
                "consumer": each.consumer,
                "topic": each.topic,
                "expected": each.expected,
                "received": each.received,
                "missing": each.missing.total(),
                "surplus": each.surplus.total(),
                "in_order": not each.disordered,
            }
            for each in deliveries
        ]
        say_json({"setup": name, "seconds": round(seconds, 3), "deliveries": rows, "complaints": complaints})
        return
    _show_table(name, deliveries)
    for complaint in complaints:
        complain(complaint)
    if not complaints:
        say(f"{name}: every consumer got exactly what it should, in {seconds:.1f} s")


def _show_table(name: str, deliveries: Sequence[Delivery]) -> None:
    # Only here: processes that show nothing need not wait for the import.
    import rich.console  # noqa: PLC0415
    import rich.table  # noqa: PLC0415

    table = rich.table.Table("consumer", "topic", title=name)
    for heading in ("expected", "received", "missing", "too many"):
        table.add_column(heading, justify="right")
    table.add_column("tags in order")
    for each in deliveries:
        numbers = (each.expected, each.received, each.missing.total(), each.surplus.total())
        ordered = "no" if each.disordered else "yes"
        table.add_row(str(each.consumer), each.topic, *map(str, numbers), ordered)
    console = rich.console.Console()
    console.width = max(console.width, _TABLE_COLUMNS)
    console.print(table)


if __name__ == "__main__":
    run(main)
