"""One Spark session and one cluster for all tests over Spark: each takes seconds to start.

Tests that use them are in the xdist group `spark`, so that one worker has them all.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.scene import Scene
from talweg.testing.cluster import LocalCluster

TESTS = Path(__file__).resolve().parents[1]

BOTH = {"--heartbeat": "200ms", "--partitions-max": "500", "--request-timeout": "3s"}
SETTINGS = {
    # Retention cuts at snapshots: with small ones, and a look every moment, tests can wait for it.
    "broker": BOTH | {"--tick": "50ms", "--snapshot-every": "64KiB", "--retention-every": "200ms"},
    "manager": BOTH | {"--lease": "1s", "--health": "200ms"},
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Else Spark starts its workers with whatever python3 is first in PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Workers are to find sources of the tests' own (troubled.py).
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("talweg-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(readers=1, settings=SETTINGS) as cluster:
        yield cluster


_numbers = itertools.count()


@pytest.fixture
def scene(request: pytest.FixtureRequest, session_cluster: LocalCluster, tmp_path: Path) -> Iterator[Scene]:
    """Everything runs, whatever the test before did, and a name for a topic that no test had before."""
    session_cluster.heal()
    scene = Scene(
        lambda: request.getfixturevalue("spark"), session_cluster, f"topic-{next(_numbers)}", tmp_path
    )
    yield scene
    scene.close()
