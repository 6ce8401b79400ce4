"""A consumer's work in its event loop: where to begin, reading ahead, positions that are committed.

The consumers that people hold (`Consumer`, `AsyncConsumer`) differ only in how they wait.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from talweg.client.cluster import PAUSE_SECONDS_MAX, Cluster, Pause
from talweg.client.consumer_settings import ConsumerSettings
from talweg.client.fetching import Fetching, gone
from talweg.client.hand import Hand
from talweg.client.message import Place
from talweg.client.offsets import (
    At,
    End,
    commit_position_or_first,
    ends_of,
    offsets_at,
    position_of,
    replaced,
)
from talweg.client.prefetched import NOWHERE, Ends
from talweg.client.servers import Servers
from talweg.errors import (
    BadRequest,
    Closed,
    InvalidSetting,
    PartitionNotFound,
    TalwegError,
    TopicNotFound,
    TopicReplaced,
    Unavailable,
)
from talweg.protocol.control import TopicMetadata

_log = logging.getLogger("talweg.client")

_AT_ONCE_MAX: Final = 64  # requests about positions
_CLOSE_SECONDS_MAX: Final = 10.0  # for the last commit
_FAILED_SECONDS_MAX: Final = 5.0  # for the same after an exception, which somebody waits to see


class Consuming:
    """Lives in one event loop. `hand` is for whoever consumes, perhaps in another thread."""

    def __init__(self, settings: ConsumerSettings, servers: Servers, *, decode_in_thread: bool) -> None:
        self.loop = asyncio.get_running_loop()
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
        self._left: dict[str, int] = {}  # topics that were made again: the incarnation that is no more
        self._closing = False
        self._committing = asyncio.Lock()
        self._asking = asyncio.Semaphore(_AT_ONCE_MAX)
        self._committer: asyncio.Task[None] | None = None  # of those that are committed automatically
        self._following: dict[str, asyncio.Task[Exception | None]] = {}  # topics that were made again

    @property
    def _seconds_max(self) -> float:
        return self._settings.api_seconds_max

    async def start(self) -> None:
        """Find out where to begin, and begin. Raises TopicNotFound and PartitionNotFound."""
        try:
            for name in self._settings.topics:
                await self._open_newest(name)
        except TopicReplaced:
            raise
        except TopicNotFound as error:
            raise TopicNotFound(
                f"{error}: create it first, or let a producer do so by sending to it"
            ) from None
        if self._settings.group is not None and self._settings.enable_auto_commit:
            self._committer = self.loop.create_task(self._commit_now_and_then())

    async def close(self, *, clean: bool) -> None:
        """Stop. With automatic commits, commit what is finished; when it ends cleanly, all handed out. If it
        does not, what goes wrong is only said: whoever sees an exception of its own should see no other."""
        self._closing = True
        self.hand.close()  # what is handed out from now on would be given again
        try:
            await self._stop()
            if self._committer is not None:
                await self._commit_last(clean=clean)
        except TalwegError as error:
            if clean:
                raise
            _log.warning("%s", error)
        finally:
            await self._cluster.close()

    async def _stop(self) -> None:
        await self._fetching.close()
        tasks: list[asyncio.Task[Any]] = list(self._following.values())
        tasks += [self._committer] if self._committer is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _commit_last(self, *, clean: bool) -> None:
        seconds_max = min(_CLOSE_SECONDS_MAX if clean else _FAILED_SECONDS_MAX, self._seconds_max)
        try:
            async with asyncio.timeout(seconds_max):
                await self.commit(all_handed_out=clean)
        except TimeoutError:
            raise Unavailable(
                "the consumer is closed, but its last positions could not be committed in time: whoever goes "
                "on with the group is given some messages again"
            ) from None

    # Topics

    async def _open_newest(self, name: str) -> None:
        """Open a topic as it is now. Some managers may not know as yet that it is another one."""
        pause = Pause(self._cluster, self._seconds_max)
        while True:
            topic = await self._cluster.fresh_topic(name, seconds_max=self._seconds_max)
            try:
                if topic.incarnation <= self._left.get(name, -1):
                    raise replaced(name)
                await self._open_topic(topic)
                return
            except TopicReplaced as error:
                await pause.wait(error)

    async def _open_topic(self, topic: TopicMetadata) -> None:
        numbers = self._numbers(topic)
        starts = await self._starts(topic, numbers)
        if self._closing:
            raise Closed("the consumer is closed")
        for number in numbers:
            place, group = (topic.topic, number), topic.incarnation + number
            self._groups[place] = group
            self.hand.move(place, starts[number], group)
            self._fetching.open(place, group, starts[number])
        self.assignment = tuple(sorted(self._groups))

    def _numbers(self, topic: TopicMetadata) -> list[int]:
        numbers = list(self._settings.partitions.get(topic.topic, range(len(topic.partitions))))
        for number in numbers:
            if number >= len(topic.partitions):
                raise PartitionNotFound(
                    f"topic {topic.topic} has no partition {number}, only 0 to {len(topic.partitions) - 1}"
                )
        return numbers

    async def _starts(self, topic: TopicMetadata, numbers: list[int]) -> dict[int, int | None]:
        """Where to begin: what is committed, or as `auto_offset_reset` says; None if that is 'none'."""
        starts: dict[int, int | None] = dict.fromkeys(numbers)
        if self._settings.group is not None:
            places = {(topic.topic, number): topic.incarnation + number for number in numbers}
            for place, position in (await self._ask_positions(self._settings.group, places)).items():
                starts[place[1]] = position
                if position is not None:
                    self._committed[place] = position
        new = [number for number, position in starts.items() if position is None]
        reset = self._settings.auto_offset_reset
        if new and reset != "none":
            starts |= await offsets_at(
                self._cluster,
                topic.topic,
                new,
                reset,
                incarnation=topic.incarnation,
                seconds_max=self._seconds_max,
            )
        return starts

    async def _ask_positions(self, group: str, places: Mapping[Place, int | None]) -> dict[Place, int | None]:
        """In the incarnations that are named; None: in whichever is there."""

        async def ask(place: Place, incarnation: int | None) -> tuple[Place, int | None]:
            async with self._asking:
                return place, await position_of(
                    self._cluster, group, *place, incarnation=incarnation, seconds_max=self._seconds_max
                )

        return dict(await asyncio.gather(*(ask(place, meant) for place, meant in places.items())))

    def _begin_to_follow(self, topic: str) -> None:
        """It was deleted and made again."""
        task = self._following.get(topic)
        if not self._closing and (task is None or task.done()):
            self._following[topic] = self.loop.create_task(self._follow(topic))

    def _incarnation(self, topic: str) -> int | None:
        """Of a topic that is read; None while the next one is looked for."""
        groups = (group - number for (name, number), group in self._groups.items() if name == topic)
        return next(groups, None)

    async def _follow(self, name: str) -> Exception | None:
        """Read the new one instead; returns why that cannot be."""
        before = self._incarnation(name)
        assert before is not None, "nothing of it is read"
        if self._left.get(name) == before:
            await asyncio.sleep(
                PAUSE_SECONDS_MAX
            )  # it was tried, and whoever consumes was told what is wrong
        else:
            _log.warning(
                "topic %s was deleted and made again: what was not read of the old one is gone", name
            )
        self._left[name] = before
        old = {place: group for place, group in self._groups.items() if place[0] == name}
        for place in old:
            self._fetching.stop(place)
            self.prefetched.remove(place)
            self.hand.move(place, None)
            self._committed.pop(place, None)
            self._sought.discard(place)
            self._groups.pop(place)
        try:
            await self._open_newest(name)
            return None
        except Exception as error:  # noqa: BLE001 - whoever consumes is told, and then it is tried again
            told = gone(error) if type(error) is TopicNotFound else error
            for place, group in old.items():
                self._groups[place] = group
                self._fetching.open(place, group, 0, error=told)
            return told

    # Where it is

    def check(self, topic: str, partition: int) -> Place:
        """A partition that is read here; raises BadRequest."""
        place = (topic, partition)
        if place not in self._groups and place not in self.assignment:
            raise BadRequest(f"partition {partition} of topic {topic} is not read by this consumer")
        return place

    def position(self, place: Place) -> int | None:
        """The offset of the next message to be handed out; None if that is not known yet."""
        held = self.hand.position(place)
        found = self.prefetched.positions().get(place, NOWHERE) if held is None else held
        return None if found == NOWHERE else found

    def buffered(self) -> dict[Place, int]:
        """How many messages were read ahead and not handed out, by partition."""
        return {place: count + self.hand.count(place) for place, count in self.prefetched.counts().items()}

    async def seek(self, places: Iterable[Place], at: At) -> None:
        """Read from elsewhere. Raises OffsetOutOfRange if it is not there, and TopicReplaced if the topic is
        another one by now."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in places:
            by_topic.setdefault(topic, []).append(number)
        for topic, numbers in by_topic.items():
            incarnation = self._incarnation(topic)
            try:
                found = await offsets_at(
                    self._cluster, topic, numbers, at, incarnation=incarnation, seconds_max=self._seconds_max
                )
            except TopicReplaced:
                self._begin_to_follow(topic)
                raise
            async with self._committing:
                if incarnation is None or self._incarnation(topic) != incarnation:
                    raise replaced(topic)
                for number, offset in found.items():
                    self._sought.add((topic, number))
                    self.hand.move((topic, number), offset, incarnation + number)
                    self._fetching.seek((topic, number), offset)

    async def ends(self) -> Ends:
        """Behind the last message of every partition, as it is now."""
        found: dict[Place, End] = {}
        for topic in self._settings.topics:
            incarnation, _, behind = await self._ends_of(topic)
            found |= {(topic, number): End(at, incarnation + number) for number, at in behind.items()}
        return found

    async def _ends_of(self, topic: str) -> tuple[int, dict[int, int], dict[int, int]]:
        """The incarnation of a topic that is read, and where its partitions begin and end. If it is another
        one by now, that is followed first."""
        pause = Pause(self._cluster, self._seconds_max)
        while True:
            incarnation = self._incarnation(topic)
            try:
                first, behind = await ends_of(
                    self._cluster,
                    topic,
                    self._read_of(topic),
                    incarnation=incarnation,
                    seconds_max=self._seconds_max,
                )
            except TopicReplaced:
                self._begin_to_follow(topic)
            else:
                if incarnation is not None and self._incarnation(topic) == incarnation:
                    return incarnation, first, behind
            if topic in self._following:
                await asyncio.wait([following := self._following[topic]])
                if following.done() and not following.cancelled() and (error := following.result()):
                    raise error
            await pause.wait(replaced(topic))

    def is_before(self, ends: Ends) -> bool:
        """Whether something before these ends was not handed out; what is paused does not count."""
        return self.hand.holds_messages or self.prefetched.is_before(ends)

    def pause(self, place: Place) -> None:
        """Hand out nothing of a partition, also not what is in hand."""
        self.prefetched.pause(place, paused=True)
        self.hand.put_back(place)

    async def lag(self) -> dict[Place, int]:
        """How many messages there are that were not handed out."""
        left: dict[Place, int] = {}
        for topic in self._settings.topics:
            _, first, behind = await self._ends_of(topic)
            for number, end in behind.items():
                position = self.position((topic, number)) or 0
                left[topic, number] = max(end - max(position, first[number]), 0)
        return left

    def _read_of(self, topic: str) -> list[int]:
        return [number for name, number in self.assignment if name == topic]

    # Positions that are committed

    async def committed(self, place: Place) -> int | None:
        """The group's position, as the partition's leader knows it."""
        return (await self._ask_positions(self._group(), {place: None}))[place]

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
                *(self._commit(group, place, at, self._groups[place]) for place, at in changed.items()),
                return_exceptions=True,
            )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _commit(self, group: str, place: Place, offset: int, incarnation: int) -> None:
        seek = place in self._sought
        try:
            async with self._asking:
                await commit_position_or_first(
                    self._cluster,
                    group,
                    *place,
                    offset,
                    seek=seek,
                    incarnation=incarnation,
                    seconds_max=self._seconds_max,
                )
        except TopicReplaced:
            # The position went with the old topic, and nothing was read of the new one as yet.
            if self._groups.get(place) == incarnation:
                self._begin_to_follow(place[0])
            return
        if self._groups.get(place) == incarnation:
            self._committed[place] = offset
            self._sought.discard(place)

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self.commit(all_handed_out=False)
            except TalwegError as error:
                _log.warning("positions could not be committed, which is tried again: %s", error)
