"""Single messages over the plain API: against a bare handler that only echoes, and the reference design."""

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean

import msgspec

from bench import usage
from bench.commands import Settings
from bench.load import Load, LoadFailed, Plan, run_load
from bench.processes import ProcessFailed, attempted, free_ports
from bench.results import Bound, Missing, Row, Scene, Yielded
from bench.serving import Server
from bench.talweg_cluster import create_topic
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Connections that each send a request, wait for its answer and send the next; one process makes the load
for all contestants, and checks every answer. Messages of 100 bytes, each connection a producer or a
consumer of its own. Talweg: three brokers and a primary, which is what the load goes to; replication 3; a
produce is answered once the message is on disk on two brokers, and a consume once the consumer's new
position is. Afterwards the log must hold as many messages, and the positions be as far, as there were
answers. The bare handler is Starlette on uvicorn (uvloop, httptools): one process, which echoes the body
of the same produce requests.

The reference design is a FastAPI manager that forwards over HTTP to three FastAPI brokers; each of the
topic's four partitions is a pysyncobj object on all three, and its replicated call inserts the message into
each broker's SQLite file through SQLAlchemy, with a commit of its own. Where its documents leave a choice
it was given the faster one (see bench/reference_design). What it promises: when it answers, the message is
committed and durable on the broker that was asked, and decided by a majority. What it does not: pysyncobj
keeps its log in memory, so a broker that is killed loses what it had not applied, and a retry writes twice.
*As it comes* has pysyncobj's own settings but for a quicker first connection; *quick ticks*:
appendEntriesPeriod 20 ms and autoTickPeriod 10 ms; *unbatched*: appendEntriesUseBatch off, as its
documentation advises for single requests. The best of them counts. *Write-ahead log* is unbatched with
another journal mode of SQLite, which the documents do not mention: it is shown, and does not count.

