"""A consumer's work in its event loop: where to begin, reading ahead, positions that are committed.

The consumers that people hold (`Consumer`, `AsyncConsumer`) differ only in how they wait.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from talweg.client.cluster import Cluster
from talweg.client.consumer_settings import ConsumerSettings
from talweg.client.fetching import Fetching
from talweg.client.hand import Hand
from talweg.client.message import Place
from talweg.client.offsets import At, commit_position_or_first, ends_of, offsets_at, position_of
from talweg.client.prefetched import NOWHERE, Ends
from talweg.client.servers import Servers
from talweg.errors import (
    BadRequest,
    InvalidSetting,
    PartitionNotFound,
    TalwegError,
    TopicNotFound,
    Unavailable,
)
from talweg.protocol.control import TopicMetadata

_log = logging.getLogger("talweg.client")

_AT_ONCE_MAX: Final = 64  # requests about positions
_CLOSE_SECONDS_MAX: Final = 10.0  # for the last commit


class Consuming:
    """Lives in one event loop. `hand` is for whoever consumes, perhaps in another thread."""

    def __init__(self, settings: ConsumerSettings, servers: Servers, *, decode_in_thread: bool) -> None:
        self._settings = settings
        self._cluster = Cluster(servers)
        self._fetching = Fetching(
            self._cluster, settings, decode_in_thread=decode_in_thread, made_again=self._begin_to_follow
        )
        self.prefetched = self._fetching.prefetched
        self.hand = Hand(self.prefetched, settings.max_poll_records)
        self.assignment: tuple[Place, ...] = ()
        self._groups: dict[Place, int] = {}  # incarnations that are read
        self._committed: dict[Place, int] = {}  # positions as they are known to be
        self._sought: set[Place] = set()  # whose position may go back with the next commit
        self._committing = asyncio.Lock()
        self._asking = asyncio.Semaphore(_AT_ONCE_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def _seconds_max(self) -> float:
        return self._settings.api_seconds_max

    async def start(self) -> None:
        """Find out where to begin, and begin. Raises TopicNotFound and PartitionNotFound."""
        try:
            for name in self._settings.topics:
                await self._open_topic(await self._cluster.fresh_topic(name, seconds_max=self._seconds_max))
        except TopicNotFound as error:
            raise TopicNotFound(
                f"{error}: create it first, or let a producer do so by sending to it"
            ) from None
        if self._settings.group is not None and self._settings.enable_auto_commit:
            self._tasks["commit"] = asyncio.get_running_loop().create_task(self._commit_now_and_then())

    async def close(self, *, clean: bool) -> None:
        """Stop. With automatic commits, commit what is finished; when it ends cleanly, all handed out."""
        await self._fetching.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if "commit" in self._tasks:
                async with asyncio.timeout(min(_CLOSE_SECONDS_MAX, self._seconds_max)):
                    await self.commit(all_handed_out=clean)
        except TimeoutError:
            raise Unavailable(
                "the consumer is closed, but its last positions could not be committed in time: whoever goes "
                "on with the group is given some messages again"
            ) from None
        finally:
            await self._cluster.close()

    # Topics

    async def _open_topic(self, topic: TopicMetadata) -> None:
        numbers = self._numbers(topic)
        starts = await self._starts(topic.topic, numbers)
        for number in numbers:
            place = (topic.topic, number)
            self._groups[place] = topic.incarnation + number
            self.hand.move(place, starts[number])
            self._fetching.open(place, topic.incarnation + number, starts[number])
        self.assignment = tuple(sorted(self._groups))

    def _numbers(self, topic: TopicMetadata) -> list[int]:
        numbers = list(self._settings.partitions.get(topic.topic, range(len(topic.partitions))))
        for number in numbers:
            if number >= len(topic.partitions):
                raise PartitionNotFound(
                    f"topic {topic.topic} has no partition {number}, only 0 to {len(topic.partitions) - 1}"
                )
        return numbers

    async def _starts(self, topic: str, numbers: list[int]) -> dict[int, int | None]:
        """Where to begin: what is committed, or as `auto_offset_reset` says; None if that is 'none'."""
        starts: dict[int, int | None] = dict.fromkeys(numbers)
        if self._settings.group is not None:
            places = [(topic, number) for number in numbers]
            for place, position in (await self._ask_positions(self._settings.group, places)).items():
                starts[place[1]] = position
                if position is not None:
                    self._committed[place] = position
        new = [number for number, position in starts.items() if position is None]
        reset = self._settings.auto_offset_reset
        if new and reset != "none":
            starts |= await offsets_at(self._cluster, topic, new, reset, seconds_max=self._seconds_max)
        return starts

    async def _ask_positions(self, group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        async def ask(place: Place) -> tuple[Place, int | None]:
            async with self._asking:
                return place, await position_of(self._cluster, group, *place, seconds_max=self._seconds_max)

        return dict(await asyncio.gather(*(ask(place) for place in places)))

    def _begin_to_follow(self, topic: str) -> None:
        """It was deleted and made again."""
        task = self._tasks.get(topic_task := f"topic {topic}")
        if task is None or task.done():
            self._tasks[topic_task] = asyncio.get_running_loop().create_task(self._follow(topic))

    async def _follow(self, name: str) -> None:
        _log.warning("topic %s was deleted and made again: what was not read of the old one is gone", name)
        old = {place: group for place, group in self._groups.items() if place[0] == name}
        for place in old:
            self._fetching.stop(place)
            self.prefetched.remove(place)
            self.hand.move(place, None)
            self._committed.pop(place, None)
            self._groups.pop(place)
        try:
            await self._open_topic(await self._cluster.fresh_topic(name, seconds_max=self._seconds_max))
        except Exception:  # noqa: BLE001 - the readers of the old one will say what is wrong, and try again
            for place, group in old.items():
                self._groups[place] = group
                self._fetching.open(place, group, 0)
            self.assignment = tuple(sorted(self._groups))

    # Where it is

    def check(self, topic: str, partition: int) -> Place:
        """A partition that is read here; raises BadRequest."""
        place = (topic, partition)
        if place not in self._groups:
            raise BadRequest(f"partition {partition} of topic {topic} is not read by this consumer")
        return place

    def position(self, place: Place) -> int | None:
        """The offset of the next message to be handed out; None if that is not known yet."""
        held = self.hand.position(place)
        found = self.prefetched.positions()[place] if held is None else held
        return None if found == NOWHERE else found

    def buffered(self) -> dict[Place, int]:
        """How many messages were read ahead and not handed out, by partition."""
        return {place: count + self.hand.count(place) for place, count in self.prefetched.counts().items()}

    async def seek(self, places: Iterable[Place], at: At) -> None:
        """Read from elsewhere. Raises OffsetOutOfRange if it is not there."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in places:
            by_topic.setdefault(topic, []).append(number)
        for topic, numbers in by_topic.items():
            found = await offsets_at(self._cluster, topic, numbers, at, seconds_max=self._seconds_max)
            async with self._committing:
                for number, offset in found.items():
                    self._sought.add((topic, number))
                    self.hand.move((topic, number), offset)
                    self._fetching.seek((topic, number), offset)

    async def ends(self) -> dict[Place, int]:
        """Behind the last message of every partition, as it is now."""
        return {
            (topic, number): offset
            for topic in self._settings.topics
            for number, offset in (
                await offsets_at(
                    self._cluster, topic, self._read_of(topic), "latest", seconds_max=self._seconds_max
                )
            ).items()
        }

    def is_before(self, ends: Ends) -> bool:
        """Whether something before these ends was not handed out; what is paused does not count."""
        paused, positions = self.prefetched.paused(), self.prefetched.positions()
        return self.hand.holds_messages or any(
            positions.get(place, end) < end for place, end in ends.items() if place not in paused
        )

    async def lag(self) -> dict[Place, int]:
        """How many messages there are that were not handed out."""
        left: dict[Place, int] = {}
        for topic in self._settings.topics:
            numbers = self._read_of(topic)
            first, behind = await ends_of(self._cluster, topic, numbers, seconds_max=self._seconds_max)
            for number in numbers:
                position = self.position((topic, number)) or 0
                left[topic, number] = max(behind[number] - max(position, first[number]), 0)
        return left

    def _read_of(self, topic: str) -> list[int]:
        return [number for name, number in self.assignment if name == topic]

    # Positions that are committed

    async def committed(self, place: Place) -> int | None:
        """The group's position, as the partition's leader knows it."""
        return (await self._ask_positions(self._group(), [place]))[place]

    def _group(self) -> str:
        if self._settings.group is None:
            raise InvalidSetting(
                "group: positions are committed for a group, as in Consumer('logs', group='g')"
            )
        return self._settings.group

    async def commit(self, *, all_handed_out: bool) -> None:
        """Commit what is finished with, or everything that was handed out. Raises what leaders say."""
        group = self._group()
        async with self._committing:
            wanted = self.hand.finished(all_handed_out=all_handed_out)
            changed = {place: at for place, at in wanted.items() if self._committed.get(place) != at}
            outcomes = await asyncio.gather(
                *(self._commit(group, place, at) for place, at in changed.items()), return_exceptions=True
            )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _commit(self, group: str, place: Place, offset: int) -> None:
        seek = place in self._sought
        async with self._asking:
            await commit_position_or_first(
                self._cluster, group, *place, offset, seek=seek, seconds_max=self._seconds_max
            )
        self._committed[place] = offset
        self._sought.discard(place)

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self.commit(all_handed_out=False)
            except TalwegError as error:
                _log.warning("positions could not be committed, which is tried again: %s", error)
