"""What a consumer has of one topic: its number there, how far it has read, and the next message.

A consume takes a message for good, so an answer that is lost could lose a message. Offsets have no gaps, so
we know which one must come next in each partition. When an answer was lost, or a message comes that is not
the next one, the consumer is put back to where we know it to be, and asks again; what comes twice is dropped.
"""

import threading
import time
from typing import Final

from myqueue.answers import Message, message_of
from myqueue.api_handler import ApiHandler, consume_parameters
from myqueue.managers import Pauses
from myqueue.positions import Positions
from talweg.errors import NoMessage, TalwegError, Unavailable, Unreachable

_WAIT_SECONDS_MAX: Final = 2.0  # of one request; then we look whether we were closed meanwhile
_DOUBT_SECONDS: Final = 60.0  # after which a manager that stood still will not do what it was asked
_LOOK_SECONDS_MAX: Final = 3.0  # to learn where it begins
_MOVED: Final = "another moves this consumer, over and over: each program wants a consumer of its own"


class Turns:
    """A lock that nobody has twice while another waits for it. Who waits for a message takes it anew for each
    request, and would have a lock of Python again before anybody else has seen that it was free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = threading.Lock()  # held by the one that is the next to have the other

    def take(self, deadline: float) -> bool:
        """Whether it came in time, on the monotonic clock. Then it is to be given back."""
        if not self._next.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            return False
        try:
            return self._lock.acquire(timeout=max(deadline - time.monotonic(), 0.0))
        finally:
            self._next.release()

    def give_back(self) -> None:
        """Let the next have it."""
        self._lock.release()


class Inlet:
    """Of one topic, or of one partition of it. One request at a time, so that messages can be counted."""

    def __init__(self, api: ApiHandler, topic: str, partition: int | None, start: str | int) -> None:
        self._api = api
        self._topic = topic
        self._partition = partition
        self._turns = Turns()
        self.consumer_id = api.register_consumer(topic, partition=partition, start=start)
        self._positions = Positions(api.managers, topic, self.consumer_id)
        self._next = self._look()  # by partition: the offset that must come next
        self._doubt_until = 0.0  # a take may be under way that nobody waits for

    def _look(self) -> dict[int, int]:
        """Where it begins. Brokers that cannot be reached from here are no reason not to begin."""
        deadline = time.monotonic() + min(_LOOK_SECONDS_MAX, self._api.managers.timeout)
        only = self._partition
        try:
            partitions = [p.id for p in self._api.list_partitions(self._topic)] if only is None else [only]
            return {partition: self._positions.read(partition, deadline) for partition in partitions}
        except Unavailable:
            return {}

    def consume(self, wait_until: float) -> Message | None:
        """The next message; None if there is none, also when waited for until then."""
        managers = self._api.managers
        pauses = Pauses(managers, max(wait_until, time.monotonic()) + managers.timeout)
        while self._take_turn(wait_until, pauses.deadline):
            # For a request, not for the whole wait: who waits must not hold up one who does not.
            try:
                message, failure = self._try(wait_until, pauses.deadline)
            finally:
                self._turns.give_back()
            if failure is not None:
                pauses.wait(failure)
            elif message is not None or time.monotonic() >= wait_until or managers.closing.is_set():
                return message
        return None

    def _take_turn(self, wait_until: float, deadline: float) -> bool:
        """Whether we may ask. Who is to wait no longer need not ask, if there is nothing to be had."""
        if self._turns.take(wait_until):
            return True
        in_doubt = time.monotonic() < self._doubt_until  # of how much was given
        if not in_doubt and self._api.size(self._topic, self.consumer_id, partition=self._partition) == 0:
            return False
        return self._turns.take(deadline)

    def _try(self, wait_until: float, deadline: float) -> tuple[Message | None, TalwegError | None]:
        """The next message, or nothing; and, if that is to be asked again after a pause, why."""
        try:
            message = self._ask(wait_until, deadline)
        except NoMessage:
            if time.monotonic() < self._doubt_until and self._put_back(deadline):
                return None, Unavailable(_MOVED)
            return None, None
        except TalwegError as error:
            if not error.retriable:
                raise
            if not isinstance(error, Unreachable):
                self._lost_an_answer(error, deadline)
            return None, error
        if not self._is_next(message, deadline):
            return None, Unavailable(_MOVED)
        self._next[message.partition] = message.offset + 1
        return message, None

    def _ask(self, wait_until: float, deadline: float) -> Message:
        wait_seconds = min(max(wait_until - time.monotonic(), 0.0), _WAIT_SECONDS_MAX)
        given = consume_parameters(self._topic, self.consumer_id, self._partition, wait_seconds)
        answer = self._api.managers.ask_once(
            "GET", "/consumer/consume", given, deadline=deadline, wait_seconds=wait_seconds
        )
        return message_of(self._topic, answer)

    def _is_next(self, message: Message, deadline: float) -> bool:
        """Whether it is the message that must come. If not, it was given before, or comes too soon and will
        come again."""
        expected = self._next.get(message.partition)
        if expected is None or message.offset == expected:
            return True
        if message.offset < expected:
            return False
        # If it cannot be put back, what lies between is no longer kept.
        return not self._positions.put_back(message.partition, expected, deadline)

    def _lost_an_answer(self, error: TalwegError, deadline: float) -> None:
        if not self._next:
            raise Unavailable(
                f"an answer was lost, and perhaps a message: brokers cannot be asked from here: {error}"
            )
        self._doubt_until = time.monotonic() + _DOUBT_SECONDS
        self._put_back(deadline)

    def _put_back(self, deadline: float) -> bool:
        """Whether the consumer stood further than we have read anywhere, and no longer does."""
        moved = False
        for partition, offset in self._next.items():
            if self._positions.read(partition, deadline) > offset:
                moved = self._positions.put_back(partition, offset, deadline) or moved
        return moved
