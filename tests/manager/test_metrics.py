"""What managers say at `/metrics`, each of its own role and of the cluster that it knows."""

from manager.clusters import Cluster, until
from manager.conftest import Play
from scraped import Scraped


async def scrape(cluster: Cluster, endpoint: str) -> Scraped:
    response = await cluster.caller.client.request(endpoint, "GET", "/metrics", seconds_max=20.0)
    return Scraped(response.body)


def test_managers_tell_their_role_and_what_there_is(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(brokers=2)
        reader = await cluster.manager(read_only=True)
        client = await cluster.client("t", partitions=3, replication=2)
        await client.produce(cluster.primary, "hello")
        found = await scrape(cluster, cluster.primary)
        assert found.value("talweg_manager_primary") == 1
        assert found.value("talweg_manager_lease_epoch") >= 1
        assert found.value("talweg_metadata_available") == 1
        assert found.value("talweg_metadata_version") > 0
        assert found.value("talweg_cluster_brokers", state="active") == 2
        assert found.value("talweg_cluster_brokers", state="inactive") == 0
        assert found.value("talweg_cluster_topics") == 1
        assert found.value("talweg_cluster_partitions") == 3
        assert found.value("talweg_cluster_producers") == 1
        assert found.value("talweg_cluster_consumers") == 1
        total = "talweg_http_requests_total"
        assert found.value(total, method="POST", path="/producer/produce", status="2xx") == 1

        assert (await scrape(cluster, reader.endpoint)).value("talweg_manager_primary") == 0
        await cluster.stop_broker("broker-1")

        async def is_missed() -> bool:
            found = await scrape(cluster, reader.endpoint)
            return found.value("talweg_cluster_brokers", state="inactive") == 1

        await until(is_missed)

    play(scenario)
