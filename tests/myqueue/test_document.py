"""The examples of docs/myqueue.md run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from myqueue import ApiHandler
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("myqueue")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "myqueue.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(cluster: LocalCluster, api: ApiHandler, number: int) -> None:
    for topic in ("T1", "T2"):
        api.ensure_topic(topic)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]],
        env={**os.environ, "TALWEG_URL": cluster.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
