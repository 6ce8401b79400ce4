"""One Spark session for everything: it takes seconds to start, so it is started once and shared."""

import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from talweg.errors import InvalidSetting

MASTER: Final = "local[*]"

# What pipelines rest on, wherever the session came from; all of it may be set while a session runs.
RUNTIME: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Else Parquet gets the 96-bit timestamps that only Spark reads gladly.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A micro-batch has a fixed cost: batches that carry nothing, and only move a watermark, may come.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}

_LOCAL: Final = {
    "spark.ui.enabled": "false",
    # What is shuffled are counts, not messages: a few tasks do.
    "spark.sql.shuffle.partitions": "4",
    "spark.python.unix.domain.socket.enabled": "true",
    # Else every expression also tells Spark the line of Python that it stands on.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Several queries share the session; none should wait until another has worked off its backlog.
    "spark.scheduler.mode": "FAIR",
}


def open_session(master: str = MASTER, options: Mapping[str, str] | None = None) -> SparkSession:
    """A session on that master, or the one that this process has already; raises InvalidSetting."""
    # Workers on this machine must be this Python, with these packages, and not whichever is found first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("talweg pipeline").master(_patient(master))
    for name, value in (_LOCAL | dict(options or {})).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - Java's, Spark's own or the launcher's: all mean the same here
        raise InvalidSetting(f"--master: no Spark session on {master}: {_why_not(error)}") from None
    session.sparkContext.setLogLevel("ERROR")
    return configured(session)


def _why_not(error: BaseException) -> str:
    said = first_line(error)
    if "JAVA_GATEWAY_EXITED" in said and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        return "Java 17 is needed (Debian: openjdk-17-jre-headless), and there is no java on the path"
    return said


@contextmanager
def standard_error_into(log: Path) -> Iterator[None]:
    """Whatever is started meanwhile keeps it: Spark tells what goes wrong in hundreds of lines, and its
    workers take their leave with stack traces. Who starts it tells that in one, and where the others are."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def hush() -> None:
    """Have PySpark not log what it raises as well: of a mistake in a query, the whole plan of it."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _patient(master: str) -> str:
    """Four attempts for each task, as on a cluster: a busy machine may start a worker too late."""
    return re.sub(r"^local\[([^,\]]+)\]$", r"local[\1,4]", master)


def configured(session: SparkSession) -> SparkSession:
    """The same session, with the settings that pipelines rest on."""
    for name, value in RUNTIME.items():
        session.conf.set(name, value)
    return session


def first_line(error: BaseException) -> str:
    """What an error says first: Spark's go on for pages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
