"""Where scenarios are played: replicas on simulated disks, a network that waits to be told, no time.

Nothing happens by itself except what a single broker does at once: it works off what came, writes to its
disk (unless that is stopped) and reads for slow followers. Messages wait until they are delivered.
"""

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from raft import describe
from talweg.errors import TalwegError
from talweg.raft import Configuration, FetchSnapshot, Message, Raft, Role, Settings
from talweg.replication.job import Job
from talweg.replication.replica import Replica
from talweg.testing.node import SimulatedNode

MESSAGES_MAX = 2_000  # delivered by one command; more is an endless conversation


class Chances(Random):
    """Randomness that is the scenario's to choose: election timeouts, and what a crash leaves."""

    def __init__(self, timeout_ticks: int | None = None) -> None:
        super().__init__(0)
        self.timeout_ticks = timeout_ticks  # None: the shortest
        self.torn_bytes = 0  # of the first write that was not synced; the rest is lost

    def randint(self, a: int, b: int) -> int:
        """Between `a` and `b`, both included."""
        return a if a == 0 or self.timeout_ticks is None else self.timeout_ticks

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """How many bytes of a write survive."""
        assert stop is None
        assert step == 1
        return min(self.torn_bytes, start - 1)


class Seen(msgspec.Struct, frozen=True):
    """What a scenario tells of a replica when it changes."""

    role: Role
    term: int
    leader: int | None
    commit_index: int
    configuration: Configuration
    recovering: bool

    @classmethod
    def of(cls, raft: Raft) -> "Seen":
        """As it is now."""
        return cls(raft.role, raft.term, raft.leader, raft.commit_index, raft.configuration, raft.recovering)


