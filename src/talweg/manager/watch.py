"""The primary's watch over the brokers: who lives, what moves, what is to be carried where.

Everything is decided anew at each look, from the copy and from what leaders report. Nothing is a command
that could be lost: a look that failed is made up for by the next.
"""

import asyncio
import contextlib
import logging
import time
from typing import Final

import msgspec

from talweg.errors import BrokerNotFound, StaleVersion, TalwegError
from talweg.http import HttpClient
from talweg.manager.clients import Heartbeats
from talweg.manager.follower import Follower
from talweg.manager.health import Health
from talweg.manager.leaders import Leaders
from talweg.manager.lease import LeaseKeeper
from talweg.manager.nudging import Nudging
from talweg.manager.restoring import Restoring
from talweg.manager.wishes import Wishes
from talweg.manager.writer import Writer
from talweg.metadata import (
    Assignment,
    Broker,
    BrokerStatus,
    MemberKind,
    Plan,
    Report,
    next_step,
    plan_replacement,
)
from talweg.protocol.control import BrokerFace, GroupReport, Heartbeat, HeartbeatAnswer

MOVES_MAX: Final = 8  # partitions that move at once
_LOOK_SECONDS_MAX: Final = 1.0  # for a broker to say who it is
_LOOKS_AT_ONCE: Final = 32
_HELD_UP_SECONDS: Final = 0.5  # late by this much, the watch itself was not awake
_BREATH_SECONDS: Final = 0.02  # between two looks at everything, however much there is to hear

_log = logging.getLogger("talweg.manager")


