"""A producer that replays its log file: `python -m myqueue.runproduce --id 1 --topics T1 T2 --log_loc DIR`.

The whole file is checked before anything is sent. Lines that share a parallel tag go out together; the next
tag waits until all of them are on disk on a majority. Order is kept in a partition, so all of a producer's
lines for a topic go to one: the one of the key `producer-{id}`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Final

from myqueue.command import (
    EXIT_FAILED,
    add_client_flags,
    complain,
    parser_for,
    progress,
    run,
    say,
    say_json,
)
from myqueue.log_file import LogLine, by_tag, producer_path, read_producer_log
from myqueue.producer import MyProducer
from talweg.errors import InvalidSetting, TalwegError

_THREADS_MAX: Final = 32  # lines of one tag that are under way at once


class Replay:
    """Sends the lines of a log, tag after tag."""

    def __init__(self, producer: MyProducer, number: int) -> None:
        self._producer = producer
        self._key = f"producer-{number}"
        self.sent = 0  # lines that were answered for
        self.failed: tuple[LogLine, TalwegError] | None = None  # the first one

    def run(self, groups: Sequence[Sequence[LogLine]], advance: Callable[[int], None]) -> None:
        """Send everything, or as much as there was before one failed."""
        threads = min(max(map(len, groups)), _THREADS_MAX)
        with ThreadPoolExecutor(threads, thread_name_prefix="replay") as pool:
            for group in groups:
                sending = {pool.submit(self._send, line): line for line in group}
                try:
                    wait(sending, return_when=FIRST_EXCEPTION)
                finally:
                    for each in sending:
                        each.cancel()  # means nothing to one that is done, or has begun
                self._count(sending, wait(sending).done)
                advance(len(group))
                if self.failed is not None:
                    return

    def _send(self, line: LogLine) -> None:
        self._producer.produce(line.topic, line.message, key=self._key)

    def _count(self, sending: dict[Future[None], LogLine], done: Iterable[Future[None]]) -> None:
        for each in done:
            if each.cancelled():
                continue
            error = each.exception()
            if error is None:
                self.sent += 1
            elif isinstance(error, TalwegError):
                self.failed = self.failed or (sending[each], error)
            else:
                raise error


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one log; returns the exit code."""
    parser = parser_for("runproduce", "Replay producer_{id}.txt: time, message, parallel tag, topic in tabs.")
    add_client_flags(parser, "producer_{id}.txt")
    given = parser.parse_args(arguments)
    path = producer_path(given.log_loc, given.id)
    try:
        lines = read_producer_log(path, given.topics)
    except OSError as error:
        raise InvalidSetting(f"--log_loc: {path} cannot be read: {error.strerror}") from None
    began_at = time.monotonic()
    with MyProducer(given.topics, given.broker) as producer:
        replay = Replay(producer, given.id)
        with progress(f"producer {given.id}", len(lines)) as advance:
            replay.run(by_tag(lines), advance)
    seconds = time.monotonic() - began_at
    if given.json:
        say_json(
            {
                "producer": given.id,
                "lines": len(lines),
                "sent": replay.sent,
                "seconds": round(seconds, 3),
                "producer_ids": producer.producer_ids,
            }
        )
    else:
        say(f"producer {given.id}: {replay.sent} of {len(lines)} lines sent in {seconds:.1f} s")
    if replay.failed is not None:
        line, reason = replay.failed
        return complain(
            f"{path}, line {line.number}: {reason} (it may have been written or not; lines of later tags "
            "were not sent)",
            EXIT_FAILED,
        )
    return 0


if __name__ == "__main__":
    run(main)
