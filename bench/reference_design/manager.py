"""The manager of the reference design. Run as `python -m bench.reference_design.manager SETTINGS`."""

import itertools
import threading
from typing import Annotated

import msgspec
import requests
from fastapi import Body, HTTPException
from requests.adapters import HTTPAdapter

from bench.reference_design.serving import new_application, serve, settings_from_argument


class ManagerSettings(msgspec.Struct, frozen=True):
    """What it is told."""

    port: int
    brokers: list[str]  # their URLs
    partitions: int  # of a topic


class Topic:
    """Its partitions in turn."""

    def __init__(self, partitions: int) -> None:
        self.turns = itertools.cycle(range(partitions))


class Manager:
    """Checks requests, chooses the partition, and forwards to a broker that carries it."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self._producers: dict[int, str] = {}  # their topic's name, by their number
        self._change = threading.Lock()
        self._sessions = threading.local()

    def register_producer(self, topic: Annotated[str, Body(embed=True)]) -> dict[str, str | int]:
        """POST /producer/register: its topic is created if need be."""
        with self._change:
            if topic not in self._topics:
                for partition in range(self._settings.partitions):
                    for broker in self._settings.brokers:
                        self._post(f"{broker}/topics", {"name": topic, "partition": partition})
                self._topics[topic] = Topic(self._settings.partitions)
            producer_id = len(self._producers)
            self._producers[producer_id] = topic
        return {"status": "success", "producer_id": producer_id}

    def produce(
        self,
        topic: Annotated[str, Body()],
        producer_id: Annotated[int, Body()],
        message: Annotated[str, Body()],
    ) -> dict[str, str]:
        """POST /producer/produce: to the partitions in turn."""
        if self._producers.get(producer_id) != topic:
            raise HTTPException(404, "producer not found")
        partition = next(self._topics[topic].turns)
        # Each partition has a broker of its own choice, so that all have as much to do.
        broker = self._settings.brokers[partition % len(self._settings.brokers)]
        self._post(
            f"{broker}/producer/produce",
            {"partition": partition, "producer_id": producer_id, "message": message},
        )
        return {"status": "success"}

    def _post(self, url: str, body: dict[str, str | int]) -> None:
        response = self._session().post(url, json=body)
        if response.status_code != 200:
            raise HTTPException(500, response.text)

    def _session(self) -> requests.Session:
        # One for each thread: a session may not be shared, and a new one would connect anew.
        session: requests.Session | None = getattr(self._sessions, "session", None)
        if session is None:
            session = self._sessions.session = requests.Session()
            session.mount("http://", HTTPAdapter(pool_connections=len(self._settings.brokers)))
            session.trust_env = False  # looking for proxies would cost a third of a request
        return session


def main() -> None:
    """Serve until standard input ends."""
    settings = settings_from_argument(ManagerSettings)
    manager = Manager(settings)
    application = new_application()
    application.add_api_route("/producer/register", manager.register_producer, methods=["POST"])
    application.add_api_route("/producer/produce", manager.produce, methods=["POST"])
    serve(application, settings.port)


if __name__ == "__main__":
    main()