class Watch:
    """Hears heartbeats, and acts on them while the lease is held."""

    def __init__(
        self,
        follower: Follower,
        leaders: Leaders,
        lease: LeaseKeeper,
        writer: Writer,
        *,
        heartbeats: Heartbeats,
        nudging: Nudging,
        restoring: Restoring,
        client: HttpClient,
        health: Health,
        health_seconds: float,
        replace_seconds: float,
        partitions_max: int,
    ) -> None:
        self._follower = follower
        self._leaders = leaders
        self._lease = lease
        self._writer = writer
        self._heartbeats = heartbeats
        self._nudging = nudging
        self._client = client
        self._health = health
        self._health_seconds = health_seconds
        self._replace_seconds = replace_seconds
        self._partitions_max = partitions_max
        self._wishes = Wishes(follower)
        self._restoring = restoring
        self._reports: dict[int, GroupReport] = {}  # by group: the word of who leads in the highest term
        self._woken = asyncio.Event()
        follower.listen(self._placement_changed)

    # Hearing

    async def begin(self) -> None:
        """Be the watch of a new primary, which has heard nothing yet. The copy is up to date."""
        known = {broker.id: broker.last_heartbeat_us for broker in self._follower.copy.brokers.values()}
        last = await self._heartbeats.last(MemberKind.BROKER, known)
        now_us = time.time_ns() // 1000
        self._health.begin({broker: max(0.0, (now_us - at) / 1e6) for broker, at in last.items()})
        self._reports.clear()
        self._restoring.forget()
        self._nudging.nudge_all()  # until they have said what they lead, no topic is created
        self.wake()

    def wake(self) -> None:
        """There is something to be done: look now."""
        self._woken.set()

    def hear(self, broker: Broker) -> None:
        """It has registered: it lives."""
        self._health.hear(broker.id)
        self.wake()

    async def find(self, number: int) -> Broker:
        """A broker; raises BrokerNotFound, or MetadataUnavailable when that cannot be known."""
        broker = self._follower.copy.brokers.get(number)
        if broker is None:
            await self._follower.follow()
            broker = self._follower.copy.brokers.get(number)
        if broker is None:
            raise BrokerNotFound(f"there is no broker {number}")
        return broker

    def learn(self, heartbeat: Heartbeat) -> None:
        """Who leads what. Any manager may learn that."""
        for report in heartbeat.leads:
            self._leaders.report(report.group, heartbeat.broker_id, report.term)

    def answer(self, broker: Broker, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """What the broker should carry. Raises LeaseLost."""
        epoch = self._lease.epoch
        self._health.hear(broker.id)
        self._heartbeats.hear(MemberKind.BROKER, broker.id)
        news = broker.status is BrokerStatus.INACTIVE
        for report in heartbeat.leads:
            before = self._reports.get(report.group)
            if before is None or report.term >= before.term:
                self._reports[report.group] = report
            assignment = self._follower.groups.get(report.group)
            if assignment is None:
                news |= self._restoring.hear(broker.id, report)
            elif assignment.target:
                news = True
        self._restoring.heard_all(broker.id)
        if news:
            self.wake()
        version = self._follower.placement_version
        changed = (heartbeat.epoch, heartbeat.version) != (epoch, version)
        removed = self._wishes.removed(broker.id, heartbeat.carries, self._reports)
        staying = set(heartbeat.carries).difference(removed)
        return HeartbeatAnswer(
            epoch=epoch,
            version=version,
            peers=self._wishes.peers(),
            assignments=self._wishes.of(broker.id, staying) if changed else None,
            removed=removed,
        )

    # Looking

    async def run(self) -> None:
        """Look at everything, every so often and when there is news, for ever."""
        while True:
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which may forget that it was cancelled (see the broker's heart).
                async with asyncio.timeout(self._health_seconds):
                    await self._woken.wait()
            self._woken.clear()
            if time.monotonic() - began > self._health_seconds + _HELD_UP_SECONDS:
                self._health.listen_again()  # we were held up ourselves: what came meanwhile is still unread
            if self._lease.holds:
                await self._try_to_look()
            await asyncio.sleep(_BREATH_SECONDS)

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except StaleVersion:
            self.wake()  # decided from what is no longer so: once more
        except TalwegError as error:
            _log.warning("the watch over the brokers: %s", error)
        except Exception:  # noqa: BLE001 - logged, and made up for by the next look
            _log.exception("the watch over the brokers failed")

    async def look(self) -> None:
        """Look once. Raises LeaseLost, StaleVersion and MetadataUnavailable."""
        await self._look_at_the_silent()
        changed = await self._settle_statuses()
        await self._restoring.ask()
        async with self._writer.deciding:
            changed |= await self._begin_moves()
            changed |= await self._make_steps()
            changed |= await self._finish_drained()
            changed |= await self._restoring.restore()
        if changed:
            self._nudging.nudge_all()

    async def _look_at_the_silent(self) -> None:
        brokers = self._follower.copy.brokers
        watched = [broker.id for broker in brokers.values() if broker.status is not BrokerStatus.REMOVED]
        silent = self._health.silent(watched)
        for start in range(0, len(silent), _LOOKS_AT_ONCE):
            at_once = silent[start : start + _LOOKS_AT_ONCE]
            await asyncio.gather(*(self._look_at(brokers[broker]) for broker in at_once))

    async def _look_at(self, broker: Broker) -> None:
        try:
            face = await self._client.call(
                broker.endpoint, "GET", "/", BrokerFace, seconds_max=_LOOK_SECONDS_MAX
            )
        except TalwegError:
            self._health.look_failed(broker.id)
            return
        if face.incarnation != broker.incarnation:
            self._health.look_failed(broker.id)  # another lives there now
            return
        self._health.look_succeeded(broker.id)
        self._nudging.nudge([broker.id])

    async def _settle_statuses(self) -> bool:
        changed = False
        for broker in list(self._follower.copy.brokers.values()):
            if broker.status is BrokerStatus.ACTIVE and self._health.misses(broker.id):
                _log.warning("broker %d is inactive: it misses its heartbeats", broker.id)
                await self.set_status(broker, BrokerStatus.INACTIVE)
                changed = True
            elif broker.status is BrokerStatus.INACTIVE and self._health.is_heard(broker.id):
                _log.info("broker %d is active again", broker.id)
                await self.set_status(broker, BrokerStatus.ACTIVE)
                changed = True
        return changed

    async def set_status(self, broker: Broker, status: BrokerStatus) -> None:
        """Write it down. Raises StaleVersion."""
        updated = msgspec.structs.replace(broker, status=status)
        await self._writer.write(lambda store, epoch: store.update_broker(updated, epoch=epoch))

    # Moving

    def plan(self, *, leaving: int | None = None) -> Plan:
        """Where the partitions of those that leave would go; also of one that is about to."""
        copy = self._follower.copy
        all_leaving = {broker.id for broker in copy.brokers.values() if self._leaves(broker)}
        if leaving is not None:
            all_leaving.add(leaving)
        return plan_replacement(
            self._follower.groups.values(),
            copy.brokers.values(),
            all_leaving,
            moves_max=MOVES_MAX,
            partitions_max=self._partitions_max,
        )

    def _leaves(self, broker: Broker) -> bool:
        if broker.status in (BrokerStatus.INACTIVE, BrokerStatus.DEACTIVATED):
            # Both, because it may be we who were away for so long.
            gone_seconds = self._health.gone_seconds(broker.id)
            return self._health.misses(broker.id) and gone_seconds >= self._replace_seconds
        return broker.status is BrokerStatus.DRAINING

    async def _begin_moves(self) -> bool:
        if not any(self._leaves(broker) for broker in self._follower.copy.brokers.values()):
            return False
        return await self._update(self.plan().moves)

    async def _make_steps(self) -> bool:
        steps = []
        for assignment in self._follower.groups.values():
            report = self._reports.get(assignment.incarnation) if assignment.target else None
            if report is not None:
                step = next_step(assignment, _as_report(report))
                if step != assignment:
                    steps.append(step)
        return await self._update(tuple(steps))

    async def _update(self, assignments: tuple[Assignment, ...]) -> bool:
        if assignments:
            await self._writer.write(lambda store, epoch: store.update_assignments(assignments, epoch=epoch))
        return bool(assignments)

    async def _finish_drained(self) -> bool:
        draining = [b for b in self._follower.copy.brokers.values() if b.status is BrokerStatus.DRAINING]
        if not draining:
            return False
        carrying = {broker for each in self._follower.groups.values() for broker in each.brokers}
        for broker in draining:
            if broker.id not in carrying:
                _log.info("broker %d carries nothing any more and is removed", broker.id)
                await self.set_status(broker, BrokerStatus.REMOVED)
        return False

    def _placement_changed(self) -> None:
        groups = self._follower.groups
        self._leaders.keep(groups)
        for group in [group for group in self._reports if group not in groups]:
            del self._reports[group]
            if not self._follower.is_removed(group):
                self._restoring.doubt()


def _as_report(report: GroupReport) -> Report:
    return Report(frozenset(report.voters), frozenset(report.learners), frozenset(report.caught_up))
