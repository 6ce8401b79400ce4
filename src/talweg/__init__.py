"""Talweg: a replicated, partitioned log.

This is the public API. So far it is the error tree; `talweg.records`, `talweg.storage`, `talweg.raft`
and `talweg.replication` are the layers of the log, each with its own public names.
"""

from talweg import errors

__version__ = "0.1.0"

__all__ = ["__version__", "errors"]
