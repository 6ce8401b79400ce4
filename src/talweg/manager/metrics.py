"""What a manager says of itself at `/metrics`: its role, and the cluster as it knows it."""

from collections import Counter
from typing import Final

from talweg.http import Metric, Samples, single
from talweg.manager.parts import Parts
from talweg.metadata import BrokerStatus

PRIMARY: Final = Metric("talweg_manager_primary", "gauge", "1 if this manager holds the lease, else 0.")
EPOCH: Final = Metric("talweg_manager_lease_epoch", "gauge", "The epoch of the lease, whoever holds it.")
AVAILABLE: Final = Metric(
    "talweg_metadata_available", "gauge", "1 if the metadata store answered the last look, else 0."
)
VERSION: Final = Metric("talweg_metadata_version", "gauge", "How far the copy of the metadata has come.")
BROKERS: Final = Metric("talweg_cluster_brokers", "gauge", "Brokers, by what they are.", ("state",))
TOPICS: Final = Metric("talweg_cluster_topics", "gauge", "Topics, Talweg's own included.")
PARTITIONS: Final = Metric("talweg_cluster_partitions", "gauge", "Partitions, Talweg's own included.")
PRODUCERS: Final = Metric("talweg_cluster_producers", "gauge", "Producers that are registered.")
CONSUMERS: Final = Metric("talweg_cluster_consumers", "gauge", "Consumers that are registered.")

MANAGER_METRICS: Final = (
    PRIMARY, EPOCH, AVAILABLE, VERSION, BROKERS, TOPICS, PARTITIONS, PRODUCERS, CONSUMERS,
)  # fmt: skip


def manager_samples(parts: Parts) -> list[Samples]:
    """What is seen at this moment."""
    follower = parts.follower
    copy = follower.copy
    states = Counter(broker.status for broker in copy.brokers.values())
    return [
        single(PRIMARY, parts.lease.holds),
        single(EPOCH, 0 if copy.lease is None else copy.lease.epoch),
        single(AVAILABLE, follower.available),
        single(VERSION, copy.version),
        Samples(BROKERS, [((status.value,), states[status]) for status in BrokerStatus]),
        single(TOPICS, len(copy.topics)),
        single(PARTITIONS, len(follower.groups)),
        single(PRODUCERS, len(copy.producers)),
        single(CONSUMERS, len(copy.consumers)),
    ]
