"""Talweg: a replicated, partitioned log.

This is the public API: producers, consumers and administration, each for programs that block and for those
with an event loop, and the error tree. `talweg.records`, `talweg.storage`, `talweg.raft` and
`talweg.replication` are the layers of the log, `talweg.broker` and `talweg.manager` the servers over it, each
with its own public names.
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
    from talweg.client.consumer import Consumer
    from talweg.client.message import Message
    from talweg.client.producer import Producer
    from talweg.client.received import ReceivedBatch

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "Message",
    "Producer",
    "ReceivedBatch",
    "__version__",
    "errors",
]

# Loaded when they are first asked for: not every program needs all of it, and columns take a while to load.
_CLIENT = {
    "Admin": "talweg.client.admin",
    "AsyncAdmin": "talweg.client.async_admin",
    "AsyncConsumer": "talweg.client.async_consumer",
    "AsyncProducer": "talweg.client.async_producer",
    "Consumer": "talweg.client.consumer",
    "Message": "talweg.client.message",
    "Producer": "talweg.client.producer",
    "ReceivedBatch": "talweg.client.received",
}


def __getattr__(name: str) -> Any:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_CLIENT[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
