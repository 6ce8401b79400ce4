"""The partitions that this broker carries, brought towards what the primary wishes, over and over.

What should be comes as assignments; what is, is in the groups' own logs. Each look works the next step
out from what is there, so one that was forgotten or done twice does no harm.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from talweg.broker.decoded import DecodedBatches
from talweg.broker.partition import Partition
from talweg.broker.steps import next_configuration, should_hand_over
from talweg.errors import GroupNotFound, TalwegError
from talweg.protocol.control import GroupReport, PartitionAssignment
from talweg.raft import Configuration, Progress, Raft, Role, configuration_at
from talweg.replication import Group, ReplicaHost

CAUGHT_UP_ENTRIES = 100  # that a learner may lack and still be called caught up
_STEP_SECONDS = 0.2
_FRESH_STEP_SECONDS = 0.05  # while a new group has no leader yet
_TRANSFER_PAUSE_SECONDS = 10.0  # before leadership is offered again to one that did not take it
# Before leadership goes back to who should have it: one that is being stopped has just given it away.
_SETTLE_SECONDS = 5.0

_log = logging.getLogger("talweg.broker")


class Hosting:
    """Opens, deletes and tends groups. Lives in one event loop."""

    def __init__(
        self, host: ReplicaHost, known: Iterable[PartitionAssignment], on_leading: Callable[[], None]
    ) -> None:
        """`on_leading` is told when this broker has begun to lead a group."""
        self.host = host
        self._on_leading = on_leading
        self.partitions: dict[int, Partition] = {}  # by group
        self.assignments: dict[int, PartitionAssignment] = {each.group: each for each in known}
        self._by_place: dict[tuple[str, int], Partition] = {}
        self._decoded = DecodedBatches()
        self._known_before = frozenset(self.assignments)  # carried by an earlier life of this broker
        self._offered: dict[int, float] = {}  # by group: when leadership was last offered to another
        self._led: dict[int, tuple[int, float]] = {}  # by group: the term in which we lead, and since when
        self._new_wishes: set[int] = set()  # groups of which another should lead since the last offer
        # By group: the term in which we lead it and found everything as it should be. Most groups are so
        # most of the time, and a look at four hundred of them should cost next to nothing.
        self._content: dict[int, int] = {}
        self._overtaken: set[tuple[int, str]] = set()  # groups, and who retention waited for in vain there
        self._changing = asyncio.Lock()

    @property
    def broker(self) -> int:
        """This broker's number."""
        return self.host.broker

    def partition(self, topic: str, number: int) -> Partition:
        """One by its place; raises GroupNotFound."""
        try:
            return self._by_place[topic, number]
        except KeyError:
            raise GroupNotFound(
                f"broker {self.broker} carries no partition {number} of topic {topic}"
            ) from None

    def group(self, group: int) -> Partition:
        """One by its group; raises GroupNotFound."""
        try:
            return self.partitions[group]
        except KeyError:
            raise GroupNotFound(f"broker {self.broker} carries no group {group}") from None

    def of_topic(self, topic: str) -> list[Partition]:
        """All that are here, by number."""
        found = [partition for place, partition in self._by_place.items() if place[0] == topic]
        return sorted(found, key=lambda partition: partition.number)

    @property
    def is_complete(self) -> bool:
        """Whether everything is open that should be."""
        return self.assignments.keys() <= self.partitions.keys()

    def carried(self) -> tuple[PartitionAssignment, ...]:
        """The assignments of everything that is open."""
        return tuple(each for each in self.assignments.values() if each.group in self.partitions)

    # What should be carried

    async def open_known(self) -> None:
        """Open what an earlier life carried."""
        async with self._changing:
            for assignment in self.assignments.values():
                await self._open(assignment)

    async def carry_out(
        self, assignments: Iterable[PartitionAssignment] | None, removed: Iterable[int]
    ) -> None:
        """Open what is new, delete what may go. Whatever is not mentioned is carried on."""
        async with self._changing:
            for group in removed:
                await self._delete(group)
            if assignments is not None:
                assignments = tuple(assignments)
                self._forget_unopened({assignment.group for assignment in assignments})
            for assignment in assignments or ():
                known = self.assignments.get(assignment.group)
                if known is not None and known.leader != assignment.leader:
                    self._new_wishes.add(assignment.group)
                self.assignments[assignment.group] = assignment
                self._content.pop(assignment.group, None)
                if assignment.group not in self.partitions:
                    await self._open(assignment)

    def _forget_unopened(self, wished: set[int]) -> None:
        # What could not be opened, and nobody wishes any more: it would be waited for, for ever.
        for group in self.assignments.keys() - self.partitions.keys() - wished:
            del self.assignments[group]

    async def _open(self, assignment: PartitionAssignment) -> None:
        me = self.broker
        founder = me in assignment.voters and assignment.group not in self._known_before
        place = (assignment.topic, assignment.partition)
        if (old := self._by_place.get(place)) is not None:
            # Nobody has said that the old one may go, and it may hold what was acknowledged.
            _log.error(
                "%s: group %d is to take the place of %d, which was not removed",
                assignment.name,
                assignment.group,
                old.group.incarnation,
            )
            return
        try:
            # If it is no founder, the group exists elsewhere: who carried it before and finds nothing has
            # lost it, and must not vote before it has caught up.
            group = await self.host.open_group(
                assignment.name, assignment.group, Configuration.of(assignment.voters), join=not founder
            )
        except TalwegError as error:
            _log.error("%s cannot be opened: %s", assignment.name, error)
            return
        partition = Partition(assignment.topic, assignment.partition, group, self._decoded)
        self.partitions[assignment.group] = self._by_place[place] = partition

    async def _delete(self, group: int) -> None:
        partition = self.partitions.get(group)
        if partition is not None:
            _log.info("deleting %s", partition.name)
            try:
                await self.host.close_group(group, delete=True)
            except TalwegError as error:
                # Then it is still here, and the primary, being told so, asks for it again.
                _log.error("%s cannot be deleted yet: %s", partition.name, error)
                return
            del self.partitions[group]
            place = (partition.topic, partition.number)
            if self._by_place.get(place) is partition:
                del self._by_place[place]
        self.assignments.pop(group, None)
        self._offered.pop(group, None)
        self._led.pop(group, None)
        self._content.pop(group, None)
        self._new_wishes.discard(group)

    # Tending what is led

    def reports(self) -> tuple[GroupReport, ...]:
        """Every group that this broker leads, as its log has it."""
        return tuple(_report(p.group) for p in self.partitions.values() if p.group.leads)

    async def tend(self) -> None:
        """Look again and again, for ever."""
        while True:
            fresh = self.step()
            await asyncio.sleep(_FRESH_STEP_SECONDS if fresh else _STEP_SECONDS)

    def step(self) -> bool:
        """One look at every group. Whether a new one still has no leader."""
        fresh = False
        for incarnation, partition in self.partitions.items():
            raft = partition.group.replica.raft
            if raft.role is Role.LEADER:
                if self._content.get(incarnation) != raft.term:
                    self._look_at_led(partition.group)
            elif raft.term == 0 and raft.leader is None:
                fresh = True
                assignment = self.assignments.get(incarnation)
                if assignment is not None and assignment.leader == self.broker:
                    partition.group.campaign()  # nobody has led it yet: no need to wait for a timeout
        return fresh

    def _look_at_led(self, group: Group) -> None:
        assignment = self.assignments.get(group.incarnation)
        if assignment is None or group.stopped is not None:
            return
        self._note_term(group)
        wanted = Configuration.of(assignment.voters, assignment.learners)
        self._tend_led(group, assignment, wanted)
        if group.replica.raft.configuration == wanted and assignment.leader in (None, self.broker):
            self._content[group.incarnation] = group.term

    def _tend_led(self, group: Group, assignment: PartitionAssignment, wanted: Configuration) -> None:
        raft = group.replica.raft
        now = raft.configuration
        if now != wanted and raft.commit_index >= raft.term_start_index:
            following = next_configuration(now, wanted, leader=self.broker, caught_up=caught_up(raft))
            if following is not None:
                # Refused while another is under way: the next look tries again.
                group.change(following)
            elif should_hand_over(now, wanted, leader=self.broker):
                self._offer(group, None)
                return
        if assignment.leader not in (None, self.broker) and self._is_settled(group):
            self._offer(group, assignment.leader)

    def _note_term(self, group: Group) -> None:
        if self._led.get(group.incarnation, (0, 0.0))[0] != group.term:
            self._led[group.incarnation] = group.term, time.monotonic()
            self._on_leading()

    def _is_settled(self, group: Group) -> bool:
        _, since = self._led[group.incarnation]
        return group.incarnation in self._new_wishes or time.monotonic() - since >= _SETTLE_SECONDS

    def let_go(self) -> None:
        """Nobody need wait here any longer: the broker stops."""
        for partition in self.partitions.values():
            partition.group.wake_all()

    def _offer(self, group: Group, target: int | None) -> None:
        # A group takes no writes while it is handed over, so only to one that can take it at once.
        raft = group.replica.raft
        if raft.transfer_target is not None:
            return
        if target is None:
            wanted = self.assignments[group.incarnation].voters
            ready = [voter for voter in wanted if voter != self.broker and is_ready(raft, voter)]
            target = ready[0] if ready else None
        if target is None or not is_ready(raft, target):
            return
        now, offered = time.monotonic(), self._offered.get(group.incarnation)
        is_new = group.incarnation in self._new_wishes
        if is_new or offered is None or now - offered >= _TRANSFER_PAUSE_SECONDS:
            self._offered[group.incarnation] = now
            self._new_wishes.discard(group.incarnation)
            group.hand_over(target)

    # Retention

    async def retain(self, every_seconds: float) -> None:
        """Drop what topics' settings let go, for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            for incarnation, partition in list(self.partitions.items()):
                assignment = self.assignments.get(incarnation)
                if assignment is None or partition.group.stopped is not None:
                    continue
                await _retain(partition.group, assignment)
                self._warn_of_overtaken(partition)

    def _warn_of_overtaken(self, partition: Partition) -> None:
        """Retention was told to wait for these, up to some size, and that was reached."""
        replica = partition.group.replica
        state, group = replica.state, partition.group.incarnation
        for name in state.holds:
            overtaken = state.positions.get(name, 0) < replica.start_offset
            if overtaken and (group, name) not in self._overtaken:
                _log.warning(
                    "retention of %s has overtaken %s, which is at offset %d: messages before %d are gone",
                    partition.name,
                    name,
                    state.positions.get(name, 0),
                    replica.start_offset,
                )
            (self._overtaken.add if overtaken else self._overtaken.discard)((group, name))


async def _retain(group: Group, assignment: PartitionAssignment) -> None:
    bytes_max, age_ms = assignment.retention_bytes, assignment.retention_ms
    if bytes_max is None and age_ms is None:
        return
    before = None if age_ms is None else time.time_ns() // 1000 - 1000 * age_ms
    try:
        await group.retain(bytes_max=bytes_max, before_timestamp=before)
    except TalwegError as error:
        _log.warning("retention of %s: %s", group.name, error)


def _report(group: Group) -> GroupReport:
    raft, replica = group.replica.raft, group.replica
    configuration = configuration_at(raft, raft.commit_index)
    return GroupReport(
        group=group.incarnation,
        term=raft.term,
        voters=configuration.voters,
        learners=configuration.learners,
        caught_up=caught_up(raft),
        start_offset=replica.start_offset,
        next_offset=replica.high_watermark,
    )


def caught_up(raft: Raft) -> tuple[int, ...]:
    """The learners of a group that is led here that could vote: heard of lately, whole, lacking little."""
    # One that is still recovering, or was never heard of, would be a voter that neither votes nor counts:
    # with it, one more that dies takes the majority away, and that may be for good.
    return tuple(learner for learner in raft.configuration.learners if _keeps_up(raft, learner))


def is_ready(raft: Raft, peer: int) -> bool:
    """Whether a voter of a group that is led here could lead it: it was heard of lately, and lacks little."""
    return peer in raft.configuration.voters and _keeps_up(raft, peer)


def _keeps_up(raft: Raft, peer: int) -> bool:
    progress: Progress | None = raft.progress.get(peer)
    if progress is None or progress.heard_at <= raft.clock - raft.settings.election_ticks:
        return False
    # 0: it has said nothing yet that counts. In a short log that alone would look like little.
    counts = min(progress.match_index, progress.counted_index)
    return counts > 0 and counts + CAUGHT_UP_ENTRIES >= raft.log.last_index
