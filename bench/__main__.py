"""The command line of the benchmarks: run them, show the figures, write the page.

python -m bench                     everything; writes docs/benchmarks.md
python -m bench --only store        one of them (may be given again); writes no page
python -m bench --quick             everything in a minute or two, roughly; writes no page
python -m bench --json FILE         the figures for other programs, besides
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench import (
    batches,
    consuming,
    document,
    entries,
    gaps,
    idle,
    machine,
    plain,
    records,
    sending,
    simulation,
    slow_follower,
    spark,
    store,
)
from bench.document import Report, Section
from bench.results import Scene, Yielded
from bench.terminal import Terminal

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


class Benchmark(msgspec.Struct, frozen=True):
    """One of them, ready to be run."""

    title: str
    about: str
    full: Callable[[Scene], Iterator[Yielded]]
    quick: Callable[[Scene], Iterator[Yielded]]


def _benchmark(title: str, module: Any) -> Benchmark:
    full, quick = (partial(module.run, sizes=sizes) for sizes in (module.FULL, module.QUICK))
    return Benchmark(title, module.ABOUT, full, quick)


BENCHMARKS = {
    "entries": _benchmark("Entries through consensus", entries),
    "store": _benchmark("One local store", store),
    "idle": _benchmark("Idle groups", idle),
    "slow_follower": _benchmark("A follower is down", slow_follower),
    "records": _benchmark("Records", records),
    "simulation": _benchmark("Simulation", simulation),
    "plain": _benchmark("Single messages, plain API", plain),
    "batches": _benchmark("Batches, straight to leaders", batches),
    "sending": _benchmark("Sending with the client library", sending),
    "consuming": _benchmark("Consuming with the client library", consuming),
    "gaps": _benchmark("Write gaps", gaps),
    "spark": _benchmark("Spark", spark),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the exit status is 0 whatever the figures, 1 if one could not be run, 130 if interrupted."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # as tidy an end as Ctrl-C is
    console = Console(highlight=False, soft_wrap=True)
    try:
        with machine.scratch_directory(options.directory) as directory:
            report = _run(options, directory, console)
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if options.page is not None or not (options.quick or options.only):
        page = options.page or _PAGE
        page.parent.mkdir(exist_ok=True)
        page.write_text(document.render(report))
        console.print(f"written: {page.name}")
    return 1 if any(section.failed for section in report.sections) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure, and say what was measured."
    )
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there, full run or not")
    parser.add_argument(
        "--directory",
        type=Path,
        help="where to put files; a disk, not memory (default: where temporary ones go)",
    )
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, directory: Path, console: Console) -> Report:
    names = options.only or list(BENCHMARKS)
    report = Report(datetime.now(UTC).date().isoformat(), machine.facts(directory), [])
    load_before = machine.load()
    with Terminal(console, len(names)) as terminal:
        for name in names:
            benchmark = BENCHMARKS[name]
            section = Section(name, benchmark.title, benchmark.about)
            report.sections.append(section)
            _run_one(
                benchmark.quick if options.quick else benchmark.full, section, directory / name, terminal
            )
        terminal.summary(report.sections)
    report.machine["Load"] = f"{load_before} before the run, {machine.load()} at its end"
    return report


def _run_one(
    run: Callable[[Scene], Iterator[Yielded]], section: Section, directory: Path, terminal: Terminal
) -> None:
    directory.mkdir()
    terminal.begin(section)
    try:
        for yielded in run(Scene(directory, terminal.tell)):
            section.yielded.append(yielded)
            terminal.show(yielded)
    except Exception as error:  # noqa: BLE001 - the others are still worth running; the page says what failed
        section.failed = f"{type(error).__name__}: {error}"
    terminal.end(section)


if __name__ == "__main__":
    sys.exit(main())
