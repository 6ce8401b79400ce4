"""Talweg: a replicated, partitioned log.

This is the public API: producers, consumers and administration, each for programs that block and for those
with an event loop, what they take and what they give, and the error tree. `talweg.records`, `talweg.storage`,
`talweg.raft` and `talweg.replication` are the layers of the log, `talweg.broker` and `talweg.manager` the
servers over it, each with its own public names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from talweg import errors
from talweg.version import __version__

if TYPE_CHECKING:
    from talweg.client.admin import Admin
    from talweg.client.async_admin import AsyncAdmin
    from talweg.client.async_consumer import AsyncConsumer
    from talweg.client.async_producer import AsyncProducer
    from talweg.client.async_transaction import AsyncTransaction
    from talweg.client.consumer import Consumer
    from talweg.client.consumer_settings import Partitions, Reset
    from talweg.client.delivery import Deliveries, Delivery, Sent, SentRun
    from talweg.client.description import (
        ClusterStatus,
        ConsumerDescription,
        ConsumerListing,
        ManagerDescription,
        PartitionDescription,
        Progress,
        TopicDescription,
    )
    from talweg.client.draft import Content, Headers
    from talweg.client.message import Message, Place
    from talweg.client.offsets import Where
    from talweg.client.producer import Producer
    from talweg.client.producer_settings import Acks
    from talweg.client.received import ReceivedBatch
    from talweg.client.servers import Servers
    from talweg.client.transaction import Transaction
    from talweg.protocol.plain import BrokerShown, ClientShown

__all__ = [
    "Acks",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "BrokerShown",
    "ClientShown",
    "ClusterStatus",
    "Consumer",
    "ConsumerDescription",
    "ConsumerListing",
    "Content",
    "Deliveries",
    "Delivery",
    "Headers",
    "ManagerDescription",
    "Message",
    "PartitionDescription",
    "Partitions",
    "Place",
    "Producer",
    "Progress",
    "ReceivedBatch",
    "Reset",
    "Sent",
    "SentRun",
    "Servers",
    "TopicDescription",
    "Transaction",
    "Where",
    "__version__",
    "errors",
]

# Loaded when they are first asked for: not every program needs all of it, and columns take a while to load.
_CLIENT = {
    "Acks": "talweg.client.producer_settings",
    "Admin": "talweg.client.admin",
    "AsyncAdmin": "talweg.client.async_admin",
    "AsyncConsumer": "talweg.client.async_consumer",
    "AsyncProducer": "talweg.client.async_producer",
    "AsyncTransaction": "talweg.client.async_transaction",
    "BrokerShown": "talweg.protocol.plain",
    "ClientShown": "talweg.protocol.plain",
    "ClusterStatus": "talweg.client.description",
    "Consumer": "talweg.client.consumer",
    "ConsumerDescription": "talweg.client.description",
    "ConsumerListing": "talweg.client.description",
    "Content": "talweg.client.draft",
    "Deliveries": "talweg.client.delivery",
    "Delivery": "talweg.client.delivery",
    "Headers": "talweg.client.draft",
    "ManagerDescription": "talweg.client.description",
    "Message": "talweg.client.message",
    "PartitionDescription": "talweg.client.description",
    "Partitions": "talweg.client.consumer_settings",
    "Place": "talweg.client.message",
    "Producer": "talweg.client.producer",
    "Progress": "talweg.client.description",
    "ReceivedBatch": "talweg.client.received",
    "Reset": "talweg.client.consumer_settings",
    "Sent": "talweg.client.delivery",
    "SentRun": "talweg.client.delivery",
    "Servers": "talweg.client.servers",
    "TopicDescription": "talweg.client.description",
    "Transaction": "talweg.client.transaction",
    "Where": "talweg.client.offsets",
}


def __getattr__(name: str) -> Any:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_CLIENT[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