All are started afresh in every round and take turns; figures are means of the rounds. Many partitions:
a second topic of the same cluster, under the same load."""

_TOPIC = "plain"
_MANY = "plain-many"
_MESSAGE = "m" * 100
_SUCCESS = b'"status":"success"'
_RETRY: Settings = {"connectionRetryTime": 0.2}  # so that it starts quickly


class Variant(msgspec.Struct, frozen=True):
    """The reference design with one of its settings."""

    name: str
    raft: Settings
    write_ahead_log: bool = False


VARIANTS = (
    Variant("as it comes", _RETRY),
    Variant("quick ticks", _RETRY | {"appendEntriesPeriod": 0.02, "autoTickPeriod": 0.01}),
    Variant("unbatched", _RETRY | {"appendEntriesUseBatch": False}),
    Variant("write-ahead log", _RETRY | {"appendEntriesUseBatch": False}, write_ahead_log=True),
)


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    connections: int
    partitions: int
    partitions_many: int
    rounds: int
    warm_seconds: float
    seconds: float
    variants: tuple[Variant, ...]


FULL = Sizes(64, 4, 400, rounds=3, warm_seconds=2.0, seconds=6.0, variants=VARIANTS)
QUICK = Sizes(64, 4, 400, rounds=1, warm_seconds=1.0, seconds=3.0, variants=VARIANTS[:2])


class Measured(msgspec.Struct, frozen=True):
    """What a load gave, and what it cost."""

    load: Load
    processor_us: dict[str, float]  # for each answer, of each server


Rounds = dict[str, list[Measured]]  # what each contestant gave in each round


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """All contestants in turn, round after round; then the figures."""
    measured: Rounds = {}
    with_rivals = importlib.util.find_spec("fastapi") is not None
    if not with_rivals:
        yield Missing(
            "the bare handler and the reference design", "FastAPI is not installed; make bench does"
        )
    variants = list(sizes.variants) if with_rivals else []
    for number in range(1, sizes.rounds + 1):
        doing = f"plain API, round {number} of {sizes.rounds}"
        if with_rivals:
            scene.tell(f"{doing}: a bare handler")
            _add(measured, "bare", _measure_bare(scene, sizes))
        scene.tell(f"{doing}: Talweg")
        for name, each in _measure_talweg(scene, sizes, doing):
            _add(measured, name, each)
        for variant in tuple(variants):
            scene.tell(f"{doing}: the reference design, {variant.name}")
            reference = partial(_measure_reference, scene, sizes, variant)
            try:
                _add(measured, variant.name, attempted(reference, LoadFailed))
            except (LoadFailed, ProcessFailed) as error:
                # Nothing of ours rests on it: what goes wrong there is said, and ends it there.
                variants.remove(variant)
                yield Missing(f"the reference design, {variant.name}", " ".join(str(error).split())[:300])
    yield from _talweg_rows(measured, sizes)
    if with_rivals:
        yield from _rival_rows(measured, variants)


def _add(measured: Rounds, name: str, each: Measured) -> None:
    measured.setdefault(name, []).append(each)


# What is measured


def _measure_bare(scene: Scene, sizes: Sizes) -> Measured:
    (port,) = free_ports(1)
    with Server("bench.echo_process", [str(port)], port, scene.directory / "bare.log") as server:
        server.wait_until_it_listens()
        plan = _produce_plan(port, _TOPIC, range(sizes.connections), sizes)
        # The whole body comes back, so all of it is looked for.
        return _loaded(msgspec.structs.replace(plan, expected=_MESSAGE.encode()), {"handler": server.pid})


def _measure_talweg(scene: Scene, sizes: Sizes, doing: str) -> Iterator[tuple[str, Measured]]:
    directory = scene.directory / "talweg"
    try:
        with LocalCluster(directory, readers=0) as cluster, cluster.ask(seconds_max=60.0) as manager:
            pids = {name: process.pid for name, process in cluster.processes.items() if process.pid}
            port = cluster.processes[cluster.primary].port
            for topic, partitions in ((_TOPIC, sizes.partitions), (_MANY, sizes.partitions_many)):
                scene.tell(f"{doing}: Talweg, {partitions} partitions")
                create_topic(cluster, topic, partitions)
                producers = _registered(manager, "producer", topic, sizes.connections)
                produced = _loaded(_produce_plan(port, topic, producers, sizes), pids)
                stored = sum(
                    each["size"] for each in manager.get(f"/topics/{topic}/partitions")["partitions"]
                )
                _check(f"messages in {topic}", stored, produced)
                yield f"{topic} produce", produced
                consumers = _registered(manager, "consumer", topic, sizes.connections)
                consumed = _loaded(_consume_plan(port, topic, consumers, sizes), pids)
                left = [manager.get("/size", topic=topic, consumer_id=each)["size"] for each in consumers]
                _check(f"messages read of {topic}", len(left) * stored - sum(left), consumed)
                yield f"{topic} consume", consumed
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure_reference(scene: Scene, sizes: Sizes, variant: Variant) -> Measured:
    # Imported here: what it needs is there only for the benchmark.
    from bench.reference_design.cluster import ReferenceCluster  # noqa: PLC0415

    directory = scene.directory / "reference"
    try:
        with ReferenceCluster(
            directory,
            partitions=sizes.partitions,
            raft=variant.raft,
            write_ahead_log=variant.write_ahead_log,
        ) as cluster:
            producers = cluster.register_producers(_TOPIC, sizes.connections)
            plan = _produce_plan(cluster.port, _TOPIC, producers, sizes)
            # Under this load its leaders change now and then, and what is under way fails.
            measured = _loaded(msgspec.structs.replace(plan, may_fail=True), cluster.pids)
            if max(cluster.messages()) < measured.load.answers_in_all:
                raise ProcessFailed("the reference design has lost messages")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return measured


def _registered(manager: Asker, kind: str, topic: str, count: int) -> list[int]:
    return [int(manager.post(f"/{kind}/register", topic=topic)[f"{kind}_id"]) for _ in range(count)]


def _produce_plan(port: int, topic: str, producers: "range | list[int]", sizes: Sizes) -> Plan:
    bodies = (
        msgspec.json.encode({"topic": topic, "producer_id": producer, "message": _MESSAGE})
        for producer in producers
    )
    requests = [
        b"POST /producer/produce HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
        for body in bodies
    ]
    return Plan(port, requests, _SUCCESS, sizes.warm_seconds, sizes.seconds)


def _consume_plan(port: int, topic: str, consumers: list[int], sizes: Sizes) -> Plan:
    requests = [
        f"GET /consumer/consume?topic={topic}&consumer_id={each} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
        for each in consumers
    ]
    return Plan(port, requests, _MESSAGE.encode(), sizes.warm_seconds, sizes.seconds)


def _loaded(plan: Plan, pids: Mapping[str, int]) -> Measured:
    before = {name: usage.cpu_seconds(pid) for name, pid in pids.items()}
    try:
        load = run_load(plan)
    except LoadFailed as error:
        raise LoadFailed(f"{', '.join(pids)}: {error}") from None
    spent = {name: usage.cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    return Measured(load, {name: 1e6 * each / load.answers_in_all for name, each in spent.items()})


def _check(what: str, found: int, measured: Measured) -> None:
    if found != measured.load.answers_in_all:
        raise ProcessFailed(f"{what}: {found}, but {measured.load.answers_in_all} answers said success")


# What comes of it


def _talweg_rows(measured: Rounds, sizes: Sizes) -> Iterator[Yielded]:
    few, many = sizes.partitions, sizes.partitions_many
    for what in ("produce", "consume"):
        yield from (
            _row(f"Plain {what}, {count} partitions", measured[f"{topic} {what}"])
            for topic, count in ((_TOPIC, few), (_MANY, many))
        )
        yield Row(
            f"Plain {what}: {many} partitions against {few}",
            _speed(measured[f"{_MANY} {what}"]) / _speed(measured[f"{_TOPIC} {what}"]),
            "times",
            Bound(at_least=0.5),
        )


def _rival_rows(measured: Rounds, variants: Sequence[Variant]) -> Iterator[Yielded]:
    bare = measured["bare"]
    yield _row("A bare handler that echoes", bare)
    for what, bound in (("produce", 0.25), ("consume", 0.2)):
        yield Row(
            f"Plain {what} against the bare handler",
            _speed(measured[f"{_TOPIC} {what}"]) / _speed(bare),
            "times",
            Bound(at_least=bound),
        )
    for variant in variants:
        yield _row(f"The reference design, {variant.name}: produce", measured[variant.name])
    documented = [variant for variant in variants if not variant.write_ahead_log]
    best = max(documented, key=lambda variant: _speed(measured[variant.name]), default=None)
    for variant in variants:
        if variant is best or variant.write_ahead_log:
            yield Row(
                f"Plain produce against the reference design, {variant.name}",
                _speed(measured[f"{_TOPIC} produce"]) / _speed(measured[variant.name]),
                "times",
                Bound(at_least=20) if variant is best else None,
            )


def _speed(measured: list[Measured]) -> float:
    return mean(each.load.per_second for each in measured)


def _row(what: str, measured: list[Measured]) -> Row:
    loads = [each.load for each in measured]
    costs = {name: mean(each.processor_us[name] for each in measured) for name in measured[0].processor_us}
    costs["load"] = mean(1e6 * load.processor_seconds / load.answers for load in loads)
    median_ms, p99_ms = mean(load.median_ms for load in loads), mean(load.p99_ms for load in loads)
    note = f"{median_ms:,.1f} ms, 99 of 100 within {p99_ms:,.1f} ms; µs of processor time each: " + ", ".join(
        f"{name} {cost:,.0f}" for name, cost in costs.items()
    )
    failures = sum(load.failures for load in loads)
    return Row(what, _speed(measured), "requests/s", note=note + (f"; {failures} failed" if failures else ""))
