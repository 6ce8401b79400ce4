"""Stretches of a log as Arrow, whatever becomes of leaders, retention and topics meanwhile. No Spark here."""

from typing import Any

import pytest

from spark.scene import Scene
from talweg.client.partition_log import PartitionLogs, Stretch
from talweg.errors import GroupNotFound, TopicReplaced

pytestmark = pytest.mark.xdist_group("spark")


class Losses:
    def __init__(self) -> None:
        self.told: list[tuple[Stretch, str]] = []

    def __call__(self, lost: Stretch, why: str) -> None:
        self.told.append((lost, why))


def offsets(batch: Any) -> list[int]:
    found: list[int] = batch.column("offset").to_pylist()
    return found


def test_a_leader_killed_in_the_middle_costs_a_delay(scene: Scene) -> None:
    scene.create(partitions=1)
    for _ in range(20):
        scene.send(0, [b"x" * 1000] * 1000, codec=0)  # too much for one fetch, and for two
    losses = Losses()
    found: list[int] = []
    for batch in scene.logs.batches(Stretch(scene.topic, 0, 5, 19_995), ["offset"], losses):
        if not found:
            scene.cluster.kill_leader(scene.topic, 0)
        found += offsets(batch)
    assert found == list(range(5, 19_995))
    assert losses.told == []


def test_retention_that_overtakes_a_reader_is_told_and_the_rest_is_read(scene: Scene) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    first = scene.wait_for_retention(0)
    end = scene.logs.ends(scene.topic, [0])[0].next_offset
    losses = Losses()
    found: list[int] = []
    for batch in scene.logs.batches(Stretch(scene.topic, 0, 0, end), ["offset"], losses):
        found += offsets(batch)
    [(lost, why)] = losses.told
    assert (lost.begin, lost.end) == (0, found[0])
    assert found[0] >= first
    assert found == list(range(found[0], end))
    assert "retention" in why


def test_a_topic_made_again_is_not_taken_for_the_old_one(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    group = scene.logs.topic(scene.topic).incarnation
    scene.delete()
    scene.fill(100, partitions=1)
    losses = Losses()
    assert list(scene.logs.batches(Stretch(scene.topic, 0, 10, 50, group), ["offset"], losses)) == []
    [(lost, why)] = losses.told
    assert (lost.begin, lost.end) == (10, 50)
    assert "deleted and made again" in why


def test_a_topic_deleted_while_it_is_read_is_told(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    group = scene.logs.topic(scene.topic).incarnation
    scene.delete()
    losses = Losses()
    assert list(scene.logs.batches(Stretch(scene.topic, 0, 10, 50, group), ["offset"], losses)) == []
    [(lost, why)] = losses.told
    assert (lost.begin, lost.end) == (10, 50)
    assert why == "the topic was deleted"


def test_a_partition_that_the_topic_lacks_when_it_is_made_again_is_told(scene: Scene) -> None:
    scene.fill(100, partitions=2, batch=50)
    group = scene.logs.topic(scene.topic).incarnation + 1
    scene.delete()
    scene.fill(100, partitions=1)
    losses = Losses()
    assert list(scene.logs.batches(Stretch(scene.topic, 1, 10, 50, group), ["offset"], losses)) == []
    [(lost, why)] = losses.told
    assert (lost.begin, lost.end) == (10, 50)
    assert why == "the topic was deleted and made again"


def test_an_older_incarnation_has_yet_to_hear_of_the_one_that_is_meant(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    made = scene.logs.topic(scene.topic).incarnation
    losses = Losses()
    logs = PartitionLogs(scene.cluster.servers, seconds_max=1)
    try:
        with pytest.raises(GroupNotFound, match=f"not {made + 1} as yet"):
            list(logs.batches(Stretch(scene.topic, 0, 10, 50, made + 1), ["offset"], losses))
    finally:
        logs.close()
    assert losses.told == []


def test_ends_are_those_of_the_topic_that_is_meant(scene: Scene) -> None:
    scene.fill(100, partitions=2, batch=50)
    made = scene.logs.topic(scene.topic).incarnation
    assert scene.logs.ends(scene.topic, [1], made)[1].next_offset == 50
    scene.delete()
    scene.fill(30, partitions=2, batch=30)
    with pytest.raises(TopicReplaced):
        scene.logs.ends(scene.topic, [0, 1], made)
    assert scene.logs.ends(scene.topic, [0])[0].next_offset == 30


def test_what_goes_wrong_in_the_middle_is_raised(scene: Scene) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.wait_for_retention(0)

    def refuse(lost: Stretch, why: str) -> None:
        raise LookupError(why)

    with pytest.raises(LookupError):
        list(scene.logs.batches(Stretch(scene.topic, 0, 0, 5), ["value"], refuse))


def test_the_length_of_messages_is_estimated(scene: Scene) -> None:
    scene.create(partitions=1)
    scene.send(0, [b"x" * 1000] * 50)
    assert 1000 <= scene.logs.message_bytes(Stretch(scene.topic, 0, 0, 50)) <= 1050


def test_the_length_of_messages_that_are_gone_is_guessed(scene: Scene) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    made = scene.logs.topic(scene.topic).incarnation
    scene.wait_for_retention(0)
    assert scene.logs.message_bytes(Stretch(scene.topic, 0, 0, 5, made)) == 1000
    scene.delete()
    scene.fill(10, partitions=1)
    assert scene.logs.message_bytes(Stretch(scene.topic, 0, 0, 5, made)) == 1000
