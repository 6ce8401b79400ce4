"""Consuming with the client library: messages in a loop, batches as Arrow, and what waiting less gains."""

import shutil
from collections.abc import Iterator
from statistics import mean

import msgspec

from bench.batch_client import Produce
from bench.batch_client import run_client as run_producer
from bench.consuming_client import Consumption, Plan, run_client
from bench.results import Bound, Row, Scene, Yielded
from bench.talweg_cluster import create_topic, ends, leaders
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Three brokers and a primary; a topic of four partitions and replication 3 with log lines of 100 bytes, in
batches of 10,000 compressed with lz4. One program consumes, in one thread of its own (beside the one of the
client library that reads ahead), again and again from the beginning; brokers and program share the machine's
cores. `for message in consumer` makes a `Message` of each; a batch is made into Arrow, or into a list of
values.

One call at a time: consumers of the plain API, which each get one message a call, whose new position is
replicated before it is answered; the program waits for each answer before it asks the next. Concurrent: the
same consumers, each with a call under way in one event loop. This is what the reference documents measured:
they report half the time for asynchronous consume calls, and 30 to 40 % less with a threaded server. The gain
is time that would be spent waiting, so a machine whose cores are all busy shows little of it. `AsyncConsumer`
is set beside it for scale only: it reads ahead in batches, and commits positions now and then."""

_TOPIC = "consuming"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    partitions: int
    consumers: int  # of the plain API
    rounds: int
    fill_seconds: float  # of producing what is consumed
    warm_seconds: float
    seconds: float


FULL = Sizes(4, consumers=8, rounds=3, fill_seconds=3.0, warm_seconds=1.0, seconds=5.0)
QUICK = Sizes(4, consumers=8, rounds=1, fill_seconds=1.5, warm_seconds=0.5, seconds=2.0)

Rounds = dict[str, list[Consumption]]  # what each way of consuming gave in each round


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """All ways in turn, round after round; then the figures."""
    measured: Rounds = {}
    directory = scene.directory / "talweg"
    try:
        with LocalCluster(directory, readers=0) as cluster:
            for number in range(1, sizes.rounds + 1):
                doing = f"consuming, round {number} of {sizes.rounds}"
                for name, consumption in _measure(scene, cluster, sizes, doing):
                    measured.setdefault(name, []).append(consumption)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    yield from _library_rows(measured)
    yield from _waiting_rows(measured, sizes)


def _measure(
    scene: Scene, cluster: LocalCluster, sizes: Sizes, doing: str
) -> Iterator[tuple[str, Consumption]]:
    plan = Plan("messages", cluster.url, _TOPIC, _filled(cluster, sizes), sizes.warm_seconds, sizes.seconds)
    for how in ("messages", "arrow", "values", "async messages"):
        scene.tell(f"{doing}: {how}")
        yield how, run_client(msgspec.structs.replace(plan, how=how))
    with cluster.ask(seconds_max=60.0) as manager:
        numbers = [
            int(manager.post("/consumer/register", topic=_TOPIC)["consumer_id"])
            for _ in range(sizes.consumers)
        ]
    called = msgspec.structs.replace(plan, how="plain", consumers=tuple(numbers))
    scene.tell(f"{doing}: one call at a time")
    yield "serial", run_client(msgspec.structs.replace(called, in_turn=True))
    scene.tell(f"{doing}: {len(numbers)} calls at a time")
    yield "concurrent", run_client(called)


def _filled(cluster: LocalCluster, sizes: Sizes) -> int:
    """How much there is to consume; it is produced if nothing is there."""
    with cluster.ask() as manager:
        known = {topic["topic"] for topic in manager.get("/v1/metadata")["topics"]}
    if _TOPIC not in known:
        create_topic(cluster, _TOPIC, sizes.partitions)
        at = leaders(cluster, _TOPIC)
        run_producer(Produce(_TOPIC, at, 10_000, 8, 0.0, sizes.fill_seconds, encoded_beforehand=True))
    return sum(ends(leaders(cluster, _TOPIC), _TOPIC))


def _library_rows(measured: Rounds) -> Iterator[Yielded]:
    yield _row("Consumer: messages in a loop", measured["messages"], 500_000)
    yield _row("AsyncConsumer: messages in a loop", measured["async messages"])
    yield _row("Consumer: batches into Arrow", measured["arrow"], 2_000_000)
    yield _row("Consumer: batches into lists of values", measured["values"])


def _waiting_rows(measured: Rounds, sizes: Sizes) -> Iterator[Yielded]:
    serial = _speed(measured["serial"])
    yield _row("Plain consume, one call at a time", measured["serial"])
    yield _row(f"Plain consume, {sizes.consumers} calls at a time", measured["concurrent"])
    yield Row(
        "Concurrent consume calls against one at a time",
        _speed(measured["concurrent"]) / serial,
        "times",
        Bound(at_least=1.3),
        note="the reference documents report 2 for asynchronous calls, 1.3 to 1.4 for a threaded server",
    )
    # No bound: it would hold whatever we did, because the two do not do the same work.
    yield Row(
        "AsyncConsumer against one plain call at a time",
        _speed(measured["async messages"]) / serial,
        "times",
        note="not like for like: it reads ahead in batches, and replicates no position for each message",
    )


def _speed(measured: list[Consumption]) -> float:
    return mean(each.per_second for each in measured)


def _row(what: str, measured: list[Consumption], least: float | None = None) -> Row:
    cost = mean(1e9 * each.processor_seconds / each.messages for each in measured)
    return Row(
        what,
        _speed(measured),
        "messages/s",
        None if least is None else Bound(at_least=least),
        note=f"{cost:,.0f} ns of the program's processor time each",
    )
