"""How a session is asked for."""

import os
import shutil
import subprocess
import sys
from io import StringIO
from logging import StreamHandler
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from talweg.pipeline.session import _patient, hush

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(
    ("given", "asked_for"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),  # whoever says how many attempts gets as many
        ("local", "local"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_tasks_on_this_machine_have_four_attempts(given: str, asked_for: str) -> None:
    assert _patient(given) == asked_for


def test_without_java_a_line_says_that_it_is_needed(tmp_path: Path) -> None:
    for tool in (
        "bash",
        "dirname",
        "env",
        "readlink",
        "uname",
    ):  # all that Spark's launcher needs
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    ended = subprocess.run(
        [sys.executable, "-c", "from talweg.pipeline.session import open_session; open_session()"],
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InvalidSetting: --master: no Spark session on local[*]: Java 17 is needed" in ended.stderr


def test_a_mistake_in_a_query_is_raised_and_not_logged_as_well(spark: SparkSession) -> None:
    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    level, said = logger.level, StringIO()
    handler = StreamHandler(said)
    logger.addHandler(handler)
    try:
        hush()
        with pytest.raises(AnalysisException):
            spark.range(1).select("colour").collect()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert said.getvalue() == ""
