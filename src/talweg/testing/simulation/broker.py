"""One broker of the simulated cluster: a node with a clock, a disk that takes its time, and a life.

It does for one replica what the real host does for many: carries messages out, runs jobs for the disk
and reads for slow followers. Here each of these takes virtual time, and a crash may fall in between.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from talweg.errors import DamagedLog, TalwegError
from talweg.raft import Configuration, FetchEntries, FetchSnapshot, Message, Role, Run
from talweg.replication.job import Job
from talweg.replication.replica import Replica
from talweg.storage import Write
from talweg.testing.disk import PowerCut
from talweg.testing.node import SimulatedNode
from talweg.testing.simulation.describe import describe
from talweg.testing.simulation.disk_trouble import TroubledFiles
from talweg.testing.simulation.durable import DurableLog
from talweg.testing.simulation.history import Violation
from talweg.testing.simulation.rotting import Rot, rot
from talweg.testing.simulation.runs import is_within_a_run
from talweg.testing.simulation.schedule import TICK_US, Action

if TYPE_CHECKING:
    from talweg.testing.simulation.cluster import Cluster

_START_RETRY_TICKS = 5
_LATE_READ_TICKS_MAX = 80


class Broker:
    """`life` grows with each start and each end: what belongs to an earlier life no longer happens."""

    def __init__(self, number: int, cluster: "Cluster", random: Random, node: SimulatedNode) -> None:
        self.number = number
        self.node = node
        self.life = 0
        self.durable = DurableLog()
        self.unsynced: list[Write] = []
        self.lost = False
        self.join = False  # how to start: the group exists already, and the disk may have been lost
        self.paused = False
        self.tick_us = TICK_US  # its clock's idea of a tick
        self.disk_us = 300  # what a write or a sync takes on average
        self.late_reads = 0.05  # share of reads for followers whose result comes late
        self.configurations: list[tuple[int, Configuration]] = []  # in its log when it was last up
        self._rotten: list[Rot] = []
        self.once_in_a_run: Action | None = None  # to be done when a run is applied in part
        self._cluster = cluster
        self._random = random
        self._backlog: list[Action] = []  # what came while it was paused
        self._pump_due = False

    @property
    def replica(self) -> Replica | None:
        """None while it is down."""
        return self.node.replica

    @property
    def up(self) -> bool:
        """Whether its process exists, paused or not."""
        return self.node.up

    @property
    def leads(self) -> bool:
        """Whether it takes itself for the leader."""
        return self.replica is not None and self.replica.raft.role is Role.LEADER

    def rot(self, random: Random) -> bool:
        """Do something to the closed log. False if there is none, or its store could not notice."""
        assert not self.up
        rotten = rot(self.node.files, random)
        if rotten is None:
            return False
        if rotten.value is None:
            self._cluster.counts["logs that lost their end"] += 1
        self._cluster.trace.note(f"b{self.number} rots: {rotten}")
        self.lost = True
        self._rotten.append(rotten)
        return True

    @property
    def rotten(self) -> bool:
        """Whether a byte that was flipped is still there, found or not."""
        files = self.node.files
        for log, position, value in self._rotten:
            content = files.content(log) if files.exists(log) else b""
            if len(content) > position and content[position] == value:
                return True
        return False

    @property
    def disk(self) -> TroubledFiles:
        """Its disk, on which things can go wrong."""
        assert isinstance(self.node.files, TroubledFiles)
        return self.node.files

    # Life

    def start(self) -> None:
        """Open the disk and begin. A disk that refuses is tried again."""
        if not self.up:
            self._cluster.trace.note(f"b{self.number} starts{' (joins)' if self.join else ''}")
            self._cluster.counts["starts"] += 1
            self._open(lambda: self.node.start(join=self.join))

    def reopen(self) -> None:
        """The log turned out to be damaged while it was in use: begin again on what is sound of it."""
        self._cluster.trace.note(f"b{self.number} found its log damaged, and opens it again")
        self._cluster.counts["damage found in use"] += 1
        if not self.lost:
            raise Violation(f"b{self.number} cannot read what it wrote")
        self._end_life()
        self._open(self.node.reopen)

    def _open(self, open_node: Callable[[], Replica]) -> None:
        self.life += 1
        try:
            open_node()
        except (TalwegError, PowerCut) as error:
            self._cluster.counts["starts that failed"] += 1
            self._cluster.trace.note(f"b{self.number} cannot start: {error!r}")
            self.node.crash()
            self._later(_START_RETRY_TICKS * TICK_US, self.start)
            return
        self._cluster.invariants.started(self)
        self._later(self._random.randrange(self.tick_us), self._tick)
        self._carry_out()

    def _end_life(self) -> None:
        self.life += 1
        self.configurations = list(self._running().raft.configuration_history)
        self.paused, self._pump_due = False, False
        self._backlog.clear()

    def crash(self, *, power: bool = True) -> None:
        """Kill -9 and power cut in one; without `power`, the machine goes on and loses nothing."""
        if not self.up:
            return
        self._cluster.trace.note(f"b{self.number} {'crashes' if power else 'is killed'}")
        self._cluster.counts["crashes" if power else "kills"] += 1
        if self.unsynced:
            self._cluster.counts["crashes with a job under way"] += 1
        self._end_life()
        self.node.crash() if power else self.node.kill()
        self._cluster.connection_lost(self.number)

    def power_cut(self) -> None:
        """The power went while the disk was at work; or only the process did."""
        killed = self._cluster.profile.journal_bytes > 0 and not self.disk.has_forgotten
        killed = killed and self._random.random() < 0.4
        self._cluster.counts[f"{'kills' if killed else 'crashes'} during disk work"] += 1
        self.disk.keep_power()
        self.crash(power=not killed)
        self._cluster.schedule.after(self._random.randrange(60 * TICK_US), self.start)

    def wipe(self) -> None:
        """Give it a new, empty disk under its old name."""
        assert not self.up
        self._cluster.trace.note(f"b{self.number} is wiped")
        self.node.wipe()
        self._cluster.invariants.wiped(self.number)
        self.durable, self.unsynced = DurableLog(), []
        self._rotten.clear()
        self.join = True
        self.lost = True

    def pause(self) -> None:
        """SIGSTOP: nothing happens here any more, for now."""
        self._cluster.trace.note(f"b{self.number} is stopped")
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: everything that should have happened meanwhile happens at once."""
        if not self.paused:
            return
        self._cluster.trace.note(f"b{self.number} goes on")
        self.paused = False
        backlog, self._backlog = self._backlog, []
        life = self.life
        for action in backlog:
            if self.life == life:
                action()

    # What happens

    def deliver(self, message: Message) -> None:
        """A message has arrived."""
        if self.up:
            self.do(describe(message), lambda: self._take(message))

    def _take(self, message: Message) -> None:
        self._cluster.invariants.arriving(self, message)
        self._running().step(message)

    def lose_contact(self, peer: int, delay_us: int) -> None:
        """Its connection to a peer breaks a little later."""
        self.later(delay_us, f"loses contact to {peer}", lambda: self._running().raft.lost_contact(peer))

    def do(self, text: str, action: Action) -> None:
        """Something happens to the replica now (or, while it is paused, as soon as it is not)."""
        if self.paused:
            self._backlog.append(lambda: self._step(text, action))
        else:
            self._step(text, action)

    def later(self, delay_us: int, text: str, action: Action) -> None:
        """Something happens to the replica after a while, if it lives so long."""
        self._later(delay_us, lambda: self.do(text, action))

    def _running(self) -> Replica:
        assert self.node.replica is not None
        return self.node.replica

    def _step(self, text: str, action: Action, *, pump_now: bool = False) -> None:
        self._cluster.trace.note(f"b{self.number} {text}")
        try:
            action()
            self._carry_out(pump_now=pump_now)
        except DamagedLog:
            self.reopen()
        except PowerCut:
            self.power_cut()
        else:
            self._cluster.invariants.stepped(self)

    def _later(self, delay_us: int, action: Action) -> None:
        life = self.life

        def due() -> None:
            if self.life == life:
                action()

        self._cluster.schedule.after(delay_us, due)

    def _tick(self) -> None:
        jitter_us = self._random.randrange(self.tick_us // 10)
        self._later(self.tick_us + jitter_us, self._tick)
        if self.paused:
            return  # as the host does: time that was slept through is one tick, not many
        raft = self._running().raft
        raft.tick()
        if raft.has_ready:
            self._step(f"tick in term {raft.term}", _nothing)

    # What is to be done

    def _carry_out(self, *, pump_now: bool = False) -> None:
        # The host pumps at the end of a turn of its loop: other things may happen before that.
        if not pump_now and self._random.random() < self._cluster.profile.pump_later:
            if not self._pump_due:
                self._pump_due = True
                self._later(self._random.randrange(1, 1000), self._pump_later)
        else:
            self._pump()

    def _pump_later(self) -> None:
        self._pump_due = False
        if self.paused:
            self._backlog.append(self._pump_later)
        else:
            self._step("pump", _nothing, pump_now=True)

    def _pump(self) -> None:
        replica = self._running()
        replica.pump()
        if self.once_in_a_run is not None and is_within_a_run(replica.raft.log, replica.raft.applied_index):
            action, self.once_in_a_run = self.once_in_a_run, None
            action()
        messages, replica.outbox = replica.outbox, []
        for message in messages:
            self._cluster.invariants.leaving(self, message)
            self._cluster.network.send(message)
        job = replica.take_job()
        if job is not None:
            self.unsynced = list(job.writes)
            self._disk(lambda: self._write(job))
        for fetch in replica.take_fetches():
            self._cluster.counts[f"fetches of {_wanted(fetch)}"] += 1
            self._disk(self._reading(fetch))
        if replica.has_more:
            self._carry_out()

    def _disk(self, action: Action, delay_us: int | None = None) -> None:
        def act() -> None:
            if self.paused:
                self._backlog.append(action)  # a stopped process has stopped threads
            else:
                action()

        self._later(int(self._random.expovariate(1.0) * self.disk_us) if delay_us is None else delay_us, act)

    def _write(self, job: Job) -> None:
        try:
            job.write()
        except TalwegError as error:
            self._job_failed(job, error)
        except PowerCut:
            self.power_cut()
        else:
            self._disk(lambda: self._finish(job))

    def _finish(self, job: Job) -> None:
        try:
            self._make_durable(job)
        except TalwegError as error:
            self._job_failed(job, error)
            return
        except PowerCut:
            self.power_cut()
            return
        self._cluster.invariants.synced(self, self.unsynced, job.start_index or None)
        if job.snapshot is not None:
            self._cluster.counts["snapshots"] += 1
        self._cluster.counts["runs written"] += sum(
            isinstance(entry, Run) for write in self.unsynced for entry in write.entries
        )
        self.unsynced = []
        if self._random.random() < 0.5:
            self._done(job)
        else:
            # Durable, and the replica does not know it yet: a crash may fall in between.
            self._disk(lambda: self._done(job))

    def _make_durable(self, job: Job) -> None:
        # As the host's writer does: small jobs by the journal, if there are others to share its sync with.
        journals = self._cluster.profile.journal_bytes > 0
        if journals and job.is_small and self._random.random() < 0.8:
            self._cluster.counts["jobs that may go into the journal"] += 1
            (error,) = self.node.stores.sync([job.store])
            if error is not None:
                raise error
        else:
            job.finish()
        if journals and self.node.stores.checkpoint_due and self._random.random() < 0.3:
            self._disk(self._checkpoint)

    def _checkpoint(self) -> None:
        self._cluster.counts["checkpoints"] += 1
        try:
            self.node.stores.checkpoint()
        except TalwegError:
            self._cluster.counts["checkpoints that failed"] += 1
        except PowerCut:
            self.power_cut()

    def _done(self, job: Job) -> None:
        self.do(f"disk: {job.number} is durable", lambda: self._running().job_done(job))

    def _job_failed(self, job: Job, error: TalwegError) -> None:
        self._cluster.counts[f"jobs failed: {error.code}"] += 1
        if isinstance(error, DamagedLog):
            self.reopen()
            return
        self.do(f"disk: {error.code}", lambda: self._running().job_failed(job, error))
        self._disk(lambda: self._write(job), self._random.randrange(TICK_US, 10 * TICK_US))

    def _reading(self, fetch: FetchEntries | FetchSnapshot) -> Action:
        def read() -> None:
            try:
                result = self._running().fetch(fetch)
            except PowerCut:
                self.power_cut()
                return
            if result is None and self._running().store.summary().damage is not None:
                self.reopen()
                return
            # What was read may be old when the core gets it: a thread may have been left waiting.
            late = self._random.random() < self.late_reads
            delay_us = self._random.randrange(_LATE_READ_TICKS_MAX * TICK_US) if late else None
            self._disk(lambda: self._fetched(fetch, result), delay_us)

        return read

    def _fetched(self, fetch: FetchEntries | FetchSnapshot, result: object) -> None:
        self.do(
            f"disk: {_wanted(fetch)} for {fetch.peer}",
            lambda: self._running().fetched(fetch, result),  # type: ignore[arg-type]
        )


def _nothing() -> None:
    """For steps in which only the pump acts."""


def _wanted(fetch: FetchEntries | FetchSnapshot) -> str:
    return "entries" if isinstance(fetch, FetchEntries) else "a snapshot"
