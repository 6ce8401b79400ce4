"""A bar for what takes a while: on standard error, and only if that is a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """How far it is."""

    def __call__(self, steps: int) -> None:
        """So many more."""


@contextmanager
def progress(what: str, total: int | None, *, of_bytes: bool = False) -> Iterator[Advance]:
    """A bar while the context lasts; `total` None if nobody knows how much there is."""
    if not sys.stderr.isatty():
        yield lambda _steps: None
        return
    # Only here: whoever is not on a terminal sees nothing of it.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(steps: int) -> None:
            bar.advance(task, steps)

        yield advance


class Stopwatch:
    """How long something took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._began
