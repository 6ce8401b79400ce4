"""What brokers say at `/metrics`, after real messages, positions and holds."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from broker.asking import PARTITION, Asking
from broker.primary import QUICK, Brokers, wait_until
from talweg.broker import metrics
from talweg.http.metrics import HTTP_METRICS
from talweg.manager.metrics import MANAGER_METRICS
from talweg.protocol.batches import Commit


def test_partitions_and_lags_are_as_messages_and_positions_have_made_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            asking = Asking(brokers, leader)
            await asking.produce(b"one", b"two", b"three")
            await asking.commit(Commit(consumer="spark-archive", offset=1))
            await asking.commit(Commit(consumer_id=7, offset=3))
            found = await asking.scrape()
            place = {"topic": "lines", "partition": 0}
            assert found.value("talweg_partition_start_offset", **place) == 0
            assert found.value("talweg_partition_next_offset", **place) == 3
            assert found.value("talweg_partition_leader", **place) == 1
            assert found.value("talweg_partition_term", **place) >= 1
            assert found.value("talweg_partition_log_bytes", **place) > 100
            assert found.value("talweg_partition_replicas", **place) == 3
            assert found.value("talweg_consumer_position", consumer="spark-archive", **place) == 1
            assert found.value("talweg_consumer_lag", consumer="spark-archive", **place) == 2
            assert found.value("talweg_consumer_lag", consumer="#7", **place) == 0
            assert found.values("talweg_consumer_overtaken") == []  # of holds only
            assert found.value("talweg_broker_partitions_led") == 1
            path = f"{PARTITION}/records".replace("lines", "{topic}").replace("0", "{partition}")
            assert found.value("talweg_http_requests_total", path=path, status="2xx") == 1

            await asking.commit(Commit(consumer="spark-archive", offset=3))
            assert (await asking.scrape()).value("talweg_consumer_lag", consumer="spark-archive") == 0

            follower = await Asking(brokers, (leader + 1) % 3).scrape()
            assert follower.value("talweg_broker_partitions") == 1
            assert follower.value("talweg_broker_partitions_led") == 0
            assert follower.value("talweg_partition_leader", **place) == 0
            assert follower.values("talweg_partition_next_offset") == []
            assert follower.values("talweg_consumer_lag") == []

    asyncio.run(test())


def test_a_replica_that_is_gone_is_missed(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            asking = Asking(brokers, leader)

            async def caught_up(count: int) -> None:
                async with asyncio.timeout(20):
                    while (await asking.scrape()).value("talweg_partition_replicas_caught_up") != count:  # noqa: ASYNC110 - nor is there one for this
                        await asyncio.sleep(0.02)

            await caught_up(3)
            await brokers.stop((leader + 1) % 3)
            await caught_up(2)
            assert (await asking.scrape()).value("talweg_partition_replicas") == 3

    asyncio.run(test())


def test_a_hold_that_retention_overtook_is_shown(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Asking(brokers, await brokers.topic(retention_bytes=0))
            replica = brokers.running[0].hosting.partitions[10].group.replica
            await asking.commit(Commit(consumer="spark", offset=0, keep_bytes=100_000))
            found = await asking.scrape()
            assert found.value("talweg_consumer_hold_bytes", consumer="spark") == 100_000
            assert found.value("talweg_consumer_overtaken", consumer="spark") == 0
            for _ in range(6):
                await asking.produce(b"x" * 90_000)
            await wait_until(lambda: replica.start_offset > 0)
            found = await asking.scrape()
            assert found.value("talweg_consumer_overtaken", consumer="spark") == 1
            next_offset = found.value("talweg_partition_next_offset")
            start_offset = found.value("talweg_partition_start_offset")
            assert found.value("talweg_consumer_position", consumer="spark") == 0
            assert found.value("talweg_consumer_lag", consumer="spark") == next_offset - start_offset
            await asking.commit(Commit(consumer="spark", offset=replica.high_watermark))
            assert (await asking.scrape()).value("talweg_consumer_overtaken", consumer="spark") == 0
            await asking.commit(Commit(consumer="spark", keep_bytes=0))
            assert (await asking.scrape()).values("talweg_consumer_overtaken") == []

    asyncio.run(test())


def test_no_more_positions_are_shown_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "POSITIONS_MAX", 2)

    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            await asking.commit(Commit(consumer_id=1, offset=0))
            await asking.commit(Commit(consumer="group", offset=0))
            await asking.commit(Commit(consumer="late", offset=0, keep_bytes=1))
            found = await asking.scrape()
            shown = {
                each.labels["consumer"] for each in found.samples if each.name == "talweg_consumer_position"
            }
            assert shown == {"late", "group"}
            assert found.value("talweg_consumer_positions_left_out") == 1

    asyncio.run(test())


def test_the_document_names_every_metric_and_its_labels() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(talweg_\w+)` \| ([^|]*)\|", text, re.MULTILINE)
    documented = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    ours = (*HTTP_METRICS, *metrics.BROKER_METRICS, *MANAGER_METRICS)
    assert documented == {metric.name: metric.labels for metric in ours}
