"""The internal topic of transactions: made when it is needed, once, with as many replicas as any other."""

import asyncio

import pytest

from manager.clusters import Cluster
from manager.conftest import Play
from talweg.errors import TooFewBrokers


def test_it_is_made_once_whoever_asks_and_is_not_listed(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        reader = await cluster.manager(read_only=True)
        managers = [cluster.managers[0].endpoint, reader.endpoint] * 4
        asked = (cluster.caller.post(manager, "/v1/transactions") for manager in managers)
        answers = await asyncio.gather(*asked)
        assert [answer["partitions"] for answer in answers] == [4] * 8
        for manager in managers[:2]:
            named = await cluster.caller.get(manager, "/v1/metadata", topics="__transactions")
            assert len(named["topics"][0]["partitions"]) == 4
            assert all(len(part["replicas"]) == 3 for part in named["topics"][0]["partitions"])
            assert (await cluster.caller.get(manager, "/v1/metadata"))["topics"] == []
            internal = await cluster.caller.get(manager, "/v1/metadata", internal="true")
            assert [topic["topic"] for topic in internal["topics"]] == ["__transactions"]

    play(scenario)


def test_it_is_not_made_with_fewer_replicas_while_brokers_are_away(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=2)
        with pytest.raises(TooFewBrokers):
            await cluster.caller.post(cluster.managers[0].endpoint, "/v1/transactions")

    play(scenario)
