"""Stretches of a log as Arrow, whatever becomes of leaders, retention and topics meanwhile. No Spark here."""

from typing import Any

import pytest

from spark.scene import Scene
from talweg.client.partition_log import Stretch

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
