"""Writing that is cut short around its decision, or comes too late for it: what the user reads, and gets.

No Spark here: what it would ask of writers is asked by the tests.
"""

import logging
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark.scene import Scene
from talweg.client.partition_log import Stretch
from talweg.client.staging import Staging
from talweg.client.transactions import Transactions
from talweg.errors import NoQuorum, StageExpired, Unavailable, Undecided
from talweg.protocol.transactions import Decided, StageRef
from talweg.spark.options import Given, WriteOptions, write_options
from talweg.spark.writer import StagedMessage, TalwegStreamWriter, TalwegWriter

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = StructType().add("value", "binary")


class Unpublished(Transactions):
    """Partitions lose their majority when it is decided."""

    async def publish(self, stages: Iterable[StageRef]) -> bool:
        raise NoQuorum("no majority of partition 0 can be reached")


class Unanswered(Transactions):
    """The decision is taken, and its answer is lost."""

    async def decide(self, name: str, stages: Iterable[StageRef]) -> Decided:
        await super().decide(name, stages)
        raise NoQuorum("no majority of partition 0 can be reached")


def options(scene: Scene, **given: str) -> WriteOptions:
    texts = {"servers": scene.cluster.servers, "topic": scene.topic} | given
    return write_options(Given(texts), streaming=False)


class Writer(TalwegWriter):
    def __init__(self, scene: Scene, kind: type[Transactions] = Transactions, **given: str) -> None:
        super().__init__(options(scene, **given), SCHEMA, overwrite=False)
        self.kind = kind

    def transactions(self, seconds_max: float | None = None) -> Transactions:
        return self.kind(self._logs.cluster, seconds_max=10)


class StreamWriter(TalwegStreamWriter):
    """Of a query that is called like its topic."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(options(scene), SCHEMA)

    def write_batch(self, number: int, values: list[bytes]) -> None:
        self.finish([self.stage(rows(values), f"{self._options.topic}/{number}", may_be_decided=True)])


def rows(values: list[bytes]) -> Any:
    return iter([pa.record_batch({"value": values})])


def written(scene: Scene) -> list[bytes]:
    found: list[bytes] = []
    for partition, ends in scene.logs.ends(scene.topic, range(2)).items():
        for batch in scene.logs.batches(Stretch(scene.topic, partition, 0, ends.next_offset), ["value"], _no):
            found += batch.column("value").to_pylist()
    return sorted(found)


def _no(lost: object, why: str) -> None:
    raise AssertionError(f"{lost}: {why}")


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (
            Unpublished,
            Unavailable,
            "is decided on, and not all of it is published yet .* do not write it again",
        ),
        (Unanswered, Undecided, "may have been decided on or not .* perhaps twice"),
    ],
    ids=["unpublished", "unanswered"],
)
def test_a_write_that_fails_behind_its_decision_says_so_and_is_there_once(
    scene: Scene, kind: type[Transactions], error: type[Exception], said: str
) -> None:
    scene.create()
    writer = Writer(scene, kind)
    told = writer.write(rows([b"a", b"b"]))
    assert isinstance(told, StagedMessage)
    with pytest.raises(error, match=f"transaction {told.transaction} {said}"):
        writer.commit([told])
    writer.abort([told])  # as Spark does then: it must not take back what was decided
    assert written(scene) == []
    # The brokers would, in half a minute. Whoever does it again under that name does the same.
    again = Writer(scene, transaction=told.transaction)
    again.commit([again.write(rows([b"a", b"b"]))])
    assert written(scene) == [b"a", b"b"]


def test_what_cannot_be_dropped_fails_no_write(scene: Scene) -> None:
    class Undroppable(Transactions):
        async def discard(self, stages: Iterable[StageRef]) -> None:
            raise NoQuorum("no majority of partition 0 can be reached")

    scene.create()
    first, second = (Writer(scene, Undroppable, transaction=scene.topic) for _ in range(2))
    both = [writer.write(rows([b"a"])) for writer in (first, second)]
    for writer, told in zip((first, second), both, strict=True):
        writer.commit([told])
    assert written(scene) == [b"a"]


def expire(scene: Scene, stages: Iterable[StageRef]) -> None:
    """As brokers do by and by: nobody can decide on it any more, and it is discarded."""
    scene.logs.background.run(Transactions(scene.logs.cluster, seconds_max=10).discard(stages))


def test_a_write_whose_decision_comes_too_late_is_told_what_to_do(scene: Scene) -> None:
    scene.create()
    writer = Writer(scene)
    told = writer.write(rows([b"a"]))
    assert isinstance(told, StagedMessage)
    expire(scene, told.stages)
    with pytest.raises(StageExpired, match=r"has expired: .*--stage-expiry.*maxOffsetsPerTrigger"):
        writer.commit([told])
    assert written(scene) == []


class Expiring(Staging):
    """What was staged expires whenever something was added."""

    async def add(self, topic: str, columns: Any, partition: int | None = None) -> None:
        await super().add(topic, columns, partition)
        await Transactions(self._cluster, seconds_max=10).discard(await self.finish())


def test_a_task_that_stages_too_slowly_is_told_what_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create(partitions=1)
    monkeypatch.setattr("talweg.spark.writer.Staging", Expiring)
    with pytest.raises(StageExpired, match=r"was discarded: .*--stage-expiry.*maxOffsetsPerTrigger"):
        Writer(scene).write(iter([*rows([b"a"]), *rows([b"b"])]))


# What was written before


def test_rows_that_are_passed_over_are_told_of_by_name(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.create()
    for values in ([b"a", b"b"], [b"c", b"d", b"e"], []):
        writer = Writer(scene, transaction=scene.topic)
        writer.commit([writer.write(rows(values))])
    assert written(scene) == [b"a", b"b"]
    assert caplog.text.count("was written before") == 1  # nothing is said of no rows
    assert f"transaction {scene.topic} was written before: these 3 rows are passed over" in caplog.text


def test_a_micro_batch_that_is_done_again_is_no_alarm_but_an_older_checkpoint_is(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "talweg.spark")
    scene.create()
    writer = StreamWriter(scene)
    for number in (0, 1, 1):
        writer.write_batch(number, [b"%d" % number])
    (told,) = caplog.records
    assert (told.levelname, told.getMessage()) == (
        "INFO",
        f"micro-batch 1 of query {scene.topic} is done again: it was written before",
    )
    writer.write_batch(0, [b"other", b"rows"])
    assert caplog.records[-1].levelname == "WARNING"
    assert "these 2 rows are passed over; the checkpoint is older" in caplog.text
    assert written(scene) == [b"0", b"1"]
