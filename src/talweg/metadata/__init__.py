"""What the cluster knows of itself, where partitions are placed, and the stores that keep it.

    model, placement    pure: the values, and who carries which partition
    MetadataStore       the contract of a store: topics, assignments, brokers, clients, the primary's lease
    open_metadata       a store by its URL: SQLite, PostgreSQL, MySQL / MariaDB, Redis, Redis Cluster
    MetadataCopy        a copy in memory that follows a store's changes

Who leads a partition is not here: that is the word of the partition's own group.
"""

from talweg.metadata.copy import MetadataCopy, fetch_changes
from talweg.metadata.model import (
    RESERVED_PREFIX,
    Assignment,
    Broker,
    BrokerStatus,
    Consumer,
    Lease,
    MemberKind,
    Producer,
    RemovedTopic,
    Replica,
    ReplicaRole,
    Start,
    Topic,
    TopicSettings,
    check_topic_name,
)
from talweg.metadata.opening import open_metadata
from talweg.metadata.placement import (
    PARTITIONS_MAX,
    Load,
    Plan,
    Report,
    loads_of,
    next_step,
    place_topic,
    plan_replacement,
)
from talweg.metadata.store import Changes, MetadataStore

__all__ = [
    "PARTITIONS_MAX",
    "RESERVED_PREFIX",
    "Assignment",
    "Broker",
    "BrokerStatus",
    "Changes",
    "Consumer",
    "Lease",
    "Load",
    "MemberKind",
    "MetadataCopy",
    "MetadataStore",
    "Plan",
    "Producer",
    "RemovedTopic",
    "Replica",
    "ReplicaRole",
    "Report",
    "Start",
    "Topic",
    "TopicSettings",
    "check_topic_name",
    "fetch_changes",
    "loads_of",
    "next_step",
    "open_metadata",
    "place_topic",
    "plan_replacement",
]
