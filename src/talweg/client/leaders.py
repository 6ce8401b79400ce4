"""Questions about a topic that each of its leaders answers for the partitions that it leads."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from urllib.parse import quote

from talweg.client.cluster import ATTEMPT_SECONDS_MAX, Cluster, Pause
from talweg.errors import TalwegError, Unavailable

A = TypeVar("A")
T = TypeVar("T")


async def ask_leaders(
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int],
    path: str,  # behind /v1/topics/TOPIC, with the query
    answer: type[A],
    *,
    read: Callable[[A], Mapping[int, T]],  # what it says of the partitions that are led there
    seconds_max: float,
    partial: bool = False,  # when time is up, what was found will do
) -> dict[int, T]:
    """What the leaders say of each partition. Raises what they say, or the last error when time is up."""
    pause = Pause(cluster, seconds_max)
    target = f"/v1/topics/{quote(topic, safe='')}{path}"
    wanted = sorted(set(partitions))
    await cluster.topic(topic, seconds_max=seconds_max)
    found: dict[int, T] = {}
    while missing := [number for number in wanted if number not in found]:
        endpoints = dict.fromkeys(cluster.leader(topic, number) for number in missing)
        asked = [endpoint for endpoint in endpoints if endpoint is not None]
        attempt_seconds_max = max(min(ATTEMPT_SECONDS_MAX, pause.left()), 0.001)
        answers = await asyncio.gather(
            *(
                cluster.ask_server(endpoint, target, answer, seconds_max=attempt_seconds_max)
                for endpoint in asked
            ),
            return_exceptions=True,
        )
        error: TalwegError = Unavailable(f"nobody is known to lead partition {missing[0]} of topic {topic}")
        for each in answers:
            if isinstance(each, TalwegError):
                error = each
                if not each.retriable:
                    raise each
            elif isinstance(each, BaseException):
                raise each
            else:
                found.update((number, part) for number, part in read(each).items() if number in missing)
        late = [number for number in missing if number not in found]
        if late:
            try:
                await pause.wait(error)
            except TalwegError:
                if partial:
                    break
                raise
            for number in late:
                await cluster.look_for_leader(topic, number)
    return {number: found[number] for number in wanted if number in found}
