"""Many replicas in one process: one clock, one network, a few writer threads for all of them.

Whatever happens to a group in one turn of the event loop is carried out at the end of that turn, so
proposals that arrive together travel together, and all heartbeats of a moment share a packet.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from talweg.errors import DamagedLog, GroupNotFound, NoQuorum, NotLeader, TalwegError
from talweg.raft import Configuration, FetchEntries, FetchSnapshot, Message, Role, Settings
from talweg.replication import process, tails, wire
from talweg.replication.group import Group
from talweg.replication.job import Job
from talweg.replication.link import Links
from talweg.replication.replica import Replica
from talweg.replication.writer import WorkDone, Writer
from talweg.storage import LogStore, LogStores

# Of work for the groups in one turn. Whoever is left is next: heartbeats, and their answers, come in between.
_TURN_SECONDS_MAX = 0.05

_log = logging.getLogger("talweg.replication")


class HostSettings(msgspec.Struct, frozen=True):
    """The driver's own settings; `raft` counts in ticks of `tick_seconds`."""

    tick_seconds: float = 0.1
    raft: Settings = Settings()
    snapshot_interval_bytes: int = 64 << 20
    # What all groups together keep at hand, as far as that is only for followers that lag.
    tails_bytes_max: int = 256 << 20
    writer_threads: int = 4
    disk_retry_seconds: float = 0.5  # after a disk was full or failed
    # How long a busy thread may keep the interpreter from the others. With Python's own 5 ms the writers of
    # a busy leader starve: its disk falls behind until appends are refused.
    switch_seconds: float = 0.001


