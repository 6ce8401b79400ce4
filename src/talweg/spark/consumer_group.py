"""The consumer group under which a query shows how far it has come, and holds back retention there.

The query rests on its checkpoint alone, so what goes wrong here is only said.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

from talweg.client.partition_log import PartitionLogs
from talweg.errors import TalwegError
from talweg.spark.positions import TopicPositions, from_json, moved

_logger: Final = logging.getLogger("talweg.spark")
_COMMIT_SECONDS_MAX: Final = 5.0  # positions are for people to see, nothing waits for them


class ConsumerGroup:
    """Of one query."""

    def __init__(self, name: str | None, keep_bytes: int | None) -> None:
        self._name = name  # None: nothing is shown
        self._keep_bytes = keep_bytes
        self._done: dict[str, Any] | None = None  # what we were told last; None: it is to be tried again
        # What the group is known to have: nothing at first, so that all is shown, and kept, once. Partitions
        # in which nothing moves are left in peace from then on: each position is an entry in a log.
        self._committed: dict[str, TopicPositions] = {}
        # Topics that the query has just begun with: nothing is committed there yet.
        self._begun: set[str] = set()

    def begin(self, topics: Iterable[str]) -> None:
        """The query begins with these. Another one of the same name may have come further: its positions go
        back to where this one is, or nobody would see it, and nothing would be kept for it."""
        for topic in topics:
            self._begun.add(topic)
            self._committed.pop(topic, None)

    def commit(self, logs: PartitionLogs, done: dict[str, Any]) -> None:
        """Everything before these positions is done."""
        if self._name is None or self._done == done:
            return
        self._done = done
        behind = from_json(done)
        for topic, positions in moved(self._committed, behind).items():
            if positions.gone:
                continue
            try:
                logs.commit(
                    self._name,
                    topic,
                    positions.partitions,
                    incarnation=positions.incarnation,
                    seek=topic in self._begun,
                    keep_bytes=self._keep_bytes,
                    seconds_max=_COMMIT_SECONDS_MAX,
                )
            except TalwegError as error:
                if error.retriable and (self._keep_bytes is not None or topic in self._begun):
                    self._done = None  # nothing is held, or shown, as yet: the next look tries again
                _logger.warning(
                    "the progress of group %s in topic %s cannot be shown: %s", self._name, topic, error
                )
            else:
                self._begun.discard(topic)
                self._committed[topic] = behind[topic]
