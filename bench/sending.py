"""Sending with the client library: single messages, lists, Arrow; and what confluent-kafka merely accepts."""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from statistics import mean

import msgspec

from bench import usage
from bench.processes import ProcessFailed
from bench.results import Bound, Missing, Row, Scene, Yielded
from bench.sending_client import Plan, Sending, run_client
from bench.talweg_cluster import create_topic, ends, leaders
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Three brokers and a primary; a topic of four partitions and replication 3; one program that sends log lines
of 100 bytes from one thread with `Producer` and its default settings (lz4, batches of up to 2 MiB). It counts
what is acknowledged: on disk (fdatasync) on two brokers. Brokers and program share the machine's cores.
`send` is called once for each message; `send_many` with lists of 10,000; `send_arrow` with record batches of
10,000, made beforehand. confluent-kafka is measured with no broker at all: what its `produce` takes into its
queue in one thread, and sends nowhere. *Encoding alone* makes batches of the same record batches, with lz4,
and sends them nowhere: no way of sending can be quicker than that on as many cores as there are, and three
brokers need their part of those. All of them take turns, round after round."""

_TOPIC = "sending"
_WAYS = ("send", "send_many", "send_arrow")
_ALONE = "encode"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    partitions: int
    rounds: int
    warm_seconds: float
    seconds: float


FULL = Sizes(4, rounds=3, warm_seconds=1.5, seconds=5.0)
QUICK = Sizes(4, rounds=1, warm_seconds=0.5, seconds=2.0)


class Measured(msgspec.Struct, frozen=True):
    """What the program did, and what it cost."""

    sending: Sending
    processor_us: dict[str, float]  # for 10,000 messages, of each server


Rounds = dict[str, list[Measured]]  # what each way gave in each round


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """All ways in turn, round after round; then the figures."""
    measured: Rounds = {}
    directory = scene.directory / "talweg"
    try:
        with LocalCluster(directory, readers=0) as cluster:
            create_topic(cluster, _TOPIC, sizes.partitions)
            for number in range(1, sizes.rounds + 1):
                doing = f"sending, round {number} of {sizes.rounds}"
                for how, each in _measure(scene, cluster, sizes, doing):
                    measured.setdefault(how, []).append(each)
            _check(cluster, measured)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    yield from _rows(measured)


def _measure(scene: Scene, cluster: LocalCluster, sizes: Sizes, doing: str) -> Iterator[tuple[str, Measured]]:
    plan = Plan("send", cluster.url, _TOPIC, sizes.warm_seconds, sizes.seconds)
    pids = {name: process.pid for name, process in cluster.processes.items() if process.pid}
    if importlib.util.find_spec("confluent_kafka") is not None:
        scene.tell(f"{doing}: confluent-kafka")
        yield "confluent", Measured(run_client(msgspec.structs.replace(plan, how="confluent")), {})
    scene.tell(f"{doing}: encoding alone")
    yield _ALONE, Measured(run_client(msgspec.structs.replace(plan, how=_ALONE)), {})
    for how in _WAYS:
        scene.tell(f"{doing}: {how}")
        yield how, _done(msgspec.structs.replace(plan, how=how), pids)


def _done(plan: Plan, pids: Mapping[str, int]) -> Measured:
    before = {name: usage.cpu_seconds(pid) for name, pid in pids.items()}
    sending = run_client(plan)
    batches = max(sending.messages_in_all, 1) / 10_000
    return Measured(
        sending, {name: 1e6 * (usage.cpu_seconds(pid) - before[name]) / batches for name, pid in pids.items()}
    )


def _check(cluster: LocalCluster, measured: Rounds) -> None:
    """What was acknowledged is there, and nothing else is."""
    sent = sum(each.sending.messages_in_all for how in _WAYS for each in measured[how])
    stored = sum(ends(leaders(cluster, _TOPIC), _TOPIC))
    if stored != sent:
        raise ProcessFailed(f"{stored} messages, of {sent} acknowledged")


def _rows(measured: Rounds) -> Iterator[Yielded]:
    send = _speed(measured["send"])
    accepted = measured.get("confluent")
    if accepted is None:
        yield Missing("confluent-kafka", "it is not installed: pip install 'talweg[bench]'")
    else:
        yield _row("confluent-kafka: produce() without a broker", accepted)
    yield _row("encoding alone, in one thread", measured[_ALONE])
    for how in _WAYS:
        yield _row(f"Producer.{how}", measured[how])
    if accepted is not None:
        yield Row(
            "Producer.send, acknowledged, against confluent-kafka's produce(), accepted",
            send / _speed(accepted),
            "times",
            Bound(at_least=0.5),
        )
    for how, times in (("send_many", 3.0), ("send_arrow", 10.0)):
        yield Row(
            f"Producer.{how} against send", _speed(measured[how]) / send, "times", Bound(at_least=times)
        )
    cores = os.cpu_count() or 1
    yield Row(
        f"encoding alone on all {cores} cores, with nothing left for brokers, against send",
        cores * _speed(measured[_ALONE]) / send,
        "times",
    )


def _speed(measured: list[Measured]) -> float:
    return mean(each.sending.per_second for each in measured)


def _row(what: str, measured: list[Measured]) -> Row:
    costs = {name: mean(each.processor_us[name] for each in measured) for name in measured[0].processor_us}
    costs["client"] = 10_000 * mean(
        1e6 * each.sending.processor_seconds / max(each.sending.messages, 1) for each in measured
    )
    note = "µs of processor time for 10,000 messages: " + ", ".join(
        f"{name} {cost:,.0f}" for name, cost in costs.items()
    )
    return Row(what, _speed(measured) / 1e6, "million/s", note=note)
