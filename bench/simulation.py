"""How many seeds of the simulation run in a second, on all cores."""

import subprocess
import sys
from collections.abc import Iterator

import msgspec

from bench.results import Row, Scene, Yielded

ABOUT = """\
Seeds from 0 on, as make simulate runs them: a whole cluster on virtual time for each, its invariants
checked after every step."""


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    seeds: int


FULL = Sizes(seeds=200)
QUICK = Sizes(seeds=40)


class Summary(msgspec.Struct, frozen=True):
    """What we want of the simulation's own summary."""

    done: int
    steps: int
    seconds: float
    failures: list[object]


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Seeds and steps in a second."""
    scene.tell(f"simulation: {sizes.seeds} seeds")
    command = [sys.executable, "-m", "talweg.testing.simulate", "--seeds", str(sizes.seeds), "--json"]
    finished = subprocess.run(command, capture_output=True, check=False)
    summary = msgspec.json.decode(finished.stdout, type=Summary)
    failed = f", {len(summary.failures)} failed" if summary.failures else ""
    yield Row(
        "Simulated clusters", summary.done / summary.seconds, "seeds/s", note=f"{summary.done} seeds{failed}"
    )
    yield Row("Simulated events", summary.steps / summary.seconds, "steps/s")
