"""The session and the cluster of tests/spark: one of each, whichever directory's tests come first."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.conftest import scene, session_cluster, spark
from talweg.pipeline.session import configured

__all__ = ["scene", "session_cluster", "spark"]


@pytest.fixture(autouse=True)
def settings(request: pytest.FixtureRequest) -> None:
    """As pipelines want them, for tests that have a session."""
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        configured(session)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"
