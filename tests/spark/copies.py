"""Queries from a topic to another one, through a sink with trouble (see `troubled`); what becomes of them."""

import os
import signal
from contextlib import suppress
from typing import Any

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from spark.scene import SECONDS_MAX, Scene
from spark.troubled import TroubledSource
from talweg.client.partition_log import Stretch
from talweg.testing.processes import wait_until


class Reached(msgspec.Struct, frozen=True):
    """Somebody came to where trouble was planned."""

    plan: str
    pid: int
    transaction: str


class Copy:
    """A query from the scene's topic to another one, through a sink with trouble."""

    def __init__(self, scene: Scene, name: str = "sink") -> None:
        self.scene = scene
        self.sink = f"{scene.topic}-{name}"
        scene.create(partitions=3, topic=self.sink)
        self.trouble = scene.directory / f"trouble-{name}"
        self.trouble.mkdir()
        self.checkpoint = scene.directory / f"checkpoint-{name}"

    def start(self, **options: Any) -> StreamingQuery:
        """In the session of all tests."""
        self.scene.spark.dataSource.register(TroubledSource)
        frame = self.scene.stream("key binary, value binary", **options)
        writer = frame.writeStream.format("talweg-troubled").options(**self.options())
        return writer.trigger(availableNow=True).start()

    def options(self) -> dict[str, str]:
        return {
            "servers": self.scene.cluster.servers,
            "topic": self.sink,
            "trouble": str(self.trouble),
            "checkpointLocation": str(self.checkpoint),
        }

    def plan(self, what: str = "") -> None:
        draft = self.trouble / "draft"
        draft.write_text(what)
        draft.replace(self.trouble / "plan")

    def reached(self, plan: str) -> list[Reached]:
        """Who came there; a line that is being written is not read yet."""
        with suppress(FileNotFoundError):
            lines = (self.trouble / "reached").read_text().split("\n")[:-1]
            found = [Reached(plan, int(pid), name) for plan, pid, name in (line.split("|") for line in lines)]
            return [each for each in found if each.plan == plan]
        return []

    def kill_tasks(self, transaction: str) -> None:
        """SIGKILL to the processes that staged it, whatever they do now."""
        lines = (self.trouble / "staged").read_text().splitlines()
        pids = {int(pid) for pid, name in (line.split("|") for line in lines) if name == transaction}
        assert pids, f"somebody has staged {transaction}"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_until_reached(self, plan: str, query: StreamingQuery | None = None) -> Reached:
        def there() -> bool:
            if query is not None and (error := query.exception()) is not None:
                raise error
            return bool(self.reached(plan))

        wait_until(there, f"the query to come to: {plan}", SECONDS_MAX)
        return self.reached(plan)[0]

    def written(self) -> list[bytes]:
        """What the sink has, by its log: plain reading, without Spark."""
        found: list[bytes] = []
        for partition, ends in self.scene.logs.ends(self.sink, range(3)).items():
            stretch = Stretch(self.sink, partition, ends.start_offset, ends.next_offset)
            for batch in self.scene.logs.batches(stretch, ["value"], _no_loss):
                found += batch.column("value").to_pylist()
        return sorted(found)


def _no_loss(lost: object, why: str) -> None:
    raise AssertionError(f"{lost}: {why}")
