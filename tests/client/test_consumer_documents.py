"""The examples of the documents on consumers and administration, run as they stand."""

import re
from pathlib import Path

import pytest

from client.consuming import create, numbered, produce
from talweg.testing.cluster import LocalCluster

DOCUMENTS = [Path(__file__).parents[2] / "docs" / name for name in ("consumer.md", "admin.md")]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(example, id=f"{document.stem}-{number}")
    for document in DOCUMENTS
    for number, example in enumerate(BLOCK.findall(document.read_text()))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_it_stands(
    cluster: LocalCluster, example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALWEG_URL", cluster.url)
    with cluster.ask() as manager:
        known = {topic["topic"] for topic in manager.get("/v1/metadata")["topics"]}
    if "logs" not in known:
        create(cluster, "logs", 2)
        produce(cluster, "logs", [*numbered(5), b"good bye"], 0)
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    if "print" in example:
        assert capsys.readouterr().out
