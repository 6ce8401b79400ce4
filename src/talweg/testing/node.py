"""A replica on a simulated disk that can crash, lose its disk and start again. No threads, no real time."""

from collections.abc import Callable
from random import Random

from talweg.raft import Configuration, Message, Settings
from talweg.replication.job import Job
from talweg.replication.replica import Replica
from talweg.storage import LogStores
from talweg.storage.segments import SegmentStores
from talweg.testing.disk import SimulatedFiles

GROUP = "group"
INCARNATION = 1


class SimulatedNode:
    """One broker with one replica. `replica` is None while it is down."""

    def __init__(
        self,
        broker: int,
        configuration: Configuration,
        random: Random,
        *,
        settings: Settings | None = None,
        segment_bytes: int = 4096,
        snapshot_interval_bytes: int = 16_384,
        journal_bytes: int = 0,
        new_disk: Callable[[], SimulatedFiles] = SimulatedFiles,
    ) -> None:
        self.broker = broker
        self.files = new_disk()
        self._new_disk = new_disk
        self.replica: Replica | None = None
        self._configuration = configuration  # of the group when it began
        self._random = random
        self._settings = settings or Settings()
        self._segment_bytes = segment_bytes
        self._snapshot_interval_bytes = snapshot_interval_bytes
        self._journal_bytes = journal_bytes
        self._stores: LogStores | None = None

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.replica is not None

    @property
    def stores(self) -> LogStores:
        """On its disk, while it runs."""
        assert self._stores is not None
        return self._stores

    def start(self, *, join: bool = False) -> Replica:
        """Open the disk, whatever is on it."""
        assert self.replica is None
        self._stores = SegmentStores(
            self.files,
            segment_bytes=self._segment_bytes,
            journal_bytes=self._journal_bytes,
            journal_least=1,
            new_salt=lambda: self._random.getrandbits(64),
        )
        return self._open(join=join)

    def reopen(self) -> Replica:
        """The store found damage while it was in use: begin again on what is sound of it."""
        self.replica = None
        return self._open(join=False)

    def _open(self, *, join: bool) -> Replica:
        assert self._stores is not None
        election_ticks = self._settings.election_ticks
        self.replica = Replica(
            self.broker,
            self._stores.open(GROUP, INCARNATION),
            self._configuration,
            settings=self._settings,
            election_timeout=lambda: self._random.randint(election_ticks, 2 * election_ticks - 1),
            snapshot_interval_bytes=self._snapshot_interval_bytes,
            join=join,
            life=self._random.getrandbits(63),
        )
        return self.replica

    def crash(self) -> None:
        """kill -9 and power cut in one: memory is gone, and so is what was never synced."""
        self.replica = self._stores = None
        self.files.crash(self._random)

    def kill(self) -> None:
        """kill -9 alone: memory is gone, and the machine still has all that it was given."""
        self.replica = self._stores = None
        self.files.restart()

    def wipe(self) -> None:
        """A new, empty disk under the old name. Start it with `join`."""
        assert self.replica is None
        self.files = self._new_disk()

    def take_messages(self) -> list[Message]:
        """What it wants to send."""
        assert self.replica is not None
        messages, self.replica.outbox = self.replica.outbox, []
        return messages

    def run_job(self, job: Job) -> None:
        """The whole of a job, at once."""
        assert self.replica is not None
        job.write()
        job.finish()
        self.replica.job_done(job)
        self.pump()

    def settle(self) -> None:
        """Do all disk work there is, and all reads for slow followers."""
        assert self.replica is not None
        self.pump()
        while True:
            job, fetches = self.replica.take_job(), self.replica.take_fetches()
            if job is None and not fetches:
                return
            if job is not None:
                self.run_job(job)
            for fetch in fetches:
                self.replica.fetched(fetch, self.replica.fetch(fetch))
            self.pump()

    def pump(self) -> None:
        """`Replica.pump`, until nothing is left."""
        assert self.replica is not None
        self.replica.pump()
        while self.replica.has_more:
            self.replica.pump()
