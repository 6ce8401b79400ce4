"""A soak of the client library: messages through `Producer` and `Consumer` while servers die at random.

    python -m talweg.testing.chaos --messages 1000000 --seconds 120 --seed 7

Brokers and managers of a cluster of real processes are killed, paused and restarted, at most one of each
sort at a time. At the end every message must have arrived exactly once, and those of one sender in order in
each partition. Exit status 1 if not, with what went wrong.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from talweg import Consumer, Producer
from talweg.errors import TalwegError
from talweg.testing.cluster import LocalCluster

TOPIC: Final = "chaos"
_MESSAGE_BYTES: Final = 100
_NUMBER_BYTES: Final = 10
_BURST_SECONDS: Final = 0.02  # messages are sent in bursts of this length's worth
_DOWN_SECONDS_MAX: Final = 3.0  # for which a server is dead or paused
_QUIET_SECONDS_MAX: Final = 2.0  # between two faults of the same sort
_SILENCE_SECONDS_MAX: Final = 60.0  # without a message, although some are missing
_PROGRESS_SECONDS: Final = 5.0
_COMPLAINTS_MAX: Final = 20


class Report(msgspec.Struct, kw_only=True):
    """What happened."""

    seed: int
    messages: int
    seconds: float
    faults: dict[str, int]
    wrong: list[str]

    def __str__(self) -> str:
        """For people."""
        faults = ", ".join(f"{count} x {what}" for what, count in sorted(self.faults.items())) or "none"
        lines = [f"seed {self.seed}: {self.messages} messages in {self.seconds:.1f} s; faults: {faults}"]
        lines += self.wrong or ["every message arrived exactly once, each sender's in order"]
        return "\n".join(lines)


class Received:
    """What has arrived, checked as it comes. One thread's."""

    def __init__(self, senders: int, messages: int) -> None:
        self._seen = [bytearray(messages) for _ in range(senders)]  # by sender and number
        self._last: dict[tuple[int, int], int] = {}  # by partition and sender: the highest number
        self.missing = senders * messages
        self.wrong: list[str] = []

    def take(self, partition: int, values: Sequence[bytes | None]) -> None:
        """Messages of a partition, in its order."""
        for value in values:
            assert value is not None
            sender = value[0]
            number = int(value[1 : 1 + _NUMBER_BYTES])
            if self._seen[sender][number]:
                self._complain(f"message {number} of sender {sender} came twice")
            else:
                self._seen[sender][number] = 1
                self.missing -= 1
            if number < self._last.get((partition, sender), -1):
                self._complain(f"message {number} of sender {sender} came too late in partition {partition}")
            self._last[partition, sender] = number

    def _complain(self, text: str) -> None:
        if len(self.wrong) < _COMPLAINTS_MAX:
            self.wrong.append(text)


class Faults:
    """Kills, pauses and restarts servers of one sort, one at a time, until it is told to stop."""

    def __init__(self, cluster: LocalCluster, victims: Sequence[str], seed: int) -> None:
        self._cluster = cluster
        self._victims = victims
        self._dice = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"faults of {victims[0]}…")
        self.counts: Counter[str] = Counter()
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; everything runs again."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stop.wait(self._dice.uniform(0, _QUIET_SECONDS_MAX)):
                self._harm(self._dice.choice(self._victims))
        except Exception as error:  # noqa: BLE001 - told by whoever waits for us
            self.failure = error

    def _harm(self, victim: str) -> None:
        seconds = self._dice.uniform(0, _DOWN_SECONDS_MAX)
        if self._dice.random() < 0.75:
            self.counts[f"{_sort(victim)} killed"] += 1
            self._cluster.kill(victim)
            self._stop.wait(seconds)
            self._cluster.restart(victim)
        else:
            self.counts[f"{_sort(victim)} paused"] += 1
            self._cluster.pause(victim)
            self._stop.wait(seconds)
            self._cluster.resume(victim)


def _sort(name: str) -> str:
    return "broker" if name.startswith("broker") else "manager"


def run(
    messages: int, seconds: float, seed: int, *, senders: int = 2, directory: Path | None = None
) -> Report:
    """The whole story: `messages` in all, spread over at least `seconds`."""
    each = messages // senders
    started = time.monotonic()
    with LocalCluster(directory, standbys=1) as cluster:
        with cluster.ask() as manager:
            manager.post("/topics", name=TOPIC, partitions=6)
        received = Received(senders, each)
        faults = [Faults(cluster, cluster.brokers, seed), Faults(cluster, cluster.managers, seed + 1)]
        errors: list[str] = []
        sending = [
            threading.Thread(target=_send, args=(cluster.url, sender, each, seconds, errors))
            for sender in range(senders)
        ]
        for fault in faults:
            fault.start()
        for thread in sending:
            thread.start()
        try:
            _receive(cluster.url, received, errors)
        finally:
            for thread in sending:
                thread.join()
            for fault in faults:
                fault.stop()
        counts = sum((fault.counts for fault in faults), Counter())
        wrong = received.wrong + errors + [str(fault.failure) for fault in faults if fault.failure]
    if received.missing:
        wrong.append(f"{received.missing} messages are missing")
    return Report(
        seed=seed, messages=each * senders, seconds=time.monotonic() - started, faults=counts, wrong=wrong
    )


def _send(url: str, sender: int, messages: int, seconds: float, errors: list[str]) -> None:
    """Numbered messages, in bursts, so that they take their time."""
    burst = max(round(messages * _BURST_SECONDS / max(seconds, _BURST_SECONDS)), 1)
    filling = b" " * (_MESSAGE_BYTES - 1 - _NUMBER_BYTES)
    started = time.monotonic()
    try:
        with Producer(url) as producer:
            for number in range(messages):
                producer.send(TOPIC, b"%c%0*d" % (sender, _NUMBER_BYTES, number) + filling)
                if number % burst == 0:
                    due = started + number / messages * seconds
                    time.sleep(max(due - time.monotonic(), 0))
    except TalwegError as error:
        errors.append(f"sender {sender} failed: {error}")


def _receive(url: str, received: Received, errors: list[str]) -> None:
    heard_at = shown_at = time.monotonic()
    with Consumer(TOPIC, servers=url) as consumer:
        while received.missing and not errors:
            batch = consumer.poll_batch(timeout=1.0)
            now = time.monotonic()
            if batch is not None:
                received.take(batch.partition, batch.values())
                heard_at = now
            elif now - heard_at > _SILENCE_SECONDS_MAX:
                return
            if now - shown_at > _PROGRESS_SECONDS:
                shown_at = now
                sys.stderr.write(f"{received.missing} messages to come\n")
        # What comes twice comes late: whatever is left is looked at, too.
        while (batch := consumer.poll_batch(timeout=2.0)) is not None:
            received.take(batch.partition, batch.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and print what happened."""
    parser = argparse.ArgumentParser(
        prog="python -m talweg.testing.chaos", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="in all (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="that sending takes (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    try:
        report = run(options.messages, options.seconds, options.seed)
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{msgspec.json.encode(report).decode() if options.json else report}\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
