"""A consumer that writes its log file: `python -m myqueue.runconsume --id 1 --topics T1 T2 --log_loc DIR`.

It begins at the end of its topics, so it creates those that are not there yet: whoever waits for their first
producer would come too late. Ends after `--count` messages, when none came for `--idle-seconds`, or when it
is told to (Ctrl-C, SIGTERM), which is a good end unless a count was given and not reached.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from myqueue.api_handler import ApiHandler
from myqueue.command import (
    EXIT_FAILED,
    add_client_flags,
    complain,
    natural,
    parser_for,
    positive_seconds,
    progress,
    run,
    say,
    say_json,
)
from myqueue.consumer import MyConsumer
from myqueue.log_file import consumer_line, consumer_path
from talweg.errors import InvalidSetting, TalwegError

READY: Final = "ready"  # in the line on standard error that says that it has registered
_WAIT_SECONDS: Final = 1.0  # of one consume
_LOOK_SECONDS: Final = 0.1  # at whether it is time to end


class Recording:
    """Writes what comes, a line each. One thread for each topic, so that none waits for another."""

    def __init__(
        self, consumer: MyConsumer, file: TextIO, count_max: int | None, advance: Callable[[int], None]
    ) -> None:
        self._consumer = consumer
        self._file = file
        self._count_max = count_max
        self._advance = advance
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._told_to_stop = False
        self.count = 0
        self.last_at = time.monotonic()
        self.error: TalwegError | OSError | None = None

    def tell_to_stop(self, *_: object) -> None:
        """For a signal: it may come while we hold the event's lock, and setting it would wait for ever."""
        self._told_to_stop = True

    def run(self, idle_seconds: float | None) -> None:
        """Until there is a reason to end."""
        threads = [threading.Thread(target=self._record, args=(t,), name=t) for t in self._consumer.topics]
        for thread in threads:
            thread.start()
        try:
            while not self._told_to_stop and not self._stopping.wait(_LOOK_SECONDS):
                if idle_seconds is not None and time.monotonic() - self.last_at > idle_seconds:
                    break
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _record(self, topic: str) -> None:
        try:
            while not self._stopping.is_set():
                message = self._consumer.consume(topic, wait_seconds=_WAIT_SECONDS)
                if message is not None:
                    self._write(consumer_line(topic, message.value))
        except (TalwegError, OSError) as error:
            self.error = self.error or error
            self._stopping.set()

    def _write(self, line: str) -> None:
        with self._lock:
            if self.count == self._count_max:
                return  # one that another thread had asked for already
            self._file.write(line)
            self._file.flush()
            self.count += 1
            self.last_at = time.monotonic()
            self._advance(1)
            if self.count == self._count_max:
                self._stopping.set()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one log; returns the exit code."""
    parser = parser_for("runconsume", "Write what comes to consumer_{id}.txt: topic, tab, message.")
    add_client_flags(parser, "consumer_{id}.txt")
    parser.add_argument("--count", type=natural, metavar="N", help="end after so many messages")
    parser.add_argument(
        "--idle-seconds", type=positive_seconds, metavar="S", help="end when no message came for so long"
    )
    given = parser.parse_args(arguments)
    path = consumer_path(given.log_loc, given.id)
    with ApiHandler(given.broker) as api:
        for topic in given.topics:
            api.ensure_topic(topic)
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidSetting(f"--log_loc: {path} cannot be written: {error.strerror}") from None
    with (
        file,
        MyConsumer(given.topics, given.broker) as consumer,
        progress(f"consumer {given.id}", given.count) as advance,
    ):
        recording = Recording(consumer, file, given.count, advance)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, recording.tell_to_stop)
        sys.stderr.write(f"consumer {given.id} {READY}: {' '.join(given.topics)}\n")
        sys.stderr.flush()
        if given.count != 0:
            recording.run(given.idle_seconds)
    return _tell(given.id, recording, given.count, as_json=given.json)


def _tell(number: int, recording: Recording, count: int | None, *, as_json: bool) -> int:
    if as_json:
        say_json({"consumer": number, "received": recording.count, "expected": count})
    else:
        say(f"consumer {number}: {recording.count} messages received")
    if recording.error is not None:
        return complain(recording.error, EXIT_FAILED)
    if count is not None and recording.count < count:
        return complain(f"consumer {number}: only {recording.count} of {count} messages came", EXIT_FAILED)
    return 0


if __name__ == "__main__":
    run(main)
