"""A manager as a whole: the copy, the lease, the way to the leaders, and the calls, put together."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from talweg.config import ManagerSettings, blaming
from talweg.errors import MetadataUnavailable, TalwegError, Unavailable
from talweg.http import Application, HttpClient, Limits, MetricsCall, Server, Traffic
from talweg.http.answering import failure_response
from talweg.manager.calls_admin import AdminCalls
from talweg.manager.calls_cluster import ClusterCalls
from talweg.manager.calls_consumer import ConsumerCalls
from talweg.manager.calls_producer import ProducerCalls
from talweg.manager.calls_topics import TopicCalls
from talweg.manager.clients import Heartbeats
from talweg.manager.consuming import Consuming
from talweg.manager.follower import Follower
from talweg.manager.forwarding import Forwarding
from talweg.manager.health import Health
from talweg.manager.leaders import Leaders
from talweg.manager.lease import LeaseKeeper
from talweg.manager.metrics import manager_samples
from talweg.manager.nudging import Nudging
from talweg.manager.parts import Parts
from talweg.manager.producing import Producing
from talweg.manager.restoring import Restoring
from talweg.manager.routing import Router
from talweg.manager.store import StoreCalls
from talweg.manager.tails import Tails
from talweg.manager.topics import Topics
from talweg.manager.watch import Watch
from talweg.manager.writer import Writer
from talweg.metadata import MetadataStore, open_metadata
from talweg.protocol.control import Metadata
from talweg.version import __version__

_LEADERS_SECONDS: Final = 1.0  # between two looks at what the primary knows of leaders
_WAITING_CONNECTIONS_MAX: Final = 64  # to one broker, for requests that wait there

_log = logging.getLogger("talweg.manager")


class Manager:
    """Serves from `start` to `stop`. Lives in one event loop."""

    def __init__(
        self, settings: ManagerSettings, *, open_store: Callable[[str], MetadataStore] = open_metadata
    ) -> None:
        self.settings = settings
        self._open_store = open_store
        self.endpoint = ""  # its URL, once started
        self.failed: asyncio.Future[None]  # holds an exception if it cannot go on
        self._server: Server | None = None
        self._parts: Parts | None = None
        self._tails: Tails | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = contextlib.AsyncExitStack()

    @property
    def is_primary(self) -> bool:
        """Whether it is the primary now."""
        return self._parts is not None and self._parts.lease.holds

    async def start(self) -> None:
        """Listen and serve. Raises InvalidSetting and NewerFormat; a store that cannot be reached is tried
        again, for as long as it takes."""
        settings = self.settings
        self.failed = asyncio.get_running_loop().create_future()
        gate = _Gate()
        server = Server(gate, settings.host, settings.port)
        with blaming("--host, --port"):
            port = await server.start()
        self.endpoint = settings.endpoint(port)
        self._server = server
        try:
            await self._begin(gate)
        except BaseException:
            await self.stop()
            raise

    async def _begin(self, gate: "_Gate") -> None:
        settings = self.settings
        store = StoreCalls(
            settings.metadata, seconds_max=settings.request_seconds_max, open_store=self._open_store
        )
        self._stopping.push_async_callback(store.close)
        client = HttpClient(answer_bytes_max=max(64 << 20, settings.body_bytes_max))
        self._stopping.push_async_callback(client.close)
        waiting_client = HttpClient(connections_max=_WAITING_CONNECTIONS_MAX)
        self._stopping.push_async_callback(waiting_client.close)
        follower = Follower(store, settings.follow_seconds)
        with contextlib.suppress(MetadataUnavailable), blaming("--metadata"):
            await follower.follow()
        parts = self._put_together(store, client, waiting_client, follower)
        self._parts = parts
        gate.application = self._application(parts)
        if not settings.read_only:
            pause_seconds = await parts.lease.step()
            self._keep(self._keep_lease(parts.lease, pause_seconds))
        self._keep(follower.run())
        self._keep(parts.watch.run())
        self._keep(parts.heartbeats.run())
        self._keep(self._ask_for_leaders(parts))

    def _put_together(
        self, store: StoreCalls, client: HttpClient, waiting_client: HttpClient, follower: Follower
    ) -> Parts:
        settings = self.settings
        leaders = Leaders()
        router = Router(
            follower,
            leaders,
            client,
            bundle_bytes_max=settings.body_bytes_max // 2,
            waiting_bytes_max=settings.bodies_bytes_max,
        )
        self._stopping.callback(router.close)
        tails = Tails(follower, leaders, waiting_client)
        self._stopping.callback(tails.close)
        self._tails = tails
        producing = Producing(
            follower,
            router,
            message_bytes_max=settings.message_bytes_max,
            request_seconds_max=settings.request_seconds_max,
        )

        async def begin() -> None:
            await follower.follow()  # decide nothing from what is not known
            producing.forget_turns()
            await watch.begin()

        lease = LeaseKeeper(
            store,
            holder=self.endpoint,
            endpoint=self.endpoint,
            lease_seconds=settings.lease_seconds,
            begin=begin,
        )
        writer = Writer(store, lease, follower)
        nudging = Nudging(follower, client)
        self._stopping.callback(nudging.close)
        heartbeats = Heartbeats(store, lease, writer)
        restoring = Restoring(follower, writer, client)
        watch = Watch(
            follower,
            leaders,
            lease,
            writer,
            heartbeats=heartbeats,
            nudging=nudging,
            restoring=restoring,
            client=client,
            health=Health(heartbeat_seconds=settings.heartbeat_seconds, missed_max=settings.missed_max),
            health_seconds=settings.health_seconds,
            replace_seconds=settings.replace_seconds,
            partitions_max=settings.partitions_max,
        )
        return Parts(
            settings=settings,
            endpoint=self.endpoint,
            client=client,
            follower=follower,
            leaders=leaders,
            lease=lease,
            writer=writer,
            router=router,
            topics=Topics(follower, writer, router, nudging, settings, restoring=restoring),
            producing=producing,
            consuming=Consuming(
                follower,
                router,
                tails,
                request_seconds_max=settings.request_seconds_max,
                wait_seconds_max=settings.wait_seconds_max,
            ),
            heartbeats=heartbeats,
            nudging=nudging,
            watch=watch,
            forwarding=Forwarding(
                follower,
                lease,
                client,
                endpoint=self.endpoint,
                request_seconds_max=settings.request_seconds_max,
            ),
        )

    async def stop(self) -> None:
        """Finish what is under way, and let another be the primary."""
        if self._tails is not None:
            self._tails.close()  # those who wait for messages need not wait for us to stop
        if self._server is not None:
            await self._server.stop(self.settings.stop_seconds_max)
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._parts is not None:
            await self._parts.lease.release()
        await self._stopping.aclose()

    async def _keep_lease(self, lease: LeaseKeeper, pause_seconds: float) -> None:
        await asyncio.sleep(pause_seconds)
        await lease.run()

    async def _ask_for_leaders(self, parts: Parts) -> None:
        """Brokers tell the primary what they lead; others ask it."""
        while True:
            await asyncio.sleep(_LEADERS_SECONDS)
            primary = parts.forwarding.primary()
            if parts.lease.holds or primary is None:
                continue
            with contextlib.suppress(TalwegError):  # hints will do
                known = await parts.client.call(
                    primary,
                    "GET",
                    "/v1/metadata?internal=true",
                    Metadata,
                    seconds_max=self.settings.request_seconds_max,
                )
                for topic in known.topics:
                    for each in topic.partitions:
                        group = topic.incarnation + each.partition
                        if each.leader is not None and each.term and group in parts.follower.groups:
                            parts.leaders.report(group, each.leader, each.term)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            _log.critical("the manager cannot go on", exc_info=error)
            self.failed.set_exception(error)

    def _application(self, parts: Parts) -> Application:
        settings = self.settings
        traffic = Traffic()
        metrics = MetricsCall("manager", __version__, traffic, lambda: manager_samples(parts))
        return Application(
            (
                *TopicCalls(parts).calls(),
                *ProducerCalls(parts).calls(),
                *ConsumerCalls(parts).calls(),
                *AdminCalls(parts).calls(),
                *ClusterCalls(parts).calls(),
                *metrics.calls(),
            ),
            title="Talweg manager",
            version=__version__,
            limits=Limits(
                json_bytes_max=min(1 << 20, settings.body_bytes_max),
                requests_max=settings.requests_max,
                bodies_bytes_max=settings.bodies_bytes_max,
            ),
            leader_endpoint=parts.follower.endpoint,
            traffic=traffic,
        )


class _Gate:
    """What is served: the application, as soon as there is one. The port must be known to make it."""

    def __init__(self) -> None:
        self.application: Application | None = None

    def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Awaitable[None]:
        if self.application is None:
            return self._not_yet(send)
        return self.application(scope, receive, send)

    async def _not_yet(self, send: Any) -> None:
        response = failure_response(Unavailable("this manager is starting"))
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})
