"""A broker as a whole: its directory, its replicas, its server and its heart, put together."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Coroutine
from pathlib import Path

from talweg.broker.calls_bundles import BundleCalls
from talweg.broker.calls_positions import PositionCalls
from talweg.broker.calls_records import RecordCalls
from talweg.broker.calls_status import StatusCalls
from talweg.broker.calls_transactions import TransactionCalls
from talweg.broker.directory import DataDirectory
from talweg.broker.heart import Heart
from talweg.broker.hosting import Hosting
from talweg.broker.leaders import Leaders
from talweg.broker.metrics import BrokerLook
from talweg.broker.sweeping import Sweeping
from talweg.config import BrokerSettings, blaming
from talweg.errors import InvalidSetting, Unavailable
from talweg.http import Application, Limits, MetricsCall, Server, Traffic
from talweg.raft import Settings
from talweg.replication import HostSettings, ReplicaHost
from talweg.storage import LogStores, open_stores
from talweg.version import __version__

_log = logging.getLogger("talweg.broker")


class Broker:
    """Serves from `start` to `stop`. Lives in one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.endpoint = ""  # its URL, once started
        self.peer_endpoint = ""
        self.failed: asyncio.Future[None]  # holds an exception if it cannot go on
        self.directory: DataDirectory
        self._stores: LogStores
        self._hosting: Hosting | None = None
        self._host: ReplicaHost | None = None
        self.leaders: Leaders  # of partitions elsewhere
        self._heart: Heart
        self._server: Server
        self._peer_socket: socket.socket
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def broker_id(self) -> int | None:
        """Its number; None until it is registered."""
        return self._hosting.broker if self._hosting is not None else None

    @property
    def hosting(self) -> Hosting:
        """What it carries; raises Unavailable before it is registered."""
        if self._hosting is None:
            raise Unavailable("this broker is not registered with a manager yet")
        return self._hosting

    async def start(self) -> None:
        """Listen and serve what is known; registration goes on beside it."""
        settings = self.settings
        self.failed = asyncio.get_running_loop().create_future()
        _allow_many_files()
        self.leaders = Leaders(settings.managers, request_seconds_max=settings.request_seconds_max)
        self.directory = DataDirectory(Path(settings.data_directory()))
        try:
            self._stores = await asyncio.to_thread(self._open_stores)
            self._peer_socket = self._bind_peer_socket()
            self._server = Server(self._application(), settings.host, settings.port)
            with blaming("--host, --port"):
                port = await self._server.start()
        except BaseException:
            self.directory.close()
            raise
        self.endpoint = settings.endpoint(port)
        self.peer_endpoint = settings.peer_endpoint(self._peer_socket.getsockname()[1])
        self._heart = Heart(
            settings,
            self.directory,
            self._begin_hosting,
            endpoint=self.endpoint,
            peer_endpoint=self.peer_endpoint,
        )
        self._keep(self._heart.run())

    async def stop(self) -> None:
        """Hand leadership over, finish what is under way, make everything durable."""
        if self._host is not None:
            await self._host.hand_over_leadership()
        if self._hosting is not None:
            self._hosting.let_go()
        await self._server.stop(self.settings.stop_seconds_max)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._heart.close()
        await self.leaders.close()
        if self._host is not None:
            await self._host.close()
        else:
            self._peer_socket.close()
            await asyncio.to_thread(self._stores.close)
        self.directory.close()

    def nudge(self) -> None:
        """Send a heartbeat now."""
        self._heart.nudge()

    def endpoint_of(self, broker: int) -> str | None:
        """Where another broker is reached, as far as it is known."""
        return next((peer.endpoint for peer in self.directory.carried.peers if peer.id == broker), None)

    def _open_stores(self) -> LogStores:
        settings = self.settings
        url, durable = settings.storage_url(), settings.durability == "disk"
        if not durable:
            if settings.storage is not None and url.partition("://")[0] not in (url, "segments"):
                raise InvalidSetting(
                    "--durability memory is for segment files; a database has settings of its own for that"
                )
            _log.warning("messages are acknowledged before they are on disk (--durability memory)")
        with blaming("--data" if settings.storage is None else "--storage"):
            return open_stores(url, durable=durable)

    def _bind_peer_socket(self) -> socket.socket:
        # Bound before the host exists: registration tells others where to find us, and only that gives the
        # number which the host needs.
        wanted = self.settings.peer_port or self.directory.carried.peer_port
        try:
            return _bound(self.settings.host, wanted)
        except OSError as error:
            if self.settings.peer_port:
                raise InvalidSetting(f"--peer-port {wanted}: cannot listen there: {error}") from error
        return _bound(self.settings.host, 0)  # another has taken ours meanwhile: the primary tells our peers

    async def _begin_hosting(self, number: int) -> Hosting:
        settings = self.settings
        host = ReplicaHost(
            number,
            self._stores,
            settings=HostSettings(
                tick_seconds=settings.tick_seconds,
                raft=Settings(election_ticks=settings.election_ticks, heartbeat_ticks=settings.leader_ticks),
                snapshot_interval_bytes=settings.snapshot_bytes,
                writer_threads=settings.writer_threads,
            ),
        )
        await host.start(bound=self._peer_socket)
        self._host = host
        hosting = Hosting(host, self.directory.carried.assignments, self.nudge)
        await hosting.open_known()
        self._hosting = hosting
        self._keep(hosting.tend())
        self._keep(hosting.retain(settings.retention_check_seconds))
        sweeping = Sweeping(
            hosting,
            self.leaders,
            expiry_seconds=settings.stage_expiry_seconds,
            request_seconds_max=settings.request_seconds_max,
        )
        self._keep(sweeping.run())
        return hosting

    def _keep(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
            if (error := task.exception()) is not None and not self.failed.done():
                _log.critical("the broker cannot go on", exc_info=error)
                self.failed.set_exception(error)

    def _application(self) -> Application:
        traffic = Traffic()
        metrics = MetricsCall("broker", __version__, traffic, lambda: BrokerLook(self._hosting).samples)
        calls = (
            *RecordCalls(self).calls(),
            *PositionCalls(self).calls(),
            *TransactionCalls(self).calls(),
            *BundleCalls(self).calls(),
            *StatusCalls(self).calls(),
            *metrics.calls(),
        )
        return Application(
            calls,
            title="Talweg broker",
            version=__version__,
            limits=Limits(
                requests_max=self.settings.requests_max, bodies_bytes_max=self.settings.bodies_bytes_max
            ),
            leader_endpoint=self.endpoint_of,
            traffic=traffic,
        )


def _allow_many_files() -> None:
    # Systems give a process few until it asks: two files for each partition soon are many.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
