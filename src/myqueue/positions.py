"""Where a registered consumer is in each partition, as the partitions' leaders know it; and putting it back.

Only for the case that the answer of a consume was lost: the message may have been taken, and would be given
to nobody. It is the one thing for which brokers are asked themselves.
"""

import time
from typing import Final
from urllib.parse import quote

from myqueue.connections import Answer
from myqueue.managers import Managers, Pauses
from talweg.errors import GroupNotFound, NotLeader, OffsetOutOfRange, Unavailable, Undecided

_STEP_SECONDS_MAX: Final = 5.0  # for one answer of a broker


class Positions:
    """Of one consumer in some partitions of a topic."""

    def __init__(self, managers: Managers, topic: str, consumer_id: int) -> None:
        self._managers = managers
        self._topic = topic
        self._consumer_id = consumer_id
        self._leaders: dict[int, str] = {}  # HOST:PORT by partition; may be out of date

    def read(self, partition: int, deadline: float) -> int:
        """The first offset that was not given to the consumer; 0 if it never read there."""
        given = f"?consumer_id={self._consumer_id}"
        return int(self._ask("GET", partition, given, None, deadline)["position"] or 0)

    def put_back(self, partition: int, offset: int, deadline: float) -> bool:
        """Let it go on at an offset. False if what was there is no longer kept."""
        body: dict[str, object] = {"consumer_id": self._consumer_id, "offset": offset, "seek": True}
        try:
            self._ask("POST", partition, "", body, deadline)
        except OffsetOutOfRange:
            return False
        return True

    def _ask(
        self, method: str, partition: int, query: str, body: dict[str, object] | None, deadline: float
    ) -> Answer:
        """What the partition's leader answers. Both questions may be repeated."""
        target = f"/v1/topics/{quote(self._topic, safe='')}/partitions/{partition}/positions{query}"
        pauses = Pauses(self._managers, deadline)
        while True:
            try:
                leader = self._leaders.get(partition) or self._find_leader(partition, deadline)
                seconds = max(min(_STEP_SECONDS_MAX, deadline - time.monotonic()), 0.01)
                return self._managers.connections.ask(leader, method, target, body, seconds)
            except NotLeader as error:
                self._leaders.pop(partition, None)
                if error.endpoint:
                    self._leaders[partition] = error.endpoint.removeprefix("http://")
                pauses.wait(error)
            except (GroupNotFound, Unavailable, Undecided) as error:
                self._leaders.pop(partition, None)
                pauses.wait(error)

    def _find_leader(self, partition: int, deadline: float) -> str:
        metadata = self._managers.ask_once("GET", "/v1/metadata", {"topics": self._topic}, deadline=deadline)
        endpoints = {broker["id"]: broker["endpoint"] for broker in metadata["brokers"]}
        for each in metadata["topics"][0]["partitions"]:
            if each["leader"] in endpoints:
                self._leaders[each["partition"]] = endpoints[each["leader"]].removeprefix("http://")
        if partition not in self._leaders:
            raise Unavailable(f"nobody leads partition {partition} of {self._topic} now")
        return self._leaders[partition]
