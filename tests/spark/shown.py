"""How far consumer groups have come, as brokers, managers, the command and metrics show it."""

from cli.shell import Shell
from scraped import Scraped
from spark.scene import Scene


def positions(scene: Scene, group: str) -> dict[int, int | None]:
    """What brokers say of a group, as tools read it."""
    found: dict[int, int | None] = {}
    for name in scene.cluster.brokers:
        with scene.cluster.ask(name) as broker:
            answer = broker.get(f"/v1/topics/{scene.topic}/consumers")["partitions"]
        found |= {int(number): each["positions"].get(group) for number, each in answer.items()}
    return found


def lags(scene: Scene, group: str) -> list[int]:
    """What is left for a group: by /size, by `talweg consumer list`, and by /metrics."""
    with scene.cluster.ask() as manager:
        size = manager.get("/size", topic=scene.topic, consumer=group)["size"]
    listed = Shell(scene.cluster.url)("consumer", "list", "--topic", scene.topic, "--json").json["consumers"]
    measured = 0.0
    for name in scene.cluster.brokers:
        with scene.cluster.ask(name) as broker:
            _, text = broker.request("GET", "/metrics")
        measured += sum(Scraped(text).values("talweg_consumer_lag", topic=scene.topic, consumer=group))
    return [size, *(each["lag"] for each in listed if each["group"] == group), int(measured)]
