"""Each message is in the sink exactly once, whatever is killed at whichever step, however rows are spread.

A driver and executors are killed in tests/spark/test_drivers.py, a whole worker in the midst of staging in
tests/pipeline/test_standalone.py: that takes a cluster of Spark's own.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark.copies import Copy
from spark.scene import SECONDS_MAX, Scene, end_of
from spark.troubled import STEPS
from talweg.pipeline.runner import is_sparks_fault
from talweg.protocol.transactions import TRANSACTIONS, decision_partition

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture
def copy(scene: Scene) -> Iterator[Copy]:
    made = Copy(scene)
    yield made
    made.plan()  # whoever waits goes on


def test_a_stream_is_written_once(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(1000)
    end_of(lambda: copy.start(maxOffsetsPerTrigger=400))
    end_of(copy.start)
    assert copy.written() == sorted(sent)


def test_a_task_that_died_when_it_had_staged_is_done_again(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(300)
    copy.plan("die 0 staged")
    end_of(copy.start)
    assert len(copy.reached("die 0 staged")) == 1
    assert copy.written() == sorted(sent)


def fails(copy: Copy, plan: str, **options: Any) -> None:
    """Run the query until whoever commits dies as planned. Spark may fail it for reasons of its own, too."""
    copy.plan(plan)
    while not copy.reached(plan):
        with pytest.raises(PySparkException) as caught:
            copy.start(**options).awaitTermination(SECONDS_MAX)
        assert copy.reached(plan) or is_sparks_fault(caught.value), caught.value


def test_whoever_dies_at_a_step_is_made_good_by_a_replay(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(1000)
    for batch, step in enumerate(STEPS[1:]):
        # The batch before, done again: its rows are spread over tasks and, having no key, over partitions, as
        # they were not before. Then the next one, which dies in its turn.
        fails(copy, f"die {batch} {step}", maxOffsetsPerTrigger=100, minPartitions=2 + batch)
    end_of(lambda: copy.start(minPartitions=9))
    assert copy.written() == sorted(sent)


def test_a_leader_or_a_finished_task_killed_at_a_step_costs_a_delay(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(600)
    plans = [f"wait {batch} {step}" for batch, step in enumerate(STEPS)]
    copy.plan(plans[0])
    query = copy.start(maxOffsetsPerTrigger=100)
    for step, plan, following in zip(STEPS, plans, [*plans[1:], ""], strict=True):
        reached = copy.wait_until_reached(plan, query)
        scene.cluster.heal(SECONDS_MAX)  # the one that was killed before
        if step == "decide":
            copy.kill_tasks(reached.transaction)  # they are done: what they staged counts all the same
        if step in ("decide", "decided", "published"):  # behind the last of them it is completed
            partitions = len(scene.logs.topic(TRANSACTIONS).partitions)
            scene.cluster.kill_leader(TRANSACTIONS, decision_partition(reached.transaction, partitions))
        else:
            scene.cluster.kill_leader(copy.sink, 0)
        copy.plan(following)
    assert query.awaitTermination(SECONDS_MAX)
    assert copy.written() == sorted(sent)
