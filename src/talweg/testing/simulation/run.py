"""One run: a cluster, its clients, its operator and its faults, from one seed to its end."""

import traceback
from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec

from talweg.testing.simulation.clients import Client, Consumer, Producer, Reader
from talweg.testing.simulation.cluster import Cluster, branch
from talweg.testing.simulation.ending import Ending
from talweg.testing.simulation.faults import Faults
from talweg.testing.simulation.history import Violation
from talweg.testing.simulation.operator import Operator
from talweg.testing.simulation.profile import Profile, draw_profile
from talweg.testing.simulation.schedule import TICK_US
from talweg.testing.simulation.transactor import Transactor


class Report(msgspec.Struct, frozen=True):
    """What came of a run."""

    seed: int
    steps: int
    digest: str  # of the trace: the same for the same seed, always
    counts: dict[str, int]  # of what happened
    failure: str | None = None
    events: list[str] = []  # the last ones, of a run that failed

    def __str__(self) -> str:
        if self.failure is None:
            return f"seed {self.seed}: {self.steps} steps"
        lines = [f"seed {self.seed} fails at step {self.steps}: {self.failure}", *self.events]
        lines.append(f"again: python -m talweg.testing.simulate --first {self.seed} --seeds 1 --verbose")
        return "\n".join(lines)


def run(seed: int, profile: Profile | None = None, *, verbose: Callable[[str], None] | None = None) -> Report:
    """Simulate one seed, with the profile that it draws or with this one."""
    random = Random(seed)  # noqa: S311 - it has to be repeatable, not secret
    drawn = draw_profile(branch(random))
    counts: Counter[str] = Counter()
    cluster = Cluster(profile or drawn, branch(random), counts, verbose)
    failure = None
    try:
        _run(cluster, random)
    except Violation as violation:
        failure = str(violation)
    except Exception as error:  # noqa: BLE001 - whatever the product raises here is a finding
        failure = _explained(error)
    trace = cluster.trace
    events = list(trace.recent) if failure is not None else []
    return Report(seed, trace.steps, trace.digest, dict(sorted(counts.items())), failure, events)


def _run(cluster: Cluster, random: Random) -> None:
    profile = cluster.profile
    clients: list[Client] = []
    clients += [Producer(number, cluster, branch(random)) for number in range(profile.producers)]
    clients += [Consumer(number, cluster, branch(random)) for number in range(profile.consumers)]
    clients += [Reader(number, cluster, branch(random)) for number in range(profile.readers)]
    faults, operator = Faults(cluster, branch(random)), Operator(cluster, branch(random))
    clients += [Transactor(number, cluster, branch(random)) for number in range(profile.transactors)]
    cluster.start()
    for client in clients:
        client.act()
    faults.begin()
    operator.begin()
    while cluster.schedule.now_us < profile.duration_ticks * TICK_US:
        cluster.schedule.run_next()
    cluster.trace.note("everything is put right")
    operator.end()
    faults.end()
    for client in clients:
        client.finishing = True
    newcomer = Producer(profile.producers, cluster, branch(random))
    newcomer.act()  # whatever happened before: it goes on
    newcomer.finishing = True
    Ending(cluster, [*clients, newcomer]).run()


def _explained(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    return f"{type(error).__name__}: {error} [{places}]"