class Stage:
    """The brokers, their disks and the messages between them. `lines` is what has happened."""

    def __init__(
        self,
        configuration: Configuration,
        settings: Settings,
        brokers: Iterable[int],
        *,
        timeouts: dict[int, int] | None = None,
        segment_bytes: int = 4096,
    ) -> None:
        self.lines: list[str] = []
        self.settings = settings
        self.configuration = configuration
        self.nodes: dict[int, SimulatedNode] = {}
        self.network: list[Message] = []
        self.cut: set[tuple[int, int]] = set()  # (source, target): what passes is lost
        self.held: set[tuple[int, int]] = set()  # (source, target): what passes waits
        self.disks: dict[int, str] = {}  # broker → stopped, full or failing
        self.silent = False  # messages are not worth a line
        self._jobs: dict[int, Job] = {}  # taken and not done, because of the disk
        self._seen: dict[int, Seen] = {}
        self._chances: dict[int, Chances] = {}
        self._answers: list[str] = []
        self._segment_bytes = segment_bytes
        for broker in brokers:
            self.add(broker, (timeouts or {}).get(broker))

    def add(self, broker: int, timeout_ticks: int | None = None, *, join: bool = False) -> None:
        """A broker with an empty disk."""
        self._chances[broker] = Chances(timeout_ticks)
        self.nodes[broker] = SimulatedNode(
            broker,
            self.configuration,
            self._chances[broker],
            settings=self.settings,
            segment_bytes=self._segment_bytes,
            snapshot_interval_bytes=1 << 30,  # snapshots are taken when a scenario says so
        )
        self.start(broker, join=join)

    def replica(self, broker: int) -> Replica:
        """The one that runs there."""
        replica = self.nodes[broker].replica
        assert replica is not None, f"{broker} is down"
        return replica

    @property
    def running(self) -> list[int]:
        """Those that are up."""
        return [broker for broker, node in self.nodes.items() if node.up]

    def emit(self, line: str) -> None:
        """Note something that happened."""
        self.lines.append(f"  {line}")

    # Lives

    def start(self, broker: int, *, join: bool = False) -> None:
        """Start on whatever the disk holds."""
        self.nodes[broker].start(join=join)
        self._seen[broker] = Seen.of(self.replica(broker).raft)
        self.work(broker)

    def crash(self, broker: int, torn_bytes: int = 0) -> None:
        """What was not synced is gone, but for a few bytes. What is on the network stays there."""
        self._chances[broker].torn_bytes = torn_bytes
        self.nodes[broker].crash()
        self._jobs.pop(broker, None)
        self.disks.pop(broker, None)

    # One broker

    def do(self, broker: int, action: Callable[[Replica], object]) -> object:
        """Let something happen to a replica, and everything that follows at once."""
        result = action(self.replica(broker))
        self.work(broker)
        return result

    def work(self, broker: int) -> None:
        """All that a broker does without being told."""
        replica = self.replica(broker)
        busy = True
        while busy:
            replica.pump()
            self._note_changes(broker)
            self._collect(broker)
            busy = self._work_for_disk(broker) or self._read_for_followers(broker) or replica.has_more

    def _collect(self, broker: int) -> None:
        self.network += self.nodes[broker].take_messages()

    def _work_for_disk(self, broker: int) -> bool:
        if broker in self._jobs:
            return False
        job = self.replica(broker).take_job()
        if job is None:
            return False
        if self.disks.get(broker) == "stopped":
            self._jobs[broker] = job
            if describe.job(job):
                self.emit(f"{broker} has to write: {describe.job(job)}")
            return False
        return self._carry_out(broker, job)

    def _carry_out(self, broker: int, job: Job) -> bool:
        text = describe.job(job)
        if self.disks.get(broker) == "failing":
            self.nodes[broker].files.fail_next("sync")
        try:
            job.write()
            job.finish()
        except TalwegError as error:
            self._jobs[broker] = job
            self.emit(f"{broker} cannot write ({error.code}): {text}")
            self.replica(broker).job_failed(job, error)
            self.replica(broker).pump()
            self._note_changes(broker)
            return False
        if text:
            self.emit(f"{broker} persists {text}")
        self.replica(broker).job_done(job)
        self.replica(broker).pump()
        return True

    def set_disk(self, broker: int, state: str | None) -> None:
        """Stopped, full, failing or (None) as it should be."""
        self.disks.pop(broker, None)
        if state is not None:
            self.disks[broker] = state
        self.nodes[broker].files.space_bytes = 0 if state == "full" else None

    def finish_job(self, broker: int) -> None:
        """Carry out the one job that waits, and only that."""
        job = self._jobs.pop(broker, None)
        if job is not None:
            self._carry_out(broker, job)
        self.work(broker)

    def has_job(self, broker: int) -> bool:
        """Whether a job waits for the disk."""
        return broker in self._jobs

    def write_job(self, broker: int) -> None:
        """Hand the bytes of the job that waits to the operating system, which has not synced them."""
        job = self._jobs[broker]
        self.emit(f"{broker} writes, and does not sync: {describe.job(job)}")
        job.write()

    def _read_for_followers(self, broker: int) -> bool:
        replica = self.replica(broker)
        fetches = replica.take_fetches()
        for fetch in fetches:
            what = (
                "its snapshot"
                if isinstance(fetch, FetchSnapshot)
                else f"old entries from {fetch.first_index}"
            )
            self.emit(f"{broker} reads {what} for {fetch.peer}")
            replica.fetched(fetch, replica.fetch(fetch))
        return bool(fetches)

    def _note_changes(self, broker: int) -> None:
        before, now = self._seen[broker], Seen.of(self.replica(broker).raft)
        self._seen[broker] = now
        standing = self._standing(broker, before, now)
        if standing:
            self.emit(standing)
        if now.configuration != before.configuration:
            self.emit(f"{broker} uses {describe.members(now.configuration)}")
        if now.commit_index > before.commit_index:
            self.emit(f"{broker} commits {describe.span(before.commit_index + 1, now.commit_index)}")
        if before.recovering and not now.recovering:
            self.emit(f"{broker} has recovered")
        answers, self._answers = self._answers, []
        for answer in answers:
            self.emit(answer)

    @staticmethod
    def _standing(broker: int, before: Seen, now: Seen) -> str | None:
        if (before.role, before.term, before.leader) == (now.role, now.term, now.leader):
            return None
        if now.role is not Role.FOLLOWER:
            changed = (before.role, before.term) != (now.role, now.term)
            joint = "of" if now.role is Role.LEADER else "in"
            return f"{broker} becomes {describe.ROLES[now.role]} {joint} term {now.term}" if changed else None
        if now.leader is not None:
            return f"{broker} follows {now.leader} in term {now.term}"
        return f"{broker} follows nobody in term {now.term}"

    def answer(self, line: str) -> None:
        """A client was told something; noted after what brought it about."""
        self._answers.append(line)

    # The network

    def send(self, message: Message) -> None:
        """Deliver one message, or lose it."""
        if (message.source, message.target) in self.cut or not self._is_up(message.target):
            self._tell(f"lost {describe.message(message)}")
            return
        self._tell(describe.message(message))
        self.do(message.target, lambda replica: replica.step(message))

    def _tell(self, line: str) -> None:
        if not self.silent:
            self.lines.append(line)

    def _is_up(self, broker: int) -> bool:
        return broker in self.nodes and self.nodes[broker].up

    def stabilize(self, among: set[int] | None = None) -> None:
        """Deliver until nothing is left that may be delivered."""
        for _ in range(MESSAGES_MAX):
            message = next((one for one in self.network if self._may_travel(one, among)), None)
            if message is None:
                return
            self._take(message)
            self.send(message)
        raise AssertionError("they never stop talking")

    def _may_travel(self, message: Message, among: set[int] | None) -> bool:
        link = (message.source, message.target)
        return link not in self.held and (among is None or among.issuperset(link))

    def _take(self, message: Message) -> None:
        for position, one in enumerate(self.network):
            if one is message:
                del self.network[position]
                return

    def deliver(self, messages: list[Message]) -> None:
        """Deliver these, and nothing that comes of it."""
        for message in messages:
            self._take(message)
            self.send(message)

    def drop(self, messages: list[Message]) -> None:
        """Lose these."""
        for message in messages:
            self._take(message)
            self._tell(f"dropped {describe.message(message)}")

    def pass_time(self, ticks: int) -> None:
        """Ticks for everyone, and all messages at once. Only what changes is told."""
        self.silent = True  # until the next command
        for _ in range(ticks):
            for broker in self.running:
                self.do(broker, Replica.tick)
            self.stabilize()

    def told(self, broker: int, text: str) -> Callable[[TalwegError | None], None]:
        """How a client hears of a confirmation."""

        def done(error: TalwegError | None) -> None:
            raft = self.replica(broker).raft
            outcome = f"is confirmed at {raft.applied_index}" if error is None else f"fails: {error.code}"
            self.answer(f"{broker}: {text} {outcome}")

        return done
