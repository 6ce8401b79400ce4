"""Clients of the cluster: producers, consumers, administration. They find leaders themselves."""

from talweg.client.cluster import Cluster

__all__ = ["Cluster"]
