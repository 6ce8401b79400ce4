"""The command line of the simulation: many seeds on all cores, and a summary of what happened in them.

python -m talweg.testing.simulate --seeds 1000 --first 0
python -m talweg.testing.simulate --seeds 1 --first 4711 --verbose     one seed, every event
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TextIO

import msgspec

from talweg.testing.simulation import Report, run

_SECONDS_MAX = 300  # for a seed, of which a core does several in a second
_PROGRESS_SECONDS = 1.0
_PROGRESS_SECONDS_IN_A_FILE = 30.0

RunSeed = Callable[..., Report]
"""What runs one: `run`, unless a test has another."""

# Spawned, not forked: a worker then is a process like any other, with nothing of ours in it.
_SPAWN = multiprocessing.get_context("spawn")


class Summary(msgspec.Struct):
    """Of all runs so far."""

    first: int
    seeds: int  # that were asked for
    done: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = msgspec.field(default_factory=dict)  # of what happened, in all runs together
    failures: list[Report] = msgspec.field(default_factory=list)

    def add(self, report: Report) -> None:
        """One more run."""
        self.done += 1
        self.steps += report.steps
        self.counts = dict(sorted((Counter(self.counts) + Counter(report.counts)).items()))
        if report.failure is not None:
            self.failures.append(report)

    @property
    def seeds_per_second(self) -> float:
        """How fast it went."""
        return self.done / self.seconds if self.seconds else 0.0


def main(arguments: Sequence[str] | None = None, run_seed: RunSeed = run) -> int:
    """Run, and return the exit status: 1 if any seed failed, 130 if it was interrupted."""
    options = _parse(arguments)
    summary = Summary(options.first, options.seeds)
    started = time.monotonic()
    progress = _Progress(sys.stderr)
    interrupted = False
    try:
        with closing(_reports(options, run_seed)) as reports:
            for report in reports:
                summary.add(report)
                summary.seconds = time.monotonic() - started
                if report.failure is not None:
                    progress.clear()
                    if not options.json:
                        sys.stdout.write(f"{report}\n\n")
                progress.show(summary)
    except KeyboardInterrupt:
        interrupted = True
    progress.clear()
    sys.stdout.write(
        msgspec.json.encode(summary).decode() if options.json else _text(summary, options.counts)
    )
    sys.stdout.write("\n")
    if interrupted:
        return 130
    return 1 if summary.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m talweg.testing.simulate",
        description="Simulate whole clusters on virtual time, one for each seed.",
    )
    parser.add_argument("--seeds", type=_number(1), default=200, help="how many (200)")
    # Of a negative one Random takes the absolute value: it would be another seed's run again.
    parser.add_argument("--first", type=_number(0), default=0, help="the first one (0)")
    parser.add_argument(
        "--jobs", type=_number(1), default=os.cpu_count() or 1, help="processes (one for each core)"
    )
    parser.add_argument(
        "--seconds-max",
        type=_number(1),
        default=_SECONDS_MAX,
        help=f"for one of many seeds; one that takes longer has failed ({_SECONDS_MAX})",
    )
    parser.add_argument("--verbose", action="store_true", help="print every event; one process only")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--counts", action="store_true", help="print how often each thing happened")
    return parser.parse_args(arguments)


def _number(at_least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number, {at_least} or more")
        return number

    return parse


def _reports(options: argparse.Namespace, run_seed: RunSeed) -> Generator[Report, None, None]:
    seeds = range(options.first, options.first + options.seeds)
    if options.verbose or options.seeds == 1:
        write = _write_line if options.verbose else None
        yield from (run_seed(seed, verbose=write) for seed in seeds)
        return
    left, working, idle = iter(seeds), list[_Worker](), list[_Worker]()
    resource_tracker.ensure_running()  # beforehand: while it starts, Ctrl-C cannot be put off
    try:
        while True:
            for seed in islice(left, options.jobs - len(working)):
                worker = idle.pop() if idle else _Worker(run_seed, options.seconds_max)
                worker.begin(seed)
                working.append(worker)
            if not working:
                return
            ready = wait([worker.connection for worker in working])
            for worker in [worker for worker in working if worker.connection in ready]:
                working.remove(worker)
                report = worker.report()
                if worker.is_alive:
                    idle.append(worker)
                yield report
    finally:
        for worker in (*working, *idle):
            worker.end()


class _Worker:
    """A process that runs seeds, one at a time: if it dies we know of which."""

    def __init__(self, run_seed: RunSeed, seconds_max: int) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs, run_seed, seconds_max), daemon=True)
        self._seed = -1  # none yet
        with _interrupts_put_off():
            self._process.start()
        theirs.close()  # so that its end is the end of the connection

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def begin(self, seed: int) -> None:
        self._seed = seed
        with suppress(OSError):  # it has died: `report` says so
            self.connection.send(seed)

    def report(self) -> Report:
        """What came of the seed that was begun. Waits for it."""
        try:
            report: Report = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
            return Report(self._seed, 0, "", {}, f"its process ended, {how}")
        return report

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


class TooLong(Exception):
    """What the product is interrupted with. No TimeoutError: that would be taken for a disk's."""


def _work(connection: Connection, run_seed: RunSeed, seconds_max: int) -> None:
    def interrupt(*_: object) -> None:
        raise TooLong(f"still running after {seconds_max} s")

    signal.signal(signal.SIGALRM, interrupt)
    with suppress(EOFError, BrokenPipeError):  # nobody is left to work for
        while True:
            seed = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, seconds_max, 1.0)  # and again, if the product bears it
            report = run_seed(seed)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(report)


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    # Ctrl-C reaches every process of the terminal. The first one alone decides what it means: those that
    # are born in here never hear it, and we do afterwards.
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if heard:
        raise KeyboardInterrupt


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


class _Progress:
    """A line that is written over on a terminal, and now and then a new one elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown_at = time.monotonic()

    def show(self, summary: Summary) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        interval = _PROGRESS_SECONDS if self._terminal else _PROGRESS_SECONDS_IN_A_FILE
        if now - self._shown_at < interval or summary.done == summary.seeds:
            return
        self._shown_at = now
        text = f"{summary.done} of {summary.seeds} seeds, {len(summary.failures)} failed"
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other output."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _text(summary: Summary, with_counts: bool) -> str:
    lines = []
    if with_counts or summary.seeds > 1:
        lines += [f"{count:10}  {name}" for name, count in summary.counts.items()]
    if summary.failures:
        failed = sorted(report.seed for report in summary.failures)
        lines.append(f"failed seeds: {' '.join(map(str, failed))}")
    lines.append(
        f"{summary.done} of {summary.seeds} seeds from {summary.first} on, {len(summary.failures)} failed; "
        f"{summary.steps} steps in {summary.seconds:.1f} s, {summary.seeds_per_second:.1f} seeds/s"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
