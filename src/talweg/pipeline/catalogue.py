"""Which pipelines there are: ours by name, and anybody's own from a file.

from talweg.pipeline import pipeline

@pipeline(to_topic="slow")
def slow(lines):
    return lines.where("fields['ms'] > 1000").selectExpr("message AS value")
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from talweg.errors import InvalidSetting
from talweg.pipeline.table import Table

Transform = Callable[[DataFrame], DataFrame]

# What an archive directory has of ours.
RESERVED: Final = frozenset({"messages", "lines", "counts", "sessions", "checkpoints", "report"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Pipeline(msgspec.Struct, frozen=True):
    """A transformation, what it is given, and where its rows go. Exactly one of the last three is set."""

    name: str
    purpose: str
    transform: Transform
    source: Literal["messages", "parsed", "lines"] = "lines"
    to_topic: str | None = None  # an empty text: each row says so in its column `topic`
    to_table: str | None = None
    table: Callable[[Path], Table] | None = None  # where its rows are, if it is ours
    with_: tuple[str, ...] = ()  # pipelines that belong to it, and run whenever it does
    to_archive: Callable[[Path, DataFrame, Mapping[str, int]], int] | None = (
        None  # ours: takes batches and adds them itself
    )


def pipeline(
    *,
    to_topic: str | None = None,
    to_table: str | None = None,
    source: Literal["messages", "lines"] = "lines",
    name: str | None = None,
) -> Callable[[Transform], Pipeline]:
    """Make a function from DataFrame to DataFrame a pipeline.

    It is given parsed log lines, or messages in Kafka's columns (`source="messages"`). What it returns goes
    to a topic (a column `value`, and `key` if wanted) or to a table of Parquet files below the archive.
    """
    if (to_topic is None) == (to_table is None):
        raise InvalidSetting("pipeline: expected either to_topic or to_table")
    if source not in ("messages", "lines"):
        raise InvalidSetting(f"pipeline: source {source!r} is unknown, expected messages or lines")
    if to_table is not None:
        _check_name("to_table", to_table)
        if to_table in RESERVED:
            raise InvalidSetting(f"pipeline: to_table {to_table!r} is taken: an archive has one of its own")

    def decorate(transform: Transform) -> Pipeline:
        purpose = (transform.__doc__ or "").strip().partition("\n")[0]
        called = name or transform.__name__
        _check_name("name", called)
        return Pipeline(called, purpose, transform, source, to_topic, to_table)

    return decorate


def _check_name(what: str, name: str) -> None:
    """It becomes the name of a directory: of the table, or of the checkpoint."""
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"pipeline: {what} {name!r}: expected up to 100 letters, digits, '.', '_' and '-', the first of "
            "them a letter or digit"
        )


def load_file(path: Path) -> list[Pipeline]:
    """The pipelines that a Python file makes; raises InvalidSetting."""
    # A name that nobody else has: a file may be called like a module.
    spec = importlib.util.spec_from_file_location(f"talweg_pipelines_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidSetting(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for their module among the others. It does not stay there: functions for workers then
    # travel whole, not as a name to import there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidSetting(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        del sys.modules[spec.name]
    found = [each for each in vars(module).values() if isinstance(each, Pipeline)]
    if not found:
        raise InvalidSetting(f"{path}: makes no pipeline; put @pipeline(...) above a function")
    return found


def needs_session(error: InvalidSetting) -> bool:
    """Whether a file cannot be loaded only because Spark does not run yet: `@udf("string")` asks it."""
    cause = error.__cause__
    return isinstance(cause, PySparkException) and cause.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"


def choose(wanted: Sequence[str], known: dict[str, Pipeline], files: Sequence[Path] = ()) -> list[Pipeline]:
    """Pipelines by name, or by the file that makes them (`NAME.py`); raises InvalidSetting."""
    chosen: list[Pipeline] = []
    belonging = [each for name in wanted if name in known for each in known[name].with_]
    for name in (*wanted, *(each for each in belonging if each not in wanted)):
        if name in known:
            chosen.append(known[name])
        elif name.endswith(".py"):
            chosen += load_file(Path(name))
        else:
            raise InvalidSetting(
                f"{name}: no such pipeline; expected {', '.join(known)}, or a Python file that makes one"
            )
    for path in files:
        chosen += load_file(path)
    for each in chosen:
        # They would share a checkpoint, and the one would take itself for the other.
        if each.name in known and each is not known[each.name]:
            raise InvalidSetting(f"{each.name}: there is a pipeline of that name; call yours something else")
    names = [each.name for each in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidSetting(f"{', '.join(twice)}: more than one pipeline is called that")
    return chosen
