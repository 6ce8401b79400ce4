"""One Spark session and one cluster for all tests over Spark: each takes many seconds to start.

Tests that use them are in the xdist group `spark`, so that one worker has them all. Spark is not loaded
before a test asks for it.
"""

import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared_clusters import shared_cluster
from talweg.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.scene import Scene

TESTS = Path(__file__).resolve().parent

BOTH = {"--heartbeat": "200ms", "--request-timeout": "3s"}
CLUSTER_SETTINGS = {
    # Retention cuts at snapshots: with small ones, and a look every moment, tests can wait for it.
    "broker": BOTH | {"--tick": "50ms", "--snapshot-every": "64KiB", "--retention-every": "200ms"},
    "manager": BOTH | {"--lease": "1s", "--health": "200ms", "--partitions-max": "500"},
}
# What runs for seconds is not worth compiling well, nor collecting in parallel.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # as pipelines set it
    "spark.sql.python.filterPushdown.enabled": "true",
}
# Four attempts for a task, as on a cluster: a busy machine may start a worker too late for Spark's liking.
MASTER = "local[2,4]"


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What this process, and every driver that a test starts, needs to know; it is set here, too."""
    # Spark puts its own pyspark, a zip of sources, first in the path of its workers: each would compile it
    # anew, for a second. So they are started with a path of ours, which finds the one that is installed, and
    # sources of the tests' own (troubled.py). Without a choice Spark takes whatever python3 comes first.
    python = tmp_path_factory.mktemp("python") / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(TESTS))} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    made = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ.update(made)
    return made


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]
) -> "Iterator[SparkSession]":
    from pyspark.sql import SparkSession

    from talweg.pipeline.session import RUNTIME

    directory = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master(MASTER).appName("talweg-tests")
    places = {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory)}
    for name, value in (SPARK_SETTINGS | RUNTIME | places).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


_numbers = itertools.count()


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Scene]":
    """Everything runs, whatever the test before did, and a name for a topic that no test had before."""
    from spark.scene import Scene

    cluster = shared_cluster(request, lambda: LocalCluster(readers=1, settings=CLUSTER_SETTINGS))
    cluster.heal(seconds_max=180)
    scene = Scene(lambda: request.getfixturevalue("spark"), cluster, f"topic-{next(_numbers)}", tmp_path)
    yield scene
    scene.close()
