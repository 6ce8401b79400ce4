"""The managers of a cluster: whichever answers is asked, and asked again until a deadline.

A manager that dies, stands still or has no primary to send a write on to costs a delay. What must not be
done twice is repeated only when it is certain that it was not done. An address may turn out to be that of no
manager: a broker's is replaced by those of the managers that it knows, any other is passed over.
"""

import random
import threading
import time
from typing import Final
from urllib.parse import urlencode

from myqueue.connections import Answer, Connections
from talweg.client.servers import VARIABLE, Servers, read_servers
from talweg.errors import (
    InvalidSetting,
    LeaseLost,
    Overloaded,
    PathNotFound,
    TalwegError,
    TooFewBrokers,
    Unavailable,
    Unreachable,
)

_ANSWER_SECONDS_MAX: Final = 15.0  # more than managers give each other
_FIRST_SECONDS_MAX: Final = 5.0  # to reach any manager at all: an address may simply be wrong
_FACE_SECONDS_MAX: Final = 1.0  # for a server to say who it is
_ADDRESSES_MAX: Final = 64  # with those that are learned of
_PAUSE_SECONDS: Final = 0.05  # before the first repetition; doubles with each
_PAUSE_SECONDS_MAX: Final = 1.0

# Whoever answers this has done nothing.
_NOT_DONE: Final = (Unreachable, LeaseLost, Overloaded, TooFewBrokers)

Broker = Servers


def read_addresses(broker: Broker) -> tuple[str, ...]:
    """HOST:PORT of each; of TALWEG_URL if nothing is given. Raises InvalidSetting."""
    if isinstance(broker, str) and not all(text.strip() for text in broker.split(",")):
        raise InvalidSetting(f"broker: expected HOST:PORT between commas, not {broker!r}")
    return tuple(url.removeprefix("http://") for url in read_servers(broker or None, "broker"))


class Managers:
    """Safe to use from many threads. Keeps to one manager for as long as that answers."""

    def __init__(self, broker: Broker, timeout: float) -> None:
        self.addresses = read_addresses(broker)
        self.timeout = timeout  # seconds for a call with all its repetitions
        self.connections = Connections()
        self.closing = threading.Event()
        self._current = 0  # of addresses; changed by whoever finds that it does not answer
        self._learning = threading.Lock()
        self._proven: frozenset[str] = frozenset()  # addresses at which there is a manager
        self._strangers: dict[str, str] = {}  # addresses at which there is none, and what there is
        self._random = random.Random()  # noqa: S311 - pauses are to differ, and are no secret

    def deadline(self) -> float:
        """When a call that begins now is given up, on the monotonic clock."""
        return time.monotonic() + self.timeout

    def ask_once(
        self,
        method: str,
        path: str,
        given: dict[str, object] | None = None,
        *,
        deadline: float,
        wait_seconds: float = 0.0,  # that the manager may take longer, because it was asked to wait
    ) -> Answer:
        """Ask one manager. Whoever asks again after an error may ask another. Raises as Connections.ask; and
        InvalidSetting if nobody that is known is a manager."""
        wanted = {name: value for name, value in (given or {}).items() if value is not None}
        target = f"{path}?{urlencode(wanted)}" if wanted and method != "POST" else path
        body = wanted if method == "POST" else None
        passed_over: set[str] = set()
        while True:
            number, addresses = self._current, self.addresses
            address = addresses[number % len(addresses)]
            seconds_max = max(min(_ANSWER_SECONDS_MAX, deadline - time.monotonic()), 0.01) + wait_seconds
            try:
                answer = self.connections.ask(address, method, target, body, seconds_max)
            except TalwegError as error:
                stranger = self._is_stranger(address, error)
                if (stranger or isinstance(error, Unavailable)) and self._current == number:
                    self._current = number + 1
                if not stranger:
                    raise
                passed_over.add(address)  # it has done nothing, so that the next one may be asked at once
                if passed_over.issuperset(self.addresses):
                    raise self._nobody(error) from None
            else:
                if path != "/":  # which any server of ours answers
                    self._proven |= {address}
                return answer

    def _is_stranger(self, address: str, error: TalwegError) -> bool:
        """Whether it is no manager that gave this error. A broker leads to managers in its place."""
        if address in self._proven or not (error.unexplained or isinstance(error, PathNotFound)):
            return False
        try:
            face = self.connections.face(address, _FACE_SECONDS_MAX)
        except Unavailable:
            return False  # who it is remains open
        role = face.get("role")
        if role is not None and role != "broker":
            self._proven |= {address}
            return False
        with self._learning:
            self._strangers[address] = "no server of Talweg" if role is None else "a broker"
            learned = [each for each in _managers_of(face) if each not in self._strangers]
            there = dict.fromkeys((*self.addresses, *learned))
            if role is not None and len(there) > 1:
                there.pop(address, None)
            self.addresses = tuple(there)[:_ADDRESSES_MAX]
        return True

    def _nobody(self, error: TalwegError) -> TalwegError:
        """Why there is nobody to be asked. One that was a manager once may be it again."""
        there = ", ".join(f"{each} is {self._strangers.get(each)}" for each in self.addresses)
        if self._proven:
            return Unreachable(f"no manager answers: {there} ({error})")
        return InvalidSetting(f"broker: {there} ({error}); name a manager or a gateway, or set {VARIABLE}")

    def ask(
        self,
        method: str,
        path: str,
        given: dict[str, object] | None = None,
        *,
        repeatable: bool = True,  # done twice it is as if done once
        done_before: type[TalwegError] | None = None,  # after a lost answer, says that it had been done
        deadline: float | None = None,
    ) -> Answer:
        """Ask until there is an answer; an empty one for `done_before`. Raises the last error at the
        deadline, and at once what no repetition would change."""
        pauses = Pauses(self, self.deadline() if deadline is None else deadline)
        lost = False
        while True:
            try:
                return self.ask_once(method, path, given, deadline=pauses.deadline)
            except TalwegError as error:
                if lost and done_before is not None and isinstance(error, done_before):
                    return {}
                not_done = isinstance(error, _NOT_DONE)
                if not error.retriable or not (repeatable or not_done):
                    raise
                lost = lost or not not_done
                pauses.wait(error)

    def close(self) -> None:
        """Let go of all connections; calls that wait to be repeated end."""
        self.closing.set()
        self.connections.close()


def _managers_of(face: Answer) -> list[str]:
    """HOST:PORT of the managers that a broker knows."""
    known = face.get("managers")
    if not isinstance(known, list):
        return []
    return [url.removeprefix("http://") for url in known if isinstance(url, str)]


class Pauses:
    """Between the attempts at one call: the first are short, so that another manager is asked at once."""

    def __init__(self, managers: Managers, deadline: float) -> None:
        self.deadline = deadline
        self._managers = managers
        self._began_at = time.monotonic()
        self._attempts = 0

    def wait(self, error: TalwegError) -> None:
        """Wait before the next attempt; raises `error` if it is too late for one."""
        managers = self._managers
        self._attempts += 1
        rounds = self._attempts // len(managers.addresses)  # no pause before each has been asked
        pause = min(_PAUSE_SECONDS * 2 ** min(rounds - 1, 10), _PAUSE_SECONDS_MAX) if rounds else 0.0
        pause *= 0.5 + managers._random.random()
        now = time.monotonic()
        if now + pause >= self.deadline:
            raise error
        if not managers._proven and now - self._began_at > _FIRST_SECONDS_MAX:
            raise Unreachable(f"no manager answers; is the cluster up, and the address right? {error}")
        if managers.closing.wait(pause):
            raise error
