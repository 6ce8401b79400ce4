"""Asks the leader of a group, whoever that is by now.

What surely was not done is asked again at once, elsewhere. What may have been done is asked again only
if doing it twice is the same as doing it once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from talweg.errors import (
    BatchTooLarge,
    GroupNotFound,
    NoQuorum,
    NotLeader,
    OutOfSequence,
    Overloaded,
    PartitionNotFound,
    StorageFull,
    TalwegError,
    Unavailable,
    Undecided,
    Unreachable,
)
from talweg.http import HttpClient
from talweg.manager.follower import Follower
from talweg.manager.lanes import Lane
from talweg.manager.leaders import Leaders
from talweg.protocol.bundles import MSGPACK, AskEnds, Failed, Outcome, encode, error_of_failed, failed

# Nothing was done: asking again is safe, whatever it is.
SURELY_NOT_DONE: Final = frozenset(
    error.code for error in (NotLeader, Overloaded, Unreachable, GroupNotFound)
)
# It may have been done, and a leader that is alive would say so if it were asked the same again.
OPEN: Final = frozenset(error.code for error in (Undecided, Unavailable, NoQuorum))
# The leader's own word, for whoever asked.
_PASSED_ON: Final = frozenset(error.code for error in (OutOfSequence, StorageFull, BatchTooLarge))
_ELSEWHERE: Final = frozenset(
    error.code for error in (NotLeader, Unreachable, GroupNotFound, Undecided, Unavailable)
)

_PAUSES_SECONDS: Final = (0.01, 0.02, 0.05, 0.1)  # between rounds of everybody; the last one repeats
_SILENCE: Final = failed(NotLeader("nobody was asked yet"))


class Sort(NamedTuple):
    """A sort of bundle."""

    path: str
    encode: Callable[[list[Any]], bytes] = encode


APPEND: Final = Sort("/bundle/append")
TAKE: Final = Sort("/bundle/take")
ENDS: Final = Sort("/bundle/ends", lambda asked: encode(AskEnds(asked)))
START: Final = Sort("/bundle/start")


class Question(NamedTuple):
    """What is to be asked of the leader of a group."""

    sort: Sort
    group: int
    item: Any
    deadline: float  # by the event loop's clock
    repeatable: bool = True  # asking twice is the same as asking once
    bytes_: int = 0  # of the item, if it is not small


class Router:
    """Knows the way to every group's leader. Lives in one event loop."""

    def __init__(
        self,
        follower: Follower,
        leaders: Leaders,
        client: HttpClient,
        *,
        bundle_bytes_max: int,
        waiting_bytes_max: int,
    ) -> None:
        self._follower = follower
        self._leaders = leaders
        self._client = client
        self._bundle_bytes_max = bundle_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._lanes: dict[tuple[str, int], Lane] = {}  # by path and broker
        self._loop = asyncio.get_running_loop()
        leaders.listen(self._leadership_moved)

    async def ask(self, question: Question) -> Outcome:
        """The outcome, which is no failure.

        Raises Undecided when it may have been done, and what the leader says; Unavailable when there is
        no leader in time; PartitionNotFound when the group is no more.
        """
        broker = self._leaders.by_group.get(question.group)
        if broker is None:
            return await self._ask_around(question, None, _SILENCE)
        outcome = await self._put(question, broker)
        if type(outcome) is not Failed:
            return outcome
        return await self._ask_around(question, broker, outcome)

    async def ask_all(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcomes, in order. Raises as `ask` does, for any of them."""
        by_group = self._leaders.by_group
        brokers = [by_group.get(question.group) for question in questions]
        waiting = [
            None if broker is None else self._put(question, broker)
            for question, broker in zip(questions, brokers, strict=True)
        ]
        outcomes: list[Outcome] = [_SILENCE if each is None else await each for each in waiting]
        missing = [place for place, outcome in enumerate(outcomes) if type(outcome) is Failed]
        if missing:
            found = await asyncio.gather(
                *(self._ask_around(questions[p], brokers[p], outcomes[p]) for p in missing)
            )
            for place, outcome in zip(missing, found, strict=True):
                outcomes[place] = outcome
        return outcomes

    def close(self) -> None:
        """Stop; everybody who waits is told."""
        for lane in self._lanes.values():
            lane.close()

    async def _ask_around(self, question: Question, broker: int | None, outcome: Outcome) -> Outcome:
        """Ask again after a failure: whoever is said to lead, then everybody else, round after round."""
        asked_before: set[int] = set() if broker is None else {broker}  # in this round
        rounds = 0
        undecided = False
        while type(outcome) is Failed:
            if broker is not None:
                undecided |= self._judge(question, broker, outcome)
            now = self._loop.time()
            if now >= question.deadline:
                raise _too_late(undecided, outcome)
            broker = self._next(question.group, asked_before)
            if broker is None:
                pause = _PAUSES_SECONDS[min(rounds, len(_PAUSES_SECONDS) - 1)]
                await asyncio.sleep(min(pause, question.deadline - now))
                rounds += 1
                asked_before.clear()
                continue
            asked_before.add(broker)
            outcome = await self._put(question, broker)
        if broker is not None:
            self._leaders.found(question.group, broker)
        return outcome

    def _judge(self, question: Question, broker: int, outcome: Failed) -> bool:
        """Learn from a failure. Whether it may have been done; raises if it is not to be asked again."""
        code = outcome.code
        if code in _ELSEWHERE:
            self._leaders.correct(question.group, broker, outcome.leader if code == NotLeader.code else None)
        if code in SURELY_NOT_DONE:
            return False
        if code in _PASSED_ON:
            raise error_of_failed(outcome)
        if not question.repeatable:
            raise Undecided(f"it may have been done or not: {outcome.message}")
        if code not in OPEN:
            raise Unavailable(f"a broker failed: {outcome.message}")
        return True

    def _next(self, group: int, asked_before: set[int]) -> int | None:
        """Whom to ask next; None when everybody was asked."""
        assignment = self._follower.groups.get(group)
        if assignment is None:
            raise PartitionNotFound("the topic is no more")
        leader = self._leaders.by_group.get(group)
        candidates = (leader, *assignment.intended[:1], *assignment.voters)
        return next((b for b in candidates if b is not None and b not in asked_before), None)

    def _put(self, question: Question, broker: int) -> asyncio.Future[Outcome]:
        lane = self._lanes.get((question.sort.path, broker))
        if lane is None:
            lane = self._lanes[question.sort.path, broker] = self._lane(question.sort, broker)
        return lane.put(question.item, question.group, question.deadline, question.bytes_)

    def _lane(self, sort: Sort, broker: int) -> Lane:
        async def post(body: bytes, deadline: float) -> bytes:
            endpoint = self._follower.endpoint(broker)
            if endpoint is None:
                raise Unreachable(f"broker {broker} is not known")
            left = max(0.001, deadline - self._loop.time())
            response = await self._client.request(
                endpoint, "POST", sort.path, body, media_type=MSGPACK, seconds_max=left
            )
            return response.body

        return Lane(
            post, sort.encode, bundle_bytes_max=self._bundle_bytes_max, bytes_max=self._waiting_bytes_max
        )

    def _leadership_moved(self, group: int, before: int) -> None:
        for (_, broker), lane in self._lanes.items():
            if broker == before:
                lane.leadership_moved(group)


def _too_late(undecided: bool, outcome: Failed) -> TalwegError:
    if undecided:
        return Undecided(f"no answer came in time, it may have been done or not: {outcome.message}")
    if outcome.code == Overloaded.code:
        return Overloaded(outcome.message)
    return Unavailable(f"the partition has no leader that can be reached now: {outcome.message}")
