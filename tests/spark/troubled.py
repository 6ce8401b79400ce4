"""`format("talweg-troubled")`: the sink with trouble at a step of its writing, as a test plans it.

A file `plan` in the directory that the option `trouble` names says what happens and where: `die decide` kills
the process that comes to that step, `wait publish` lets it wait until the file is gone. Each happens once.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from talweg.client.transactions import Transactions
from talweg.protocol.transactions import Decided, StageRef
from talweg.spark import TalwegSource
from talweg.spark.options import WriteOptions, write_options
from talweg.spark.writer import TalwegStreamWriter

STEPS = ("staged", "decide", "decided", "some published", "published", "completed")


class Trouble:
    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def at(self, step: str) -> None:
        """Come to a step."""
        plan = self.directory / "plan"
        if not plan.exists():
            return
        what, _, where = plan.read_text().partition(" ")
        if where != step:
            return
        (self.directory / "reached").write_text(str(os.getpid()))
        if what == "die":
            plan.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        while plan.exists():
            time.sleep(0.01)


class TroubledTransactions(Transactions):
    """Each step with trouble before it."""

    trouble: Trouble

    async def decide(self, name: str, stages: Iterable[StageRef]) -> Decided:
        self.trouble.at("decide")
        decided = await super().decide(name, stages)
        self.trouble.at("decided")
        return decided

    async def publish(self, stages: Iterable[StageRef]) -> None:
        some = list(stages)
        await super().publish(some[:1])
        self.trouble.at("some published")
        await super().publish(some[1:])
        self.trouble.at("published")

    async def complete(self, name: str) -> None:
        await super().complete(name)
        self.trouble.at("completed")


class TroubledWriter(TalwegStreamWriter):
    """Tasks have trouble when they have staged their rows, the driver at each step after."""

    def __init__(self, options: WriteOptions, schema: StructType, trouble: str) -> None:
        super().__init__(options, schema)
        self.trouble = trouble

    def transactions(self, seconds_max: float | None = None) -> Transactions:
        made = TroubledTransactions(
            self._logs.cluster, seconds_max=seconds_max or self._options.connect.seconds_max
        )
        made.trouble = Trouble(self.trouble)
        return made

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        staged = super().write(iterator)
        Trouble(self.trouble).at("staged")
        return staged


class TroubledSource(TalwegSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.trouble = options["trouble"]
        super().__init__({name: value for name, value in options.items() if name != "trouble"})

    @classmethod
    def name(cls) -> str:
        return "talweg-troubled"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return TroubledWriter(write_options(self._given, streaming=True), schema, self.trouble)
