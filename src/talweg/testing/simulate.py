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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import msgspec

from talweg.testing.simulation import Report, run

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

_BEGIN_SECONDS_MAX = 120.0
_PROGRESS_SECONDS = 1.0
_PROGRESS_SECONDS_IN_A_FILE = 30.0


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit status: 1 if any seed failed, 130 if it was interrupted."""
    options = _parse(arguments)
    summary = Summary(options.first, options.seeds)
    started = time.monotonic()
    progress = _Progress(sys.stderr)
    interrupted = False
    try:
        for report in _reports(options):
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
    parser.add_argument("--seeds", type=_at_least_one, default=200, help="how many (200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (0)")
    parser.add_argument(
        "--jobs", type=_at_least_one, default=os.cpu_count() or 1, help="processes (one for each core)"
    )
    parser.add_argument("--verbose", action="store_true", help="print every event; one process only")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--counts", action="store_true", help="print how often each thing happened")
    return parser.parse_args(arguments)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def _reports(options: argparse.Namespace) -> Iterator[Report]:
    seeds = range(options.first, options.first + options.seeds)
    if options.verbose or options.jobs == 1 or options.seeds == 1:
        write = _write_line if options.verbose else None
        yield from (run(seed, verbose=write) for seed in seeds)
        return
    # Spawned, not forked: a worker then is a process like any other, with nothing of ours in it.
    context = multiprocessing.get_context("spawn")
    jobs = min(options.jobs, options.seeds)
    begun = context.Barrier(jobs + 1)
    with _interrupts_put_off() as go_on, context.Pool(jobs, _begin, (begun,)) as pool:
        begun.wait(_BEGIN_SECONDS_MAX)  # a worker that is still being born does not die quietly
        go_on()
        yield from pool.imap_unordered(run, seeds, chunksize=4)


@contextmanager
def _interrupts_put_off() -> Iterator[Callable[[], None]]:
    # Ctrl-C reaches every process of the terminal. The first one alone decides what it means: those that
    # are born in here never hear it, and we do when `go_on` is called.
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if heard:
            raise KeyboardInterrupt

    try:
        yield go_on
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)


def _begin(begun: "Barrier") -> None:
    begun.wait(_BEGIN_SECONDS_MAX)


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
