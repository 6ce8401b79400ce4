"""Batches straight to leaders and back: how many messages a second, with few partitions and with many."""

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import mean

import msgspec

from bench import usage
from bench.batch_client import ClientFailed, Fetch, Moved, Produce, run_client
from bench.disk import bare_bytes_per_second
from bench.processes import ProcessFailed, attempted
from bench.results import Bound, Row, Scene, Yielded
from bench.talweg_cluster import create_topic, ends, leaders
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Three brokers and a primary; a topic of replication 3; one client process, which talks to the partitions'
leaders with native frames. A batch is 10,000 log lines of 100 bytes, compressed with lz4; it is
acknowledged once it is on disk (fdatasync) on two brokers. All of this shares the machine's cores, the
client too: it makes each batch from a list of Python's bytes, as a producer does, and for comparison sends
batches that were made beforehand. Fetching reads what was produced, from the page cache, and makes Arrow
record batches of it; the client reads from the beginning again when it has read everything. Many
partitions: a second topic of the same cluster, the same number of the same batches under way."""

_FEW = "batches"
_MANY = "batches-many"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    partitions: int
    partitions_many: int
    messages: int  # in a batch
    window: int  # batches under way
    rounds: int
    warm_seconds: float
    seconds: float


FULL = Sizes(4, 400, messages=10_000, window=8, rounds=3, warm_seconds=1.5, seconds=5.0)
QUICK = Sizes(4, 400, messages=10_000, window=8, rounds=1, warm_seconds=1.0, seconds=2.0)

_ANSWER_BYTES = 4 << 20  # of a fetch
_FETCH_WINDOW = 4  # partitions read at once


class Measured(msgspec.Struct, frozen=True):
    """What the client did, and what it cost."""

    moved: Moved
    processor_us: dict[str, float]  # for 10,000 messages, of each server


Rounds = dict[str, list[Measured]]  # what each measurement gave in each round


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Everything in turn, round after round; then the figures."""
    measured: Rounds = {}
    disk: list[float] = []
    for number in range(1, sizes.rounds + 1):
        doing = f"batches, round {number} of {sizes.rounds}"
        # Its client knows the leaders that it was told at the start, and no others.
        for name, each in attempted(partial(_measured, scene, sizes, doing), ClientFailed):
            measured.setdefault(name, []).append(each)
        scene.tell(f"{doing}: the bare disk")
        disk.append(
            bare_bytes_per_second(scene.directory, loops=3, write_bytes=1 << 20, seconds=sizes.seconds / 2)
        )
    yield from _produce_rows(measured, sizes)
    yield from _fetch_rows(measured, sizes)
    yield Row(
        "Batches: what the disk gives",
        mean(disk) / 1e6,
        "MB/s",
        note="in the same rounds: three bare loops at once of write and fdatasync of 1 MB",
    )


def _measured(scene: Scene, sizes: Sizes, doing: str) -> list[tuple[str, Measured]]:
    return list(_measure(scene, sizes, doing))


def _measure(scene: Scene, sizes: Sizes, doing: str) -> Iterator[tuple[str, Measured]]:
    directory = scene.directory / "talweg"
    try:
        with LocalCluster(directory, readers=0) as cluster:
            for topic, partitions in ((_FEW, sizes.partitions), (_MANY, sizes.partitions_many)):
                scene.tell(f"{doing}: {partitions} partitions")
                create_topic(cluster, topic, partitions)
                yield from _measure_topic(cluster, topic, sizes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure_topic(cluster: LocalCluster, topic: str, sizes: Sizes) -> Iterator[tuple[str, Measured]]:
    pids = {name: process.pid for name, process in cluster.processes.items() if process.pid}
    at = leaders(cluster, topic)
    produce = Produce(topic, at, sizes.messages, sizes.window, sizes.warm_seconds, sizes.seconds)
    produced = _done(produce, pids)
    yield f"{topic} produce", produced
    stored = ends(at, topic)
    if sum(stored) != produced.moved.messages_in_all:
        raise ProcessFailed(f"{topic}: {sum(stored)} messages, of {produced.moved.messages_in_all} taken")
    fetch = Fetch(topic, at, stored, _ANSWER_BYTES, _FETCH_WINDOW, sizes.warm_seconds, sizes.seconds)
    yield f"{topic} fetch", _done(fetch, pids)
    if topic == _FEW:
        beforehand = msgspec.structs.replace(produce, encoded_beforehand=True)
        yield f"{topic} beforehand", _done(beforehand, pids)


def _done(plan: Produce | Fetch, pids: Mapping[str, int]) -> Measured:
    before = {name: usage.cpu_seconds(pid) for name, pid in pids.items()}
    moved = run_client(plan)
    batches = moved.messages_in_all / 10_000
    return Measured(
        moved, {name: 1e6 * (usage.cpu_seconds(pid) - before[name]) / batches for name, pid in pids.items()}
    )


def _produce_rows(measured: Rounds, sizes: Sizes) -> Iterator[Yielded]:
    few, many = sizes.partitions, sizes.partitions_many
    yield _row(f"Batch produce, {few} partitions", measured[f"{_FEW} produce"], 2.0)
    yield _row(f"Batch produce, {few} partitions, encoded beforehand", measured[f"{_FEW} beforehand"])
    yield _row(f"Batch produce, {many} partitions", measured[f"{_MANY} produce"])
    yield _ratio("produce", measured, sizes)


def _fetch_rows(measured: Rounds, sizes: Sizes) -> Iterator[Yielded]:
    few, many = sizes.partitions, sizes.partitions_many
    yield _row(f"Batch fetch into Arrow, {few} partitions", measured[f"{_FEW} fetch"], 5.0)
    yield _row(f"Batch fetch into Arrow, {many} partitions", measured[f"{_MANY} fetch"])
    yield _ratio("fetch", measured, sizes)


def _ratio(what: str, measured: Rounds, sizes: Sizes) -> Row:
    return Row(
        f"Batch {what}: {sizes.partitions_many} partitions against {sizes.partitions}",
        _speed(measured[f"{_MANY} {what}"]) / _speed(measured[f"{_FEW} {what}"]),
        "times",
        Bound(at_least=0.5),
    )


def _speed(measured: list[Measured]) -> float:
    return mean(each.moved.per_second for each in measured)


def _row(what: str, measured: list[Measured], millions_min: float | None = None) -> Row:
    moved = [each.moved for each in measured]
    costs = {name: mean(each.processor_us[name] for each in measured) for name in measured[0].processor_us}
    costs["client"] = mean(1e6 * each.processor_seconds / max(each.messages, 1) for each in moved) * 10_000
    megabytes = mean(each.wire_bytes / each.seconds for each in moved) / 1e6
    refused = sum(each.refused for each in moved)
    note = f"{megabytes:,.0f} MB/s on the wire; µs of processor time for 10,000 messages: " + ", ".join(
        f"{name} {cost:,.0f}" for name, cost in costs.items()
    )
    return Row(
        what,
        _speed(measured) / 1e6,
        "million/s",
        None if millions_min is None else Bound(at_least=millions_min),
        note=note + (f"; {refused} refused" if refused else ""),
    )
