"""What tests of pipelines share besides the session and the cluster (tests/spark_session.py)."""

from pathlib import Path

import pytest


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"
