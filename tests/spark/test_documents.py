"""The examples of the document on Spark run as they stand, but for the cluster's address."""

import re
from pathlib import Path

import pytest

from spark.scene import Scene, values_of
from talweg.spark.options import ALL

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_the_examples_run(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert scene.spark.version  # else the first example would start a session of its own
    scene.create(partitions=2, topic="logs")
    scene.send(0, [b"INFO fine", b"ERROR spilt"], topic="logs")
    scene.send(1, [b"ERROR again"], topic="logs")
    assert len(EXAMPLES) == 4
    printed = []
    for number, example in enumerate(EXAMPLES):
        code = example.replace("http://127.0.0.1:8000", scene.cluster.servers)
        exec(compile(code, f"example {number}", "exec"), {"__name__": "example"})
        printed.append(capsys.readouterr().out.split())
    assert printed[0][-1] == "2"
    assert printed[1] == printed[2] == ["3"]
    assert values_of(scene.read(subscribe="errors")) == [b"ERROR again", b"ERROR spilt", b"one", b"two"]


def test_every_option_is_in_the_table() -> None:
    named = set(re.findall(r"`([\w.]+)`", DOCUMENT[DOCUMENT.index("## Options") :]))
    assert set(ALL) - named == {"checkpointLocation", "queryName"}
