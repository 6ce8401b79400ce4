"""Topics that brokers lead and the metadata store has forgotten, entered again.

A store that loses its last writes (Redis, when one of its masters fails) may forget a topic whose messages
brokers hold and have acknowledged. Each of them knows enough of the topic to tell it back.
"""

import asyncio
import contextlib
import logging

from talweg.errors import GroupNotFound, TalwegError, TopicExists, TopicNotFound, Unavailable
from talweg.http import HttpClient
from talweg.manager.follower import Follower
from talweg.manager.writer import Writer
from talweg.metadata import Assignment, BrokerStatus, Replica, Topic, TopicSettings
from talweg.protocol.control import GroupAnswer, GroupReport, PartitionAssignment

_ASK_SECONDS_MAX = 2.0
_ASKED_AT_ONCE = 32
_HEARD_SECONDS_MAX = 5.0  # for active brokers to say what they lead; then some of them are not there
_UNKNOWN_MAX = 100_000  # groups; more are looked at when these are known

_log = logging.getLogger("talweg.manager")


class Restoring:
    """Belongs to the primary."""

    def __init__(self, follower: Follower, writer: Writer, client: HttpClient) -> None:
        self._follower = follower
        self._writer = writer
        self._client = client
        self._leaders: dict[int, tuple[int, GroupReport]] = {}  # by group: who leads what nobody knows
        self._told: dict[int, PartitionAssignment] = {}  # by group
        self._refused: set[int] = set()  # topics that cannot be restored; said once
        self._taken: dict[int, str] = {}  # topics whose name another one has for now; said once
        self._heard: set[int] = (
            set()
        )  # brokers that have said what they lead, since something may be forgotten
        self._heard_more = asyncio.Event()

    def hear(self, broker: int, report: GroupReport) -> bool:
        """A broker leads that group; whether that is news, and the group unknown."""
        group = report.group
        if group in self._follower.groups or self._follower.is_removed(group):
            return False
        news = group not in self._leaders
        if news and len(self._leaders) >= _UNKNOWN_MAX:
            return False
        self._leaders[group] = broker, report
        return news

    def heard_all(self, broker: int) -> None:
        """A broker has said everything that it leads."""
        if broker not in self._heard:
            self._heard.add(broker)
            self._heard_more.set()

    def doubt(self) -> None:
        """The store has forgotten something: what else it has forgotten, only brokers know."""
        self._heard.clear()

    def forget(self) -> None:
        """Begin again: another was the primary meanwhile."""
        self._leaders.clear()
        self._told.clear()
        self._refused.clear()
        self._taken.clear()
        self.doubt()

    async def wait_until_known(self) -> None:
        """Returns when everything is entered again that active brokers lead, or could not be.

        Who finds a topic forgotten creates it again, and is often quicker than the brokers' next heartbeats.
        Then the new topic would have the name, and neither of the two could be used.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARD_SECONDS_MAX):
                while self._unheard():
                    self._heard_more.clear()
                    await self._heard_more.wait()
        if self._leaders:
            await self.ask()
            async with self._writer.deciding:
                await self.restore()

    def check_free(self, name: str) -> None:
        """Raise Unavailable if brokers lead a topic of that name, which is yet to be entered again."""
        if any(told.topic == name for told in self._told.values()):
            raise Unavailable(
                f"topic {name} was forgotten by the metadata store, and is about to be restored"
            )

    def _unheard(self) -> bool:
        brokers = self._follower.copy.brokers.values()
        return any(b.status is BrokerStatus.ACTIVE and b.id not in self._heard for b in brokers)

    async def ask(self) -> None:
        """Ask leaders what their unknown groups are."""
        for group in [g for g in self._leaders if g in self._follower.groups or self._follower.is_removed(g)]:
            del self._leaders[group]  # it was only a moment too new for the copy
            self._told.pop(group, None)
        missing = [(group, broker) for group, (broker, _) in self._leaders.items() if group not in self._told]
        for start in range(0, len(missing), _ASKED_AT_ONCE):
            at_once = missing[start : start + _ASKED_AT_ONCE]
            await asyncio.gather(*(self._ask(group, broker) for group, broker in at_once))

    async def restore(self) -> bool:
        """Enter every topic of which all partitions are known; whether there was one."""
        restored = False
        names = self._follower.copy.topics
        self._taken = {first: name for first, name in self._taken.items() if name in names}
        unknown = {told.group - told.partition for told in self._told.values()}
        for first in unknown - self._refused - self._taken.keys():
            restored |= await self._restore(first)
        return restored

    async def _ask(self, group: int, broker: int) -> None:
        endpoint = self._follower.endpoint(broker)
        if endpoint is None:
            return
        try:
            answer = await self._client.call(
                endpoint, "GET", f"/groups/{group}", GroupAnswer, seconds_max=_ASK_SECONDS_MAX
            )
        except GroupNotFound:
            return
        except TalwegError as error:
            _log.info("broker %d does not say what group %d is: %s", broker, group, error)
            return
        self._told[group] = answer.assignment

    async def _restore(self, first: int) -> bool:
        known = next(told for told in self._told.values() if told.group - told.partition == first)
        groups = range(first, first + known.partitions)
        if not all(group in self._told and group in self._leaders for group in groups):
            return False
        told = [self._told[group] for group in groups]
        topic = restored_topic(told[0])
        assignments = [restored_assignment(each, self._leaders[each.group][1]) for each in told]
        try:
            await self._writer.write(
                lambda store, epoch: store.restore_topic(topic, assignments, epoch=epoch)
            )
        except TopicExists as error:
            _log.warning("topic %s cannot be restored until that one is deleted: %s", topic.name, error)
            self._taken[first] = topic.name
            return False
        except TopicNotFound as error:
            _log.warning("topic %s cannot be restored: %s", topic.name, error)
            self._refused.add(first)
            return False
        for group in groups:
            del self._told[group], self._leaders[group]
        _log.warning("topic %s was forgotten by the metadata store, and is restored", topic.name)
        return True


def restored_topic(told: PartitionAssignment) -> Topic:
    """A topic, from what a broker was told of one of its partitions."""
    return Topic(
        name=told.topic,
        incarnation=told.group - told.partition,
        partitions=told.partitions,
        replication=told.replication,
        settings=TopicSettings(retention_ms=told.retention_ms, retention_bytes=told.retention_bytes),
        created_us=told.created_us,
    )


def restored_assignment(told: PartitionAssignment, report: GroupReport) -> Assignment:
    """An assignment that wishes for what is. A move that was under way is ended, one way or the other."""
    order = {broker: place for place, broker in enumerate(told.voters)}
    voters = sorted(report.voters, key=lambda broker: (order.get(broker, len(order)), broker))
    steady = len(voters) == told.replication and not report.learners
    return Assignment(
        topic=told.topic,
        partition=told.partition,
        incarnation=told.group,
        replicas=tuple(Replica(broker) for broker in voters),
        target=() if steady else tuple(voters[: told.replication]),
    )
