"""A group on this broker, as the rest of the broker uses it: awaitable calls over one replica."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from talweg.errors import TalwegError
from talweg.raft import Configuration, Entries, FetchEntries, FetchSnapshot, Role, Snapshot
from talweg.records import Bytes
from talweg.replication import wire
from talweg.replication.proposals import Appended, Done, Outcome
from talweg.replication.replica import Replica
from talweg.replication.state import Position

_log = logging.getLogger("talweg.replication")


class Group:
    """Calls belong to the event loop's thread. Every wait ends: with an answer or with an error."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        founders: Configuration,
        replica: Replica,
        touch: Callable[["Group"], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.founders = founders  # the configuration that the log begins with
        self.replica = replica
        self.disk_busy = False  # a job is with the writer
        self.stopped: TalwegError | None = None  # why, once it is
        self._touch = touch
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsendable_index = 0  # of a snapshot that is too large for any packet
        self._readers: list[tuple[int, asyncio.Future[None]]] = []  # the offset each waits for
        replica.on_applied = self._wake_readers

    @property
    def leads(self) -> bool:
        """Whether this broker leads the group, as far as it knows."""
        return self.replica.raft.role is Role.LEADER and self.stopped is None

    @property
    def leader(self) -> int | None:
        """Who leads, if it is known."""
        return self.replica.raft.leader

    @property
    def term(self) -> int:
        """The newest term seen."""
        return self.replica.raft.term

    @property
    def voters(self) -> tuple[int, ...]:
        """Those who decide."""
        return self.replica.raft.configuration.voters

    def append_with_callback(self, frames: Sequence[Bytes], done: Done) -> None:
        """`append` for callers who count microseconds."""
        if self.stopped is not None:
            done(self.stopped)
            return
        self.replica.append(frames, done)
        self._touch(self)

    async def append(self, frames: Sequence[Bytes]) -> Sequence[Appended]:
        """Append frames, not yet stamped; returns where they stand once a majority has them on disk."""
        future: asyncio.Future[Sequence[Appended]] = asyncio.get_running_loop().create_future()
        self.append_with_callback(frames, _resolve(future))
        return await future

    async def commit_positions(self, positions: list[Position]) -> None:
        """Replicate positions; returns once a majority has them on disk."""
        self._check_running()
        future: asyncio.Future[Sequence[Appended]] = asyncio.get_running_loop().create_future()
        self.replica.commit_positions(positions, _resolve(future))
        self._touch(self)
        await future

    async def confirm_leadership(self) -> None:
        """Returns when a majority has confirmed that this broker leads; raises NotLeader otherwise."""
        self._check_running()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: TalwegError | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self.replica.confirm_leadership(done)
        self._touch(self)
        await future

    async def read(self, offset: int, bytes_max: int) -> list[bytes]:
        """Committed record batches from the one that holds `offset` on."""
        return await asyncio.to_thread(self.replica.read_frames, offset, bytes_max)

    async def wait_for_offset(self, offset: int, wait_seconds: float) -> None:
        """Returns when the message at `offset` is committed, when the group stops here, or after the time."""
        if offset < self.replica.high_watermark or wait_seconds <= 0 or self.stopped is not None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reader = (offset, future)
        self._readers.append(reader)
        try:
            async with asyncio.timeout(wait_seconds):
                await future
        except TimeoutError:
            return
        finally:
            if reader in self._readers:
                self._readers.remove(reader)

    def _wake_readers(self) -> None:
        if self._readers:
            high_watermark = self.replica.high_watermark
            for offset, future in self._readers:
                if offset < high_watermark and not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """Whoever waits for an offset waits no longer."""
        for _, future in self._readers:
            if not future.done():
                future.set_result(None)

    def change(self, configuration: Configuration) -> TalwegError | None:
        """Propose a configuration; the error says why it was refused."""
        refusal = self.replica.raft.propose_configuration(configuration)
        self._touch(self)
        return self.replica.refused(refusal) if refusal is not None else None

    def campaign(self) -> None:
        """Stand for election now, if this broker may."""
        self.replica.raft.campaign()
        self._touch(self)

    def hand_over(self, target: int | None = None) -> None:
        """Ask for another leader: `target`, or whoever has most of the log."""
        raft = self.replica.raft
        if not self.leads:
            return
        others = [voter for voter in self.voters if voter != raft.replica]
        if target is None and others:
            target = max(others, key=lambda voter: raft.progress[voter].match_index)
        if target is not None:
            raft.transfer(target)
            self._touch(self)

    async def retain(self, *, bytes_max: int | None, before_timestamp: int | None) -> None:
        """Retention, as far as a snapshot allows."""
        index = await asyncio.to_thread(
            self.replica.retention_index,
            bytes_max=bytes_max,
            before_timestamp=before_timestamp,
            needed=self.replica.needed(),
        )
        if index is not None and self.stopped is None and self.replica.drop_head(index):
            self._touch(self)

    def _check_running(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    # For the host

    def stop(self, error: TalwegError) -> None:
        """No more work; whoever waits is told."""
        self.stopped = error
        self.replica.fail_all(error)
        self.wake_all()
        for task in self._tasks:
            task.cancel()

    def go_on(self, replica: Replica) -> None:
        """After a stop: with another replica of the same log."""
        self.replica = replica
        replica.on_applied = self._wake_readers
        self.stopped = None

    async def fetch(self, fetch: FetchEntries | FetchSnapshot) -> Entries | Snapshot | None:
        """What a slow follower needs, from the disk; None if it cannot be read, or not be sent."""
        if isinstance(fetch, FetchSnapshot) and self.replica.raft.log.start_index == self._unsendable_index:
            return None  # it is asked for with every heartbeat: to read it once, and to say so once, will do
        result = await asyncio.to_thread(self.replica.fetch, fetch)
        if isinstance(result, Snapshot) and not wire.fits(result):
            self._unsendable_index = result.index
            _log.error(
                "group %s: broker %d needs a snapshot of %d bytes, which no packet can carry: it cannot "
                "catch up until positions or producers are fewer",
                self.name,
                fetch.peer,
                len(result.state),
            )
            return None
        return result

    def keep(self, task: asyncio.Task[None]) -> None:
        """Remember a task until it is over."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def disk_went_idle(self) -> None:
        """The writer has given its job back."""
        self.disk_busy = False
        self._idle.set()

    async def wait_until_idle(self) -> None:
        """Returns when no job is with the writer."""
        while self.disk_busy:
            self._idle.clear()
            await self._idle.wait()


def _resolve(future: asyncio.Future[Sequence[Appended]]) -> Done:
    def done(outcome: Outcome) -> None:
        if future.done():
            return  # cancelled by whoever waited
        if isinstance(outcome, TalwegError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return done
