"""Managers: the plain API, the watch over brokers and clients, and the metadata, which the primary changes.

    Manager     one process; primary, stand-by or read-only by its settings and by the lease

Nothing of its own is kept: what the cluster knows is in the metadata store, messages and positions are with
the brokers. Produce and consume do not touch the store on their way.
"""

from talweg.manager.manager import Manager

__all__ = ["Manager"]