class ReplicaHost:
    """All replicas of one broker. Lives in one event loop."""

    def __init__(
        self,
        broker: int,
        stores: LogStores,
        *,
        settings: HostSettings | None = None,
        random: Random | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings or HostSettings()
        self._stores = stores
        self._random = random or Random()  # noqa: S311 - it spreads elections, it keeps no secret
        self._groups: dict[int, Group] = {}  # by incarnation
        # Those that cannot go on, or not yet: see _broke and _begin_again.
        self._stopped: dict[int, Group] = {}
        self._undeleted: dict[int, Group] = {}  # closed, and its log is on its way out
        self._beginning_again: set[asyncio.Task[None]] = set()
        self._links = Links(broker, self._packet_arrived, self._link_changed)
        self._writer = Writer(stores, self.settings.writer_threads)
        self._touched: dict[int, Group] = {}  # to be pumped at the end of this turn, in order
        self._outgoing: dict[int, list[tuple[int, Message]]] = {}  # by peer: leaves with that
        self._tails_changed = False  # perhaps, since they were looked at: grown, or more of them durable
        self._finished: deque[tuple[Group, Job, TalwegError | None]] = deque()  # filled by writer threads
        self._finished_is_known = False  # to the event loop, which will look
        self._ticking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Life

    async def start(
        self, address: str = "127.0.0.1", port: int = 0, *, bound: socket.socket | None = None
    ) -> int:
        """Listen for peers, on a socket that is bound already if one is given, and begin to tick; returns
        the port."""
        self._loop = asyncio.get_running_loop()
        process.prepare(self.settings.switch_seconds)
        port = await self._links.listen(address, port, bound)
        self._ticking = self._loop.create_task(self._keep_ticking())
        return port

    def connect(self, peer: int, address: str, port: int) -> None:
        """Say where a peer is. May be said again when it moves."""
        self._links.connect(peer, address, port)

    @property
    def connected(self) -> frozenset[int]:
        """The peers that can be reached now."""
        return self._links.connected

    @property
    def groups(self) -> list[Group]:
        """Every group that is open here."""
        return list(self._groups.values())

    def group(self, incarnation: int) -> Group:
        """One of them; raises GroupNotFound."""
        try:
            return self._groups[incarnation]
        except KeyError:
            raise GroupNotFound(f"broker {self.broker} carries no group {incarnation}") from None

    async def open_group(
        self, name: str, incarnation: int, configuration: Configuration, *, join: bool = False
    ) -> Group:
        """Carry a replica of a group. `join` says that the group exists elsewhere already."""
        assert incarnation not in self._groups, f"group {incarnation} is open"
        store = await asyncio.to_thread(self._stores.open, name, incarnation)
        replica = await self._open_replica(store, configuration, join=join)
        group = Group(name, incarnation, configuration, replica, self._touch)
        self._watch(group)
        self._groups[incarnation] = group
        if configuration.members == (self.broker,):
            replica.raft.campaign()  # nobody to wait for
            self._touch(group)
        return group

    async def _open_replica(self, store: LogStore, configuration: Configuration, *, join: bool) -> Replica:
        election_ticks = self.settings.raft.election_ticks
        return await asyncio.to_thread(
            Replica,
            self.broker,
            store,
            configuration,
            settings=self.settings.raft,
            election_timeout=lambda: self._random.randint(election_ticks, 2 * election_ticks - 1),
            snapshot_interval_bytes=self.settings.snapshot_interval_bytes,
            join=join,
            life=self._random.getrandbits(63),
        )

    async def close_group(self, incarnation: int, *, delete: bool = False) -> None:
        """Stop carrying a group; with `delete` its log goes too. If that fails, it may be asked for again."""
        group = self._groups.pop(incarnation, None) or self._stopped.pop(incarnation, None)
        group = group or self._undeleted.get(incarnation)
        if group is None:
            return
        self._touched.pop(incarnation, None)
        group.stop(GroupNotFound(f"group {group.name} is no longer on broker {self.broker}"))
        await group.wait_until_idle()
        if delete:  # what cannot be made durable any more need not be
            self._undeleted[incarnation] = group
            await asyncio.to_thread(self._stores.delete, group.name)
            del self._undeleted[incarnation]
        else:
            await asyncio.to_thread(group.replica.store.close)

    async def hand_over_leadership(self, timeout_seconds: float = 2.0) -> None:
        """Give every group that this broker leads to another voter, and see it lead. What does not work in
        time stays."""
        handed = [group for group in self._groups.values() if group.leads and len(group.voters) > 1]
        for group in handed:
            group.hand_over()
        assert self._loop is not None
        deadline = self._loop.time() + timeout_seconds
        while any(group.leader in (None, self.broker) and group.stopped is None for group in handed):
            if self._loop.time() > deadline:
                _log.warning("some groups found no new leader within %.1f s", timeout_seconds)
                return
            await asyncio.sleep(self.settings.tick_seconds / 10)

    async def close(self) -> None:
        """Stop everything and make it durable."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._links.close()
        for task in self._beginning_again:
            task.cancel()
        await asyncio.gather(*self._beginning_again, return_exceptions=True)
        open_here = [*self._groups, *self._stopped]
        closed = await asyncio.gather(*map(self.close_group, open_here), return_exceptions=True)
        # Whatever went wrong with one: the others, the threads and the directory are let go of all the same.
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._stores.close)
        for failure in closed:
            if isinstance(failure, BaseException):
                raise failure

    # What happens

    async def _keep_ticking(self) -> None:
        assert self._loop is not None
        due = self._loop.time()
        while True:
            # Never more than one tick at once: a process that was stopped for a minute must not
            # believe, before it has read its mail, that a minute has passed in silence.
            due = max(due + self.settings.tick_seconds, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            for group in list(self._groups.values()):
                try:
                    wants_work = group.replica.raft.tick()
                except Exception:  # noqa: BLE001 - see _broke
                    self._broke(group)
                    continue
                if wants_work:
                    self._after_event(group)
                    if group.replica.raft.role is Role.FOLLOWER:
                        self._touch(group)  # it led until now, perhaps: whoever waits for a majority is told
            if self._tails_changed:  # a thousand groups at rest need not be looked through ten times a second
                self._tails_changed = False
                rafts = [group.replica.raft for group in self._groups.values()]
                tails.let_go(rafts, self.settings.tails_bytes_max)

    def _packet_arrived(self, peer: int, packet: memoryview) -> None:
        if (heartbeats := wire.heartbeats_in(packet)) is not None:
            self._heartbeats_arrived(peer, heartbeats)
        elif (replies := wire.replies_in(packet)) is not None:
            self._replies_arrived(peer, replies)
        else:
            self._step(*wire.read_message(packet, peer, self.broker))

    def _heartbeats_arrived(self, peer: int, rows: Iterable[wire.HeartbeatRow]) -> None:
        # Of a thousand groups nearly all say that everything is as it was. Those are answered here, at once
        # and together.
        groups = self._groups
        answers: list[wire.ReplyRow] = []
        for row in rows:
            incarnation, term, commit, read_round = row
            if (group := groups.get(incarnation)) is None:
                continue
            raft = group.replica.raft
            if raft.hears_leader(peer, term, commit):
                answers.append((incarnation, term, read_round, raft.life, 0))
            else:
                self._step(*wire.heartbeat_of(row, peer, self.broker))
        if answers:
            self._links.send(peer, [wire.replies(answers)])

    def _replies_arrived(self, peer: int, rows: Iterable[wire.ReplyRow]) -> None:
        groups = self._groups
        for row in rows:
            incarnation, term, read_round, _, flags = row
            if (group := groups.get(incarnation)) is None:
                continue
            if flags or not group.replica.raft.hears_follower(peer, term, read_round):
                self._step(*wire.reply_of(row, peer, self.broker))

    def _step(self, incarnation: int, message: Message) -> None:
        group = self._groups.get(incarnation)
        if group is None:
            return  # deleted, or not open yet; the core bears the loss
        try:
            group.replica.raft.step(message)
        except Exception:  # noqa: BLE001 - see _broke
            self._broke(group)
            return
        self._after_event(group)

    def _link_changed(self, peer: int, connected: bool) -> None:
        if connected:
            return
        for group in list(self._groups.values()):
            self._tell(group, group.replica.raft.lost_contact, peer)

    def _tell(self, group: Group, action: Callable[..., None], *arguments: object) -> None:
        if self._guarded(group, action, *arguments):
            self._touch(group)

    def _guarded(self, group: Group, action: Callable[..., None], *arguments: object) -> bool:
        try:
            action(*arguments)
        except DamagedLog as error:
            self._begin_again(group, error)
            return False
        except Exception:  # noqa: BLE001 - see _broke
            self._broke(group)
            return False
        return True

    def _broke(self, group: Group) -> None:
        # One group that meets a bug of ours must not take the others with it. It stops and says so: the
        # exception is logged with its trace, and whoever waits is told.
        _log.exception("group %s stops on broker %d", group.name, self.broker)
        self._stop(group, NoQuorum(f"group {group.name} has stopped on broker {self.broker}; see its log"))

    def _stop(self, group: Group, error: TalwegError) -> None:
        if self._groups.pop(group.incarnation, None) is not None:
            self._stopped[group.incarnation] = group
        self._touched.pop(group.incarnation, None)
        group.stop(error)

    # Damage

    def _watch(self, group: Group) -> None:
        """Have ourselves told of damage that somebody meets who reads the log, in whatever thread."""
        loop = asyncio.get_running_loop()

        def tell(error: DamagedLog) -> None:
            loop.call_soon_threadsafe(self._begin_again, group, error)

        group.replica.on_damage = tell

    def _begin_again(self, group: Group, error: DamagedLog) -> None:
        # What is on the disk is not what was written. The replica gives up what it cannot trust, leads and
        # votes no more, and fetches from its peers what it has lost.
        if self._groups.get(group.incarnation) is not group:
            return  # it is being done already, or the group is closed
        _log.error("group %s recovers on broker %d: %s", group.name, self.broker, error)
        self._stop(group, NotLeader(f"group {group.name} recovers on broker {self.broker}", None))
        assert self._loop is not None
        task = self._loop.create_task(self._open_again(group))
        self._beginning_again.add(task)
        task.add_done_callback(self._beginning_again.discard)

    async def _open_again(self, group: Group) -> None:
        await group.wait_until_idle()
        while self._stopped.get(group.incarnation) is group:
            try:
                replica = await self._open_replica(group.replica.store, group.founders, join=False)
            except Exception as error:  # noqa: BLE001 - whatever it is: who gives up now never serves again
                _log.error("group %s cannot be opened again yet: %s", group.name, error)
                await asyncio.sleep(self.settings.disk_retry_seconds)
                continue
            if self._stopped.pop(group.incarnation, None) is group:
                group.go_on(replica)
                self._watch(group)
                self._groups[group.incarnation] = group
                self._touch(group)

    # What is to be done

    def _after_event(self, group: Group) -> None:
        # The heartbeats of a thousand idle groups leave from here, without the ceremony of a Ready.
        raft = group.replica.raft
        if messages := raft.take_messages():
            self._send_soon(group, messages)
        if raft.has_ready:
            self._touch(group)

    def _after_job(self, group: Group) -> None:
        # A follower has nothing left to do but to say that it is durable.
        replica = group.replica
        if replica.outbox and group.stopped is None:
            messages, replica.outbox = replica.outbox, []
            self._send_soon(group, messages)
        if replica.wants_pump:
            self._touch(group)

    def _send_soon(self, group: Group, messages: list[Message]) -> None:
        if not self._touched and not self._outgoing:
            self._schedule()
        for message in messages:
            self._outgoing.setdefault(message.target, []).append((group.incarnation, message))

    def _touch(self, group: Group) -> None:
        if group.stopped is not None:
            return
        if not self._touched and not self._outgoing:
            self._schedule()
        self._touched[group.incarnation] = group

    def _schedule(self) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        touched, self._touched = self._touched, {}
        self._tails_changed |= bool(touched)
        outgoing, self._outgoing = self._outgoing, {}
        jobs: list[tuple[Job, WorkDone]] = []
        assert self._loop is not None
        now, end = self._loop.time, self._loop.time() + _TURN_SECONDS_MAX
        behind: list[Group] = []
        for place, (incarnation, group) in enumerate(touched.items()):
            if place and now() > end:
                self._touch(group)
                continue
            replica = group.replica
            if not self._guarded(group, replica.pump):
                continue
            if replica.has_more:
                behind.append(group)
            if replica.outbox:
                messages, replica.outbox = replica.outbox, []
                for message in messages:
                    outgoing.setdefault(message.target, []).append((incarnation, message))
            if (job := replica.take_job()) is not None:
                group.disk_busy = True
                jobs.append((job, self._done(group, job)))
            for fetch in replica.take_fetches():
                self._fetch(group, fetch)
        for group in behind:
            self._touch(group)  # after those who have not had their turn
        if jobs:
            self._writer.submit(jobs)
        shared: wire.Shared = {}
        for peer, pairs in outgoing.items():
            self._links.send(peer, wire.packets(pairs, shared))

    def _done(self, group: Group, job: Job) -> WorkDone:
        def done(error: TalwegError | None) -> None:  # in a writer's thread
            self._finished.append((group, job, error))
            if not self._finished_is_known:
                self._finished_is_known = True
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._jobs_finished)

        return done

    def _jobs_finished(self) -> None:
        assert self._loop is not None
        self._finished_is_known = False  # first: whoever comes from here on says so again
        self._tails_changed = True  # what had to be kept until it was durable may be let go of now
        while self._finished:
            group, job, error = self._finished.popleft()
            if error is None:
                group.disk_went_idle()
                if self._guarded(group, group.replica.job_done, job):
                    self._after_job(group)
            elif group.stopped is not None:
                group.disk_went_idle()
            elif isinstance(error, DamagedLog):
                group.disk_went_idle()
                self._begin_again(group, error)
            else:
                if not group.replica.raft.disk_failed:
                    _log.error("group %s: the disk refuses: %s; trying again", group.name, error)
                self._tell(group, group.replica.job_failed, job, error)
                again = [(job, self._done(group, job))]
                self._loop.call_later(self.settings.disk_retry_seconds, self._writer.submit, again)

    def _fetch(self, group: Group, fetch: FetchEntries | FetchSnapshot) -> None:
        async def read() -> None:
            result = await group.fetch(fetch)
            if group.stopped is None:
                self._tell(group, group.replica.fetched, fetch, result)

        assert self._loop is not None
        group.keep(self._loop.create_task(read()))
