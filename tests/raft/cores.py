"""Cores without a disk or a network: made with a given log, stepped by hand, or wired to each other."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from random import Random
from typing import ClassVar

from talweg.raft import (
    NOOP,
    Append,
    AppendReply,
    Configuration,
    Entry,
    FetchEntries,
    HardState,
    Log,
    Message,
    Raft,
    Ready,
    RequestVote,
    Role,
    Run,
    Settings,
    Snapshot,
    VoteReply,
    singly,
)

DATA = 2  # a kind that is not the core's own
TIMEOUT = 10
SETTINGS = Settings(heartbeat_ticks=2, election_ticks=TIMEOUT)
ROUNDS_MAX = 1_000


def entries(*terms: int, first: int = 1, size_bytes: int = 0) -> list[Entry]:
    """One entry for each term, numbered from `first`."""
    numbered = enumerate(terms, first)
    return [
        Entry(index, term, DATA, f"{term}.{index}".encode().ljust(size_bytes)) for index, term in numbered
    ]


def run_of(some: Sequence[Entry]) -> Run:
    """The same in one piece; their notes are their indexes."""
    ends = list(accumulate(len(entry.payload) for entry in some))
    payload, kinds = b"".join(entry.payload for entry in some), bytes(entry.kind for entry in some)
    return Run(some[0].index, some[0].term, kinds, payload, ends, [entry.index for entry in some])


def together(some: Sequence[Entry]) -> list[Entry | Run]:
    """The same, those of one term in one piece where there are several."""
    stretches = [list(stretch) for _, stretch in groupby(some, lambda entry: entry.term)]
    return [run_of(stretch) if len(stretch) > 1 else stretch[0] for stretch in stretches]


class Core:
    """A `Raft` whose Readies are carried out at once, as long as `disk_runs`."""

    in_runs: ClassVar[bool] = False  # whether entries are proposed, sent and held in runs, also single ones

    def __init__(self, raft: Raft, on_disk: Iterable[Entry] = ()) -> None:
        self.raft = raft
        self.on_disk = {entry.index: entry for entry in on_disk}
        self.hard_state = raft.hard_state  # durable
        self.snapshot: Snapshot | None = None  # the answer to FetchSnapshot
        self.disk_runs = True
        self.readies: list[Ready] = []  # every one, for a test to look at
        self.unwritten: deque[Ready] = deque()
        self.reads: list[tuple[int, int]] = []  # (request, index)
        self.failed_reads: list[int] = []
        self._sent: list[Message] = []

    @property
    def terms(self) -> list[int | None]:
        """The term of each entry in the log."""
        log = self.raft.log
        return [log.term(index) for index in range(log.start_index + 1, log.last_index + 1)]

    def has_role(self, role: Role) -> bool:
        """Whether it is in this role now."""
        return self.raft.role is role

    def is_forgetful(self) -> bool:
        """Whether it lost some of its log, and has not got it back."""
        return self.raft.recovering

    def pump(self) -> list[Message]:
        """Do what is to be done; returns what leaves."""
        raft = self.raft
        while raft.has_ready or (self.disk_runs and self.unwritten):
            if raft.has_ready:
                self._take(raft.ready())
            if self.disk_runs:
                self._write()
        sent, self._sent = self._sent, []
        return sent

    def _take(self, ready: Ready) -> None:
        self.readies.append(ready)
        self._sent += ready.messages
        if self.unwritten or ready.must_persist:
            self.unwritten.append(ready)
        else:
            self._sent += ready.messages_after
        if ready.commit_index > self.raft.applied_index:
            self.raft.applied(ready.commit_index)
        self.reads += [(read.request, read.index) for read in ready.reads]
        self.failed_reads += ready.failed_reads
        for fetch in ready.fetches:
            if isinstance(fetch, FetchEntries):
                self.raft.fetched(fetch.peer, self._read(fetch.first_index, fetch.bytes_max))
            else:
                self.raft.fetched_snapshot(fetch.peer, self.snapshot)

    def _read(self, index: int, bytes_max: int) -> list[Entry]:
        found: list[Entry] = []
        while index in self.on_disk and (not found or bytes_max >= 0):
            found.append(self.on_disk[index])
            bytes_max -= len(self.on_disk[index].payload)
            index += 1
        return found

    def _write(self) -> None:
        while self.unwritten:
            ready = self.unwritten.popleft()
            if ready.snapshot is not None:
                self.on_disk.clear()
            if ready.truncate_from is not None:
                for index in [at for at in self.on_disk if at >= ready.truncate_from]:
                    del self.on_disk[index]
            self.on_disk |= {entry.index: entry for entry in singly(ready.entries)}
            self.hard_state = ready.hard_state or self.hard_state
            self.raft.persisted(ready.number)
            self._sent += ready.messages_after

    def step(self, *messages: Message) -> list[Message]:
        """Messages have come; returns what leaves."""
        for message in messages:
            self.raft.step(message)
        return self.pump()

    def tick(self, count: int = 1) -> list[Message]:
        """Time has passed; returns what leaves."""
        sent = []
        for _ in range(count):
            self.raft.tick()
            sent += self.pump()
        return sent

    def campaign(self) -> list[Message]:
        """Stand for election; returns what leaves."""
        self.raft.campaign()
        return self.pump()

    def propose(self, *payloads: bytes) -> list[Message]:
        """Append one entry for each payload; returns what leaves."""
        first = self.raft.log.last_index + 1
        made = [Entry(at, self.raft.term, DATA, payload) for at, payload in enumerate(payloads, first)]
        self.raft.propose([run_of(made)] if self.in_runs else made)
        return self.pump()

    def grant(self, *voters: int) -> list[Message]:
        """Win pre-vote and vote with the help of these."""
        sent: list[Message] = []
        for pre in (True, False):
            term = self.raft.term + pre
            for voter in voters:
                vote = VoteReply(source=voter, target=self.raft.replica, term=term, granted=True, pre=pre)
                sent += self.step(vote)
        return sent

    def acknowledge(self, follower: int, index: int) -> list[Message]:
        """A follower has everything up to `index` on disk."""
        term = self.raft.term
        return self.step(AppendReply(source=follower, target=self.raft.replica, term=term, index=index))


def make(
    replica: int = 1,
    voters: Sequence[int] = (1, 2, 3),
    *,
    learners: Sequence[int] = (),
    terms: Sequence[int] = (),
    term: int | None = None,
    vote: int | None = None,
    commit: int | None = None,
    recovering: bool = False,
    life: int = 0,
    settings: Settings = SETTINGS,
    election_timeout: Callable[[], int] = lambda: TIMEOUT,
) -> Core:
    """A follower whose log has entries of these terms, all of them durable."""
    log = Log()
    held = entries(*terms)
    if held:
        log.append(together(held) if Core.in_runs else held)
    raft = Raft(
        replica,
        Configuration.of(voters, learners),
        log=log,
        hard_state=HardState(max(terms, default=0) if term is None else term, vote, recovering),
        applied_index=commit,
        settings=settings,
        election_timeout=election_timeout,
        life=life,
    )
    return Core(raft, held)


def make_leader(
    replica: int = 1,
    voters: Sequence[int] = (1, 2, 3),
    *,
    learners: Sequence[int] = (),
    terms: Sequence[int] = (),
    settings: Settings = SETTINGS,
    term: int | None = None,
) -> Core:
    """A leader, elected by everyone. Its no-op is durable with itself and nowhere else."""
    core = make(replica, voters, learners=learners, terms=terms, settings=settings, term=term)
    core.campaign()
    core.grant(*[voter for voter in voters if voter != replica])
    assert core.raft.role is Role.LEADER
    return core


def make_settled_leader(
    replica: int = 1,
    voters: Sequence[int] = (1, 2, 3),
    *,
    learners: Sequence[int] = (),
    settings: Settings = SETTINGS,
) -> Core:
    """A leader whose followers all hold its no-op, which is committed."""
    core = make_leader(replica, voters, learners=learners, settings=settings)
    for member in (*voters, *learners):
        if member != replica:
            core.acknowledge(member, core.raft.log.last_index)
    return core


def append(
    target: int = 1,
    *,
    term: int,
    prev: tuple[int, int] = (0, 0),
    terms: Sequence[int] = (),
    commit: int = 0,
    source: int = 2,
    recovery_index: int = 0,
    life: int = 0,
    in_runs: bool | None = None,
) -> Append:
    """An append of entries with these terms after `prev`, an (index, term); in runs if cores propose so."""
    some = entries(*terms, first=prev[0] + 1)
    in_runs = Core.in_runs if in_runs is None else in_runs
    return Append(
        source=source,
        target=target,
        term=term,
        prev_index=prev[0],
        prev_term=prev[1],
        entries=together(some) if in_runs else some,
        commit=commit,
        recovery_index=recovery_index,
        life=life,
    )


def request_vote(
    target: int = 1,
    *,
    term: int,
    last: tuple[int, int] = (0, 0),
    source: int = 2,
    pre: bool = False,
    transfer: bool = False,
) -> RequestVote:
    """A request for a vote by one whose log ends at `last`, an (index, term)."""
    return RequestVote(
        source=source,
        target=target,
        term=term,
        last_index=last[0],
        last_term=last[1],
        pre=pre,
        transfer=transfer,
    )


class Group:
    """Cores that hear each other, except where a link is cut. Messages arrive in order."""

    def __init__(self, *cores: Core) -> None:
        self.cores = {core.raft.replica: core for core in cores}
        self.cut: set[tuple[int, int]] = set()  # (source, target)
        self.delivered: list[Message] = []
        self.lost: list[Message] = []

    @classmethod
    def of(cls, count: int, *, settings: Settings = SETTINGS, learners: Sequence[int] = ()) -> "Group":
        """`count` voters with empty logs."""
        voters = range(1, count + 1)
        members = (*voters, *learners)
        return cls(*[make(one, voters, learners=learners, settings=settings) for one in members])

    def __getitem__(self, replica: int) -> Core:
        return self.cores[replica]

    def __iter__(self) -> Iterator[Core]:
        return iter(self.cores.values())

    @property
    def leaders(self) -> list[int]:
        """Those that believe to lead."""
        return [replica for replica, core in self.cores.items() if core.raft.role is Role.LEADER]

    def isolate(self, replica: int) -> None:
        """Cut one off, both ways."""
        for other in self.cores:
            if other != replica:
                self.cut |= {(replica, other), (other, replica)}

    def heal(self) -> None:
        """Every link works."""
        self.cut.clear()

    def run(self, *messages: Message) -> None:
        """Deliver these, and whatever comes of it, until nobody has anything to say."""
        on_their_way = deque(messages)
        for core in self:
            on_their_way.extend(core.pump())
        for _ in range(ROUNDS_MAX):
            if not on_their_way:
                return
            message = on_their_way.popleft()
            target = self.cores.get(message.target)
            if target is None or (message.source, message.target) in self.cut:
                self.lost.append(message)
                continue
            self.delivered.append(message)
            on_their_way.extend(target.step(message))
        raise AssertionError("they never stop talking")

    def tick(self, count: int = 1) -> None:
        """Time passes for everyone."""
        for _ in range(count):
            for core in self:
                core.raft.tick()
            self.run()

    def elect(self, replica: int) -> Core:
        """Make one the leader."""
        core = self.cores[replica]
        self.run(*core.campaign())
        assert core.raft.role is Role.LEADER
        return core

    def propose(self, replica: int, *payloads: bytes) -> None:
        """Append, and let everyone hear of it."""
        self.run(*self.cores[replica].propose(*payloads))


def is_noop(entry: Entry) -> bool:
    """Whether it opens a term."""
    return entry.kind == NOOP and not entry.payload


def trace(seed: int, steps: int = 600) -> list[str]:
    """What happens to a group on a bad network, all chances from one seed."""
    random = Random(seed)
    voters = range(1, 4)

    def wait() -> int:
        return random.randint(TIMEOUT, 2 * TIMEOUT)

    cores = {replica: make(replica, voters, election_timeout=wait) for replica in voters}
    told: list[str] = []
    network: list[Message] = []
    for _ in range(steps):
        core = random.choice(list(cores.values()))
        match random.randrange(6):
            case 0 | 1:
                network += core.tick()
            case 2 if core.raft.refuses(1) is None:
                network += core.propose(b"x")
            case _ if network:
                message = network.pop(random.randrange(len(network)))
                if random.random() < 0.9:
                    network += cores[message.target].step(message)
                    told.append(f"{message} {cores[message.target].raft.hard_state}")
    return told
