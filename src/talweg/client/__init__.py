"""Clients of the cluster: producers, consumers, administration. They find leaders themselves.

Nothing is loaded here: `talweg` itself has the public names, and whoever needs a part of it loads no more.
"""

__all__ = []
