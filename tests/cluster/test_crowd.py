"""Many at once, and the recovery test of the reference documents: kill everything mid-stream, start again."""

import pytest

from cluster.clients import Load
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-crowd")


def test_ten_producers_and_ten_consumers_at_once(cluster: LocalCluster, topic: str) -> None:
    load = Load(cluster, topic, producers=10, consumers=10, count=60)
    with load:
        for producer in load.producers:
            producer.join(60)
    for consumer in load.consumers:  # each sees every message: positions are each consumer's own
        assert len(consumer.seen) == 10 * 60


def test_everything_is_killed_mid_stream_and_carries_on(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        before = load.acknowledged
        cluster.kill(*cluster.processes)
        cluster.start_processes()
        cluster.wait_until_ready()
        load.wait_for_progress()  # the same producers and consumers, under their old numbers
        assert load.acknowledged > before


def test_everything_is_stopped_in_good_order_and_carries_on(cluster: LocalCluster, topic: str) -> None:
    with Load(cluster, topic) as load:
        assert cluster.stop(seconds_max=10) == []
        cluster.start_processes()
        cluster.wait_until_ready()
        load.wait_for_progress()
