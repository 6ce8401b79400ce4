"""`format("talweg-troubled")`: the sink with trouble at a step of its writing, as a test plans it.

A file `plan` in the directory that the option `trouble` names says what happens, in which micro-batch, and
where: `die 0 decide` kills the process that comes to that step, once; `wait 2 published` lets it wait there
until the file is gone or says something else. Who came there is in the file `reached`, a line for each; which
processes staged rows, of which micro-batch, in the file `staged`.
"""

import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from talweg.client.transactions import Transactions
from talweg.protocol.transactions import Decided, DecisionAnswer, StageRef
from talweg.spark import TalwegSource
from talweg.spark.options import WriteOptions, write_options
from talweg.spark.writer import StagedMessage, TalwegStreamWriter

STEPS = ("staged", "decide", "decided", "some published", "published", "completed")


class Trouble:
    """As the file says, which is only ever replaced as a whole."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def at(self, step: str, name: str) -> None:
        """Come to a step in writing a micro-batch, whose number is the end of its name."""
        plan = self._plan()
        what, _, where = plan.partition(" ")
        if where != f"{name.rpartition('/')[2]} {step}":
            return
        self.note("reached", f"{plan}|{os.getpid()}|{name}")
        if what == "die":
            (self.directory / "plan").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while self._plan() == plan:
            time.sleep(0.01)

    def note(self, file: str, line: str) -> None:
        with (self.directory / file).open("a") as opened:
            opened.write(f"{line}\n")

    def _plan(self) -> str:
        try:
            return (self.directory / "plan").read_text()
        except FileNotFoundError:
            return ""


class TroubledTransactions(Transactions):
    """Each step with trouble before or behind it."""

    trouble: Trouble
    name: str  # of what is being published

    async def decide(self, name: str, stages: Iterable[StageRef]) -> Decided:
        self.trouble.at("decide", name)
        decided = await super().decide(name, stages)
        self.trouble.at("decided", name)
        return decided

    async def carry_out(self, name: str, held: Decided | DecisionAnswer) -> None:
        self.name = name
        await super().carry_out(name, held)

    async def publish(self, stages: Iterable[StageRef]) -> bool:
        some = list(stages)
        first = await super().publish(some[:1])
        self.trouble.at("some published", self.name)
        rest = await super().publish(some[1:])
        self.trouble.at("published", self.name)
        return first and rest

    async def complete(self, name: str) -> None:
        await super().complete(name)
        self.trouble.at("completed", name)


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
        assert isinstance(staged, StagedMessage)
        logging.getLogger("talweg.spark").warning("a task has staged %d rows", staged.rows)
        trouble = Trouble(self.trouble)
        trouble.note("staged", f"{os.getpid()}|{staged.transaction}")
        trouble.at("staged", staged.transaction)
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
