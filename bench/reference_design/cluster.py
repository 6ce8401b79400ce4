"""The whole of the reference design on loopback: a manager and three brokers, in a `with` statement."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from bench.commands import Settings
from bench.processes import ProcessFailed, free_ports, uninterrupted
from bench.reference_design.broker import BrokerSettings
from bench.reference_design.manager import ManagerSettings
from bench.serving import Server
from talweg.testing.asking import Asker

BROKERS: Final = 3
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class ReferenceCluster:
    """Started on nothing, and nothing is left of it but its files."""

    def __init__(
        self, directory: Path, *, partitions: int, raft: Settings, write_ahead_log: bool = False
    ) -> None:
        ports = free_ports(1 + BROKERS + BROKERS * partitions)
        self.port = ports.pop()  # the manager's
        self._broker_ports = [ports.pop() for _ in range(BROKERS)]
        raft_ports = [[ports.pop() for _ in range(BROKERS)] for _ in range(partitions)]
        self._directory = directory
        self._brokers = [
            BrokerSettings(
                number, port, str(directory / f"broker-{number}"), raft_ports, raft, write_ahead_log
            )
            for number, port in enumerate(self._broker_ports)
        ]
        endpoints = [f"http://127.0.0.1:{port}" for port in self._broker_ports]
        self._manager = ManagerSettings(self.port, endpoints, partitions)
        self._running = ExitStack()
        self.pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            servers = [
                self._start(
                    f"broker {settings.number}", "bench.reference_design.broker", settings, settings.port
                )
                for settings in self._brokers
            ]
            servers.append(self._start("manager", "bench.reference_design.manager", self._manager, self.port))
            for server in servers:
                server.wait_until_it_listens()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def register_producers(self, topic: str, count: int) -> list[int]:
        """Their numbers, once every partition of their topic has a leader that all brokers know."""
        with Asker(f"http://127.0.0.1:{self.port}") as manager:
            numbers = [
                int(manager.post("/producer/register", topic=topic)["producer_id"]) for _ in range(count)
            ]
        deadline = time.monotonic() + _READY_SECONDS
        while not all(face["ready"] for face in self._faces()):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"the reference design has no leader after {_READY_SECONDS:.0f} s")
            time.sleep(_LOOK_SECONDS)
        return numbers

    def messages(self) -> list[int]:
        """How many messages each broker has in its database."""
        return [int(face["messages"]) for face in self._faces()]

    def _faces(self) -> Iterator[dict[str, Any]]:
        for port in self._broker_ports:
            with Asker(f"http://127.0.0.1:{port}") as broker:
                yield broker.get("/")

    def _start(self, name: str, module: str, settings: msgspec.Struct, port: int) -> Server:
        argument = msgspec.json.encode(settings).decode()
        log_path = self._directory / f"{name.replace(' ', '-')}.log"
        with uninterrupted():
            server = self._running.enter_context(Server(module, [argument], port, log_path))
        self.pids[name] = server.pid
        return server
