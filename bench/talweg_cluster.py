"""What the benchmarks ask of a whole cluster: topics, their leaders, and how much they hold."""

import time

from bench.processes import ProcessFailed
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster

_LEADERS_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.1
_STEADY_SECONDS = 1.0  # a new topic's first leaders may be outvoted by those who opened it a moment later


def create_topic(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """One of replication 3; returns once every partition has a leader."""
    with cluster.ask(seconds_max=60.0) as manager:
        manager.post("/topics", name=topic, partitions=partitions, replication=3)
    leaders(cluster, topic)


def leaders(cluster: LocalCluster, topic: str) -> list[str]:
    """The endpoints of the leaders, by partition, once the primary knows them all and they stay."""
    deadline = time.monotonic() + _LEADERS_SECONDS_MAX
    before: list[str] = []
    since = 0.0
    with cluster.ask() as manager:
        while True:
            metadata = manager.get("/v1/metadata", topics=topic)
            endpoints = {broker["id"]: broker["endpoint"] for broker in metadata["brokers"]}
            partitions = metadata["topics"][0]["partitions"] if metadata["topics"] else []
            # A term of 0 is a guess.
            led = [part for part in partitions if part["term"] and part["leader"] is not None]
            if led and len(led) == len(partitions):
                found = [endpoints[part["leader"]] for part in led]
                if found != before:
                    before, since = found, time.monotonic()
                elif time.monotonic() - since >= _STEADY_SECONDS:
                    return found
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{topic}: {len(led)} of {len(partitions)} partitions have a leader")
            time.sleep(_LOOK_SECONDS)


def ends(at: list[str], topic: str) -> list[int]:
    """The first offset that is not there, by partition, as their leaders say."""
    found: dict[int, int] = {}
    for endpoint in set(at):
        with Asker(endpoint) as broker:
            offsets = broker.get(f"/v1/topics/{topic}/offsets", at="latest")["offsets"]
            found |= {int(partition): offset for partition, offset in offsets.items()}
    return [found[partition] for partition in range(len(at))]
