"""The cluster as a client sees it: managers that answer, topics as they are, and who leads each partition.

Everything a client says to the cluster goes through here. Any manager may be asked anything; a partition's
leader is found by the metadata, corrected by what brokers say, and looked for among its replicas when it is
gone. What may be repeated is repeated, with pauses, until a deadline.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from talweg.client.message import check_topic
from talweg.client.servers import VARIABLE, Servers, read_servers
from talweg.errors import (
    GroupNotFound,
    InvalidSetting,
    NotLeader,
    PartitionNotFound,
    PathNotFound,
    TalwegError,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.http import HttpClient, HttpResponse
from talweg.protocol.control import BrokerFace, Metadata, PartitionMetadata, TopicMetadata

A = TypeVar("A")

PAUSE_SECONDS: Final = 0.02  # before the first repetition; doubles with each
PAUSE_SECONDS_MAX: Final = 0.5
ATTEMPT_SECONDS_MAX: Final = 5.0  # for one answer: a server that is paused keeps its connections
_REFRESH_SECONDS_MIN: Final = 0.05  # between two looks at the metadata
_MANAGERS_MAX: Final = 64  # that are learned of
_FACE_SECONDS_MAX: Final = 1.0  # for a server to say who it is
_HINTS_MAX: Final = 2  # that are followed without a pause

# Nothing was done, so asking again, or elsewhere, is safe even for what must not be done twice.
SURELY_NOT_DONE: Final = (NotLeader, GroupNotFound, Unreachable)


class _Face(msgspec.Struct, frozen=True):
    """What any server of ours says of itself at `/`, as far as it matters here."""

    role: str
    managers: tuple[str, ...] = ()  # those that a broker knows


_decode_face: Final = msgspec.json.Decoder(_Face).decode


class Pause:
    """Pauses that grow, between attempts at one thing, for so many seconds in all."""

    def __init__(self, cluster: "Cluster", seconds_max: float) -> None:
        self._cluster = cluster
        self._deadline = asyncio.get_running_loop().time() + seconds_max
        self._seconds = PAUSE_SECONDS

    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - asyncio.get_running_loop().time()

    async def wait(self, error: TalwegError) -> None:
        """Wait before the next attempt; raises the error when there is no time for one.

        It must have as long as the pause before it: what is cut short would only say that no answer came,
        where the attempt before knows better.
        """
        seconds = self._seconds * random.uniform(0.5, 1.0)  # noqa: S311 - so that clients do not come in step
        if self._cluster.closed or 2 * seconds >= self.left():
            raise error
        self._seconds = min(2 * self._seconds, PAUSE_SECONDS_MAX)
        await asyncio.sleep(seconds)


class Cluster:
    """Lives in one event loop. `close` when it is no longer needed."""

    def __init__(self, servers: Servers = None, *, connections_max: int = 1024) -> None:
        self._managers = list(read_servers(servers))  # the one that answered last is the first
        self._http = HttpClient(connections_max=connections_max, answer_bytes_max=256 << 20)
        self._topics: dict[str, TopicMetadata] = {}
        self._endpoints: dict[int, str] = {}  # of brokers
        self._leaders: dict[tuple[str, int], str] = {}  # endpoints, as far as they are known
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = 0.0
        self._wanted: set[str] = set()  # topics that somebody asked for
        self._named: dict[tuple[str, int], tuple[str, int]] = {}  # by metadata: who leads, in which term
        self._managers_learned = False  # from a broker
        self._proven: set[str] = set()  # addresses at which there is a manager
        self._strangers: dict[str, str] = {}  # addresses at which there is none, and what there is
        self.closed = False

    @property
    def managers(self) -> tuple[str, ...]:
        """The managers that are known, the one that answered last first."""
        return tuple(self._managers)

    @property
    def endpoints(self) -> Mapping[int, str]:
        """Brokers that are known, by number."""
        return self._endpoints

    async def close(self) -> None:
        """Close all connections; what is under way, or comes later, fails with Unavailable."""
        self.closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self._http.close()

    # Managers

    async def ask_manager(
        self,
        method: str,
        target: str,
        answer: type[A],
        body: msgspec.Struct | None = None,
        *,
        seconds_max: float,
        repeatable: bool = True,  # false: not asked again once it may have been carried out
    ) -> A:
        """Ask whichever manager answers. Raises what it says, and the last error when time is up."""
        pause = Pause(self, seconds_max)
        while True:
            for manager in tuple(self._managers):
                try:
                    found = await self._http.call(
                        manager,
                        method,
                        target,
                        answer,
                        body,
                        seconds_max=max(min(ATTEMPT_SECONDS_MAX, pause.left()), 0.001),
                    )
                except TalwegError as failure:
                    error = await self._judged(manager, failure, pause)
                    if not error.retriable or not (repeatable or isinstance(error, SURELY_NOT_DONE)):
                        raise error from None
                    self._put_last(manager)  # else one that stands still costs every call its deadline
                else:
                    self._prove(manager)
                    self._prefer(manager)
                    return found
                if pause.left() <= 0:
                    raise self._explained(error)
            await self.learn_managers()
            await pause.wait(self._explained(error))

    async def _judged(self, manager: str, error: TalwegError, pause: Pause) -> TalwegError:
        """The error, unless it is no manager that gave it: then nothing was done, and another is to be asked.

        A broker is replaced by the managers that it knows. If there is nobody else, the setting is wrong.
        """
        if manager in self._proven or not (error.unexplained or isinstance(error, PathNotFound)):
            return error
        try:
            answer = await self._http.request(
                manager, "GET", "/", seconds_max=max(min(_FACE_SECONDS_MAX, pause.left()), 0.001)
            )
            face = _decode_face(answer.body)
        except Unavailable:
            return error  # who it is remains open
        except (TalwegError, msgspec.DecodeError, UnicodeDecodeError):
            face = _Face("")
        if face.role and face.role != "broker":
            self._prove(manager)
            return error
        self._strangers[manager] = "a broker" if face.role else "no server of Talweg"
        self._learn_of(face.managers)
        if face.role and len(self._managers) > 1 and manager in self._managers:
            self._managers.remove(manager)
        if self._proven or any(each not in self._strangers for each in self._managers):
            return Unreachable(f"{manager} is {self._strangers[manager]} ({error})")
        there = ", ".join(f"{each} is {self._strangers[each]}" for each in self._managers)
        return InvalidSetting(f"servers: {there} ({error}); name a manager in `servers` or {VARIABLE}")

    def _prove(self, manager: str) -> None:
        self._proven.add(manager)
        self._strangers.pop(manager, None)  # it took the place of whoever was there before

    def _explained(self, error: TalwegError) -> TalwegError:
        """What to do about it, when there is nobody to be asked."""
        if not isinstance(error, Unreachable):
            return error
        return Unreachable(
            f"no manager answers at {', '.join(self._managers)}: start the cluster (talweg up), or correct "
            f"`servers` or {VARIABLE} ({error})"
        )

    def _put_last(self, manager: str) -> None:
        if len(self._managers) > 1 and self._managers[0] == manager:
            self._managers.append(self._managers.pop(0))

    def _prefer(self, manager: str) -> None:
        if self._managers[0] != manager:
            self._managers.remove(manager)
            self._managers.insert(0, manager)

    # Topics

    async def topic(self, name: str, *, seconds_max: float) -> TopicMetadata:
        """A topic as it is now, or was a moment ago; raises TopicNotFound."""
        known = self._topics.get(name)
        if known is not None:
            return known
        return await self.fresh_topic(name, seconds_max=seconds_max)

    async def fresh_topic(self, name: str, *, seconds_max: float) -> TopicMetadata:
        """A topic as a manager knows it now; raises TopicNotFound."""
        check_topic(name)
        target = f"/v1/metadata?topics={quote(name, safe='')}"
        try:
            metadata = await self.ask_manager("GET", target, Metadata, seconds_max=seconds_max)
        except TopicNotFound:
            self.forget_topic(name)
            raise TopicNotFound(f"there is no topic {name}") from None
        self._learn(metadata)
        self._wanted.add(name)
        for topic in metadata.topics:
            if topic.topic == name:
                return topic
        raise TopicNotFound(f"there is no topic {name}")

    def known_topic(self, name: str) -> TopicMetadata | None:
        """A topic if it was asked for before, as it was seen last."""
        return self._topics.get(name)

    def forget_topic(self, name: str) -> None:
        """Look at it anew when it is next asked for."""
        self._topics.pop(name, None)
        self._wanted.discard(name)
        for known in (self._leaders, self._named):
            for place in [place for place in known if place[0] == name]:
                del known[place]

    async def all_topics(self, *, seconds_max: float) -> tuple[TopicMetadata, ...]:
        """Every topic, as a manager knows it now."""
        metadata = await self.ask_manager("GET", "/v1/metadata", Metadata, seconds_max=seconds_max)
        self._learn(metadata)
        return metadata.topics

    def _learn(self, metadata: Metadata) -> None:
        self._endpoints = {broker.id: broker.endpoint for broker in metadata.brokers}
        for topic in metadata.topics:
            self._topics[topic.topic] = topic
            for part in topic.partitions:
                place = (topic.topic, part.partition)
                leader = self._endpoints.get(-1 if part.leader is None else part.leader)
                # What a manager goes on saying is no news: meanwhile we may know better.
                if leader is not None and self._named.get(place) != (leader, part.term):
                    self._named[place] = (leader, part.term)
                    self._leaders[place] = leader

    async def refresh(self) -> None:
        """Look at the metadata of what is in use. Who wants that meanwhile waits for the same look."""
        loop = asyncio.get_running_loop()
        if self._refreshing is None or self._refreshing.done():
            if loop.time() - self._refreshed_at < _REFRESH_SECONDS_MIN:
                return
            self._refreshing = loop.create_task(self._look())
        await asyncio.shield(self._refreshing)

    async def _look(self) -> None:
        try:
            for name in tuple(self._wanted):
                target = f"/v1/metadata?topics={quote(name, safe='')}"
                try:
                    self._learn(await self.ask_manager("GET", target, Metadata, seconds_max=1.0))
                except TopicNotFound:
                    self.forget_topic(name)
        except TalwegError:
            pass  # nobody could be asked: what is known must do, and the next look may find more
        finally:
            self._refreshed_at = asyncio.get_running_loop().time()

    async def learn_managers(self) -> None:
        """Brokers know managers that we were not told of. One of them is enough, once."""
        for endpoint in () if self._managers_learned else tuple(self._endpoints.values()):
            try:
                face = await self._http.call(endpoint, "GET", "/", BrokerFace, seconds_max=_FACE_SECONDS_MAX)
            except TalwegError:
                continue
            self._managers_learned = True
            self._learn_of(face.managers)
            return

    def _learn_of(self, managers: Iterable[str]) -> None:
        new = [each for each in managers if each not in self._managers and each not in self._strangers]
        self._managers += new[: max(_MANAGERS_MAX - len(self._managers), 0)]

    # Leaders

    async def ask_leader(
        self,
        topic: str,
        partition: int,
        method: str,
        path: str,  # behind /v1/topics/TOPIC/partitions/PARTITION, with the query
        body: bytes | None = None,
        *,
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        seconds_max: float,
        attempt_seconds_max: float = ATTEMPT_SECONDS_MAX,
        repeatable: bool = True,  # false: not asked again once it may have been carried out
    ) -> HttpResponse:
        """Ask a partition's leader, whoever that is. Raises what it says; when time is up, the last error."""
        pause = Pause(self, seconds_max)
        target = f"/v1/topics/{quote(topic, safe='')}/partitions/{partition}{path}"
        place = (topic, partition)
        hints = 0  # followed since the last pause: in an election, two may name each other for a while
        while True:
            endpoint = self._leaders.get(place)
            error: TalwegError = Unavailable(f"nobody leads partition {partition} of topic {topic}")
            if endpoint is not None:
                try:
                    return await self._http.request(
                        endpoint,
                        method,
                        target,
                        body,
                        media_type=media_type,
                        headers=headers or {},
                        seconds_max=max(min(attempt_seconds_max, pause.left()), 0.001),
                    )
                except TalwegError as failure:
                    error = failure
                if not error.retriable or not (repeatable or isinstance(error, SURELY_NOT_DONE)):
                    raise error
                if hints < _HINTS_MAX and self._follow_hint(place, endpoint, error):
                    hints += 1
                    continue
            hints = 0
            await pause.wait(error)
            await self._look_for_leader(place, endpoint)

    def leader(self, topic: str, partition: int) -> str | None:
        """The endpoint of whoever is thought to lead."""
        return self._leaders.get((topic, partition))

    async def look_for_leader(self, topic: str, partition: int) -> None:
        """The one that is thought to lead did not answer, or does not: find another to ask."""
        place = (topic, partition)
        await self._look_for_leader(place, self._leaders.get(place))

    async def ask_server(
        self, endpoint: str, target: str, answer: type[A], *, seconds_max: float = ATTEMPT_SECONDS_MAX
    ) -> A:
        """Ask one server, a broker or a manager, once, for what does no harm."""
        return await self._http.call(endpoint, "GET", target, answer, seconds_max=seconds_max)

    def _follow_hint(self, place: tuple[str, int], asked: str, error: TalwegError) -> bool:
        """Whether a broker that leads no more named another one; that is asked at once."""
        if not isinstance(error, NotLeader) or error.leader is None:
            return False
        named = error.endpoint or self._endpoints.get(error.leader)
        if named is None or named == asked:
            return False
        self._leaders[place] = named
        return True

    async def _look_for_leader(self, place: tuple[str, int], asked: str | None) -> None:
        """Ask the next replica next time, unless the metadata names somebody else."""
        topic, partition = place
        if topic in self._topics:
            self._wanted.add(topic)  # one that a list of all topics named: it is in use from now on
        await self.refresh()
        known = self._topics.get(topic)
        if known is None:
            await self.fresh_topic(topic, seconds_max=ATTEMPT_SECONDS_MAX)  # raises if it is no more
            return
        if self._leaders.get(place) == asked:
            if partition >= len(known.partitions):
                raise PartitionNotFound(f"topic {topic} has no partition {partition} (any more)")
            replicas = self._replicas(known.partitions[partition])
            if replicas:
                after = replicas.index(asked) + 1 if asked in replicas else 0
                self._leaders[place] = replicas[after % len(replicas)]

    def _replicas(self, partition: PartitionMetadata) -> list[str]:
        return [self._endpoints[broker] for broker in partition.replicas if broker in self._endpoints]
