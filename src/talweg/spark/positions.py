"""How far a streaming query has read, as Spark keeps it in a checkpoint: JSON that looks like Kafka's.

    {"logs": {"incarnation": 7, "partitions": {"0": 1200, "1": 1187}}}

The incarnation is the topic's: one that was deleted and made again is another topic, with other messages at
the same offsets. Of a topic that was missed, and that the query went on without, it also says `"gone": true`:
if nobody knew it just then, because the metadata store had forgotten it, it goes on where it was left.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from talweg.errors import InvalidSetting


class TopicPositions(msgspec.Struct, frozen=True):
    """In one topic."""

    incarnation: int
    partitions: dict[int, int]  # the first offset that was not read, of each
    gone: bool = False  # it was not there, which was told: it is not told again

    def group(self, partition: int) -> int:
        """The incarnation of a partition's group."""
        return self.incarnation + partition


Positions = Mapping[str, TopicPositions]


def moved(before: Positions, behind: Positions) -> dict[str, TopicPositions]:
    """Those of the later positions that are not the earlier ones."""
    made = {}
    for name, topic in behind.items():
        known = before.get(name)
        same = known.partitions if known is not None and known.incarnation == topic.incarnation else {}
        offsets = {
            number: offset for number, offset in topic.partitions.items() if same.get(number) != offset
        }
        if offsets:
            made[name] = msgspec.structs.replace(topic, partitions=offsets)
    return made


def to_json(positions: Positions) -> dict[str, Any]:
    """Always in the same order: Spark compares the text."""
    return {
        topic: {
            "incarnation": positions[topic].incarnation,
            "partitions": {
                str(number): offset for number, offset in sorted(positions[topic].partitions.items())
            },
            **({"gone": True} if positions[topic].gone else {}),
        }
        for topic in sorted(positions)
    }


def from_json(found: Mapping[str, Any]) -> dict[str, TopicPositions]:
    """What a checkpoint says; raises InvalidSetting for one that is not of ours."""
    try:
        return {
            topic: TopicPositions(
                int(each["incarnation"]),
                {int(number): int(offset) for number, offset in each["partitions"].items()},
                gone=bool(each.get("gone", False)),
            )
            for topic, each in found.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidSetting(f"the checkpoint is not one of a talweg source: it says {found}") from None
