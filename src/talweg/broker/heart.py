"""Tells the primary, every second, that this broker lives and what it leads; does what the answer says."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from talweg.broker.directory import Carried, DataDirectory
from talweg.broker.hosting import Hosting
from talweg.config import BrokerSettings
from talweg.errors import BrokerNotFound, TalwegError
from talweg.http import HttpClient
from talweg.protocol.control import AddBroker, BrokerAdded, Heartbeat, HeartbeatAnswer, Peer

_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)  # after a manager could not be asked; the last one repeats
_COMPLAIN_SECONDS = 60.0  # between two complaints that managers know this broker by another number
# For a primary to answer: one that stands still must not keep us from the one that took its place.
_ANSWER_SECONDS_MIN, _ANSWER_HEARTBEATS = 1.0, 2

_log = logging.getLogger("talweg.broker")


class Heart:
    """Beats from `run` on. `begin_hosting` is called once, when the broker's number is known."""

    def __init__(
        self,
        settings: BrokerSettings,
        directory: DataDirectory,
        begin_hosting: Callable[[int], Awaitable[Hosting]],
        *,
        endpoint: str,
        peer_endpoint: str,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._begin_hosting = begin_hosting
        self._endpoint = endpoint
        self._peer_endpoint = peer_endpoint
        self._client = HttpClient(connections_max=2)
        self._hosting: Hosting | None = None
        self._nudged = asyncio.Event()
        self._manager = 0  # which of the settings' managers answers
        self._connected: dict[int, str] = {}  # peers, and where they are
        self._epoch = directory.carried.epoch  # the highest that was seen
        self._carrying: asyncio.Task[None] | None = None  # carries an answer out
        self._complain_at = 0.0  # by the monotonic clock: not before, if we are called by another number

    def nudge(self) -> None:
        """Beat now: the primary has something new."""
        self._nudged.set()

    async def run(self) -> None:
        """Register, then beat for ever. What cannot be done now is tried again."""
        carried = self._directory.carried
        if carried.broker_id is not None:
            await self._begin(carried.broker_id)
        registered = False
        failures = 0
        while True:
            self._nudged.clear()
            try:
                if not registered:
                    await self._register()
                    registered = True
                await self._beat()
                failures = 0
                pause = self._settings.heartbeat_seconds if self._carrying is None else 0.0
            except BrokerNotFound:
                registered = False
                # At once, unless that has just been of no use.
                pause = self._pause(failures) if failures else 0.0
                failures += 1
            except (TalwegError, OSError) as error:  # the latter: what was said could not be kept (disk full)
                if failures == 0:
                    _log.warning("no heartbeat: %s", error)
                pause = self._pause(failures)
                failures += 1
                self._manager += 1
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it forgets that it was cancelled if the nudge comes in the
                # same moment, and who stops this broker would wait for ever.
                async with asyncio.timeout(pause):
                    await self._nudged.wait()

    def _pause(self, failures: int) -> float:
        return min(_RETRY_SECONDS[min(failures, 3)], self._settings.heartbeat_seconds)

    async def close(self) -> None:
        """Hang up."""
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.gather(self._carrying, return_exceptions=True)
        await self._client.close()

    async def _register(self) -> None:
        added = await self._client.call(
            self._primary(),
            "POST",
            "/admin/broker/add",
            BrokerAdded,
            AddBroker(
                endpoint=self._endpoint,
                incarnation=self._directory.identity.incarnation,
                peer_endpoint=self._peer_endpoint,
            ),
            seconds_max=self._settings.request_seconds_max,
        )
        known = self._directory.carried.broker_id
        if known is not None and known != added.broker_id:
            self._complain(added.broker_id, known)
        elif known is None:
            await asyncio.to_thread(self._remember, Carried(broker_id=added.broker_id))
            await self._begin(added.broker_id)

    def _complain(self, called: int, known: int) -> None:
        # Groups know their members by number. Under another one this broker would be a stranger in its
        # own groups, so it keeps its number, and says so now and then until somebody looks.
        now = time.monotonic()
        if now < self._complain_at:
            return
        self._complain_at = now + _COMPLAIN_SECONDS
        _log.error(
            "the managers call this broker %d, but it carries partitions as broker %d: have they lost "
            "their metadata?",
            called,
            known,
        )

    async def _begin(self, number: int) -> None:
        _log.info("this is broker %d", number)
        self._hosting = await self._begin_hosting(number)
        self._connect(self._directory.carried.peers)

    async def _beat(self) -> None:
        hosting, carried = self._hosting, self._directory.carried
        assert hosting is not None and carried.broker_id is not None
        answer = await self._client.call(
            self._primary(),
            "POST",
            "/broker/heartbeat",
            HeartbeatAnswer,
            Heartbeat(
                broker_id=carried.broker_id,
                incarnation=self._directory.identity.incarnation,
                epoch=carried.epoch,
                version=carried.version,
                carries=tuple(hosting.partitions),
                leads=hosting.reports(),
            ),
            seconds_max=max(_ANSWER_SECONDS_MIN, _ANSWER_HEARTBEATS * self._settings.heartbeat_seconds),
        )
        if answer.epoch < self._epoch:
            _log.warning("a primary of the past (epoch %d) has answered; not heeded", answer.epoch)
            return
        self._epoch = answer.epoch
        self._connect(answer.peers)
        # To open a thousand replicas takes longer than a broker may be silent, so hearts beat on meanwhile.
        # What those answers say is said again, until we name the version that they are of.
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._carry_out(hosting, carried, answer))
        await asyncio.wait({self._carrying}, timeout=self._settings.heartbeat_seconds)
        if self._carrying.done():
            carrying, self._carrying = self._carrying, None
            carrying.result()  # raises what went wrong

    async def _carry_out(self, hosting: Hosting, carried: Carried, answer: HeartbeatAnswer) -> None:
        await hosting.carry_out(answer.assignments, answer.removed)
        version = carried.version if answer.assignments is None else answer.version
        remembered = Carried(
            broker_id=carried.broker_id,
            epoch=answer.epoch,
            # What could not be opened is asked for again: without a version everything is told.
            version=version if hosting.is_complete else 0,
            peers=answer.peers,
            # Only what was opened: in the next life it is missed if it is gone.
            assignments=hosting.carried(),
        )
        await asyncio.to_thread(self._remember, remembered)

    def _remember(self, carried: Carried) -> None:
        port = urlsplit(f"//{self._peer_endpoint}").port or 0
        self._directory.save(msgspec.structs.replace(carried, peer_port=port))

    def _connect(self, peers: tuple[Peer, ...]) -> None:
        assert self._hosting is not None
        for peer in peers:
            if peer.id == self._hosting.broker or self._connected.get(peer.id) == peer.peer_endpoint:
                continue
            where = urlsplit(f"//{peer.peer_endpoint}")
            if where.hostname and where.port:
                self._hosting.host.connect(peer.id, where.hostname, where.port)
                self._connected[peer.id] = peer.peer_endpoint

    def _primary(self) -> str:
        managers = self._settings.managers
        return managers[self._manager % len(managers)]
