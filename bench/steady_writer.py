"""A producer that writes a small message every few milliseconds, whatever happens, and notes when it can."""

import itertools
import threading
import time
from collections.abc import Callable

from bench.processes import ProcessFailed
from talweg.errors import TalwegError
from talweg.records import Batch, frames
from talweg.testing.asking import Asker

_PAUSE_SECONDS = 0.005  # between an answer and the next message
_RETRY_SECONDS = 0.01
_REQUEST_SECONDS_MAX = 10.0
_WAIT_SECONDS_MAX = 60.0
_FETCH_BYTES = 4 << 20
_NOT_LEADER = 421  # the primary may move leadership even now


class SteadyWriter(threading.Thread):
    """Writes 0, 1, 2… to one partition through a manager. Each is tried until it is acknowledged."""

    def __init__(self, manager: str, topic: str, partition: int) -> None:
        super().__init__(daemon=True)
        self.retries = 0
        self._manager = manager
        self._topic = topic
        self._partition = partition
        self._acknowledged_at: list[float] = []  # of each message, by time.monotonic()
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """What the thread does."""
        try:
            with Asker(self._manager, _REQUEST_SECONDS_MAX) as manager:
                producer_id = int(manager.post("/producer/register", topic=self._topic)["producer_id"])
                for sequence in itertools.count():
                    self._write(manager, producer_id, sequence)
                    if self._stopping.wait(_PAUSE_SECONDS):
                        return
        except Exception as error:  # noqa: BLE001 - whoever waits for the next message is told
            self._error = error

    def _write(self, manager: Asker, producer_id: int, sequence: int) -> None:
        while True:
            try:
                manager.post(
                    "/producer/produce",
                    topic=self._topic,
                    producer_id=producer_id,
                    message=str(sequence),
                    partition=self._partition,
                    sequence=sequence,
                )
            except TalwegError as error:
                if not error.retriable:
                    raise
                self.retries += 1
                time.sleep(_RETRY_SECONDS)
            else:
                self._acknowledged_at.append(time.monotonic())
                return

    def wait_for_more(self, count: int) -> None:
        """Return once so many messages more are acknowledged."""
        goal = len(self._acknowledged_at) + count
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while len(self._acknowledged_at) < goal:
            if self._error is not None:
                raise ProcessFailed(f"the writer cannot go on: {self._error!r}") from self._error
            if time.monotonic() > deadline:
                raise ProcessFailed(f"nothing was written for {_WAIT_SECONDS_MAX:.0f} s")
            time.sleep(_PAUSE_SECONDS)

    def longest_gap_since(self, began: float) -> float:
        """The longest time in seconds between two messages, of which the later one came after `began`."""
        times = list(self._acknowledged_at)
        return max(later - earlier for earlier, later in itertools.pairwise(times) if later >= began)

    def stop(self) -> None:
        """Finish the message that is under way."""
        self._stopping.set()
        self.join(_WAIT_SECONDS_MAX)
        if self._error is not None:
            raise ProcessFailed(f"the writer could not go on: {self._error!r}") from self._error

    def check(self, wait_for_leader: Callable[[], str]) -> int:
        """The partition holds what was written, once and in order; how many messages that is."""
        found: list[int] = []
        wanted = len(self._acknowledged_at)
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while len(found) < wanted:
            with Asker(wait_for_leader()) as leader:
                status = self._read_on(leader, found, wanted)
            if len(found) < wanted and (status != _NOT_LEADER or time.monotonic() > deadline):
                raise ProcessFailed(f"only {len(found)} of {wanted} messages are there ({status})")
        if found != list(range(wanted)):
            wrong = next((place for place, value in enumerate(found) if place != value), wanted)
            raise ProcessFailed(f"message {wrong} is lost, twice, or not in its place: {found[wrong:][:5]}")
        return wanted

    def _read_on(self, leader: Asker, found: list[int], wanted: int) -> int:
        """Add what comes next, as far as the leader has it; the status that it answered at last."""
        target = f"/v1/topics/{self._topic}/partitions/{self._partition}/records?max_bytes={_FETCH_BYTES}"
        status, body = 200, b"-"
        while len(found) < wanted and status == 200 and body:
            headers = {"accept": "application/vnd.talweg.frames"}
            status, body = leader.request("GET", f"{target}&offset={len(found)}", headers=headers)
            for header, frame in frames(body, bytes_max=len(body)) if status == 200 else ():
                read_before = max(len(found) - header.first_offset, 0)  # a frame comes whole
                found += [int(value or b"-1") for value in Batch.from_frame(frame).values()[read_before:]]
        return status
