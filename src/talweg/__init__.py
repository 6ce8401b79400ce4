"""Talweg: a replicated, partitioned log.

This is the public API. So far it is the error tree; `talweg.records`, `talweg.storage`, `talweg.raft`
and `talweg.replication` are the layers of the log, `talweg.broker` and `talweg.manager` the servers over
it, each with its own public names.
"""

from talweg import errors
from talweg.version import __version__

__all__ = ["__version__", "errors"]
