"""A broker of the reference design. Run as `python -m bench.reference_design.broker SETTINGS`."""

from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import Body

from bench.commands import Settings
from bench.reference_design.partition import Database, Partition
from bench.reference_design.serving import new_application, serve, settings_from_argument


class BrokerSettings(msgspec.Struct, frozen=True):
    """What it is told."""

    number: int  # from 0 on
    port: int
    directory: str
    raft_ports: list[list[int]]  # for each partition, of each broker
    raft: Settings  # pysyncobj's, by their names
    write_ahead_log: bool = False  # of SQLite, in place of its rollback journal


class Broker:
    """Its partitions, and the calls that the manager makes."""

    def __init__(self, settings: BrokerSettings) -> None:
        directory = Path(settings.directory)
        directory.mkdir(parents=True)
        self._settings = settings
        self._database = Database(directory / "broker.db", write_ahead_log=settings.write_ahead_log)
        self._partitions: dict[int, Partition] = {}

    def add_topic(self, name: Annotated[str, Body()], partition: Annotated[int, Body()]) -> dict[str, str]:
        """POST /topics: carry a partition."""
        addresses = [f"127.0.0.1:{port}" for port in self._settings.raft_ports[partition]]
        own = addresses.pop(self._settings.number)
        topic_id = self._database.add_topic(name, partition)
        self._partitions[partition] = Partition(self._database, topic_id, own, addresses, self._settings.raft)
        return {"status": "success"}

    def produce(
        self,
        partition: Annotated[int, Body()],
        producer_id: Annotated[int, Body()],
        message: Annotated[str, Body()],
    ) -> dict[str, str]:
        """POST /producer/produce: replicate a message, and answer once that is done."""
        self._partitions[partition].produce(producer_id, message)
        return {"status": "success"}

    def look(self) -> dict[str, bool | int]:
        """GET /: whether everything has a leader, and how many messages there are."""
        ready = all(each.isReady() and each._getLeader() is not None for each in self._partitions.values())
        return {"ready": ready, "messages": self._database.count()}


def main() -> None:
    """Serve until standard input ends."""
    settings = settings_from_argument(BrokerSettings)
    broker = Broker(settings)
    application = new_application()
    application.add_api_route("/topics", broker.add_topic, methods=["POST"])
    application.add_api_route("/producer/produce", broker.produce, methods=["POST"])
    application.add_api_route("/", broker.look, methods=["GET"])
    serve(application, settings.port)


if __name__ == "__main__":
    main()
