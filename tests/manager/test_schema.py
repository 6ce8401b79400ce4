"""What `/openapi.json` says of a manager is true."""

import asyncio

from manager.clusters import Cluster
from manager.conftest import Play
from schema_check import check_schema
from talweg.metadata import Broker
from talweg.metadata.sql import SqlMetadata


class ActiveBrokers(SqlMetadata):
    """A store in which brokers stay active. Without one, what follows is a true 503, and no finding."""

    def update_broker(self, broker: Broker, *, epoch: int) -> Broker:
        return broker


def test_a_manager_answers_as_its_schema_says(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.manager(open_store=ActiveBrokers)
        await cluster.broker("broker")
        await cluster.client("t", replication=1)
        known = {"name": "t", "topic": "t"}
        await asyncio.to_thread(check_schema, cluster.primary, examples=15, parameters=known)

    play(scenario, partitions_max=40, wait_seconds_max=0.05, replication=1, request_seconds_max=2.0)
