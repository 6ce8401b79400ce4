"""The examples of the document on producers, run as they stand."""

import re
from pathlib import Path

import pytest

from talweg.client.producer import Producer
from talweg.client.producer_settings import BATCH_BYTES
from talweg.testing.cluster import LocalCluster

DOCUMENT = (Path(__file__).parents[2] / "docs" / "producer.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_it_stands(
    cluster: LocalCluster, example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALWEG_URL", cluster.url)
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    if (
        re.search("^ +print", example, re.MULTILINE)
        and " as failed" not in example
        and " as error" not in example
    ):
        assert capsys.readouterr().out


def test_every_setting_is_in_the_document_with_its_default() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (\S+(?: MiB)?) \|", DOCUMENT, re.MULTILINE))
    defaults = dict(Producer.__init__.__kwdefaults__ or {})
    assert defaults["batch_bytes"] == BATCH_BYTES
    assert shown.keys() == defaults.keys()
    for name, default in defaults.items():
        said = shown[name]
        if said.endswith(" MiB"):
            assert int(said.removesuffix(" MiB")) << 20 == default
        else:
            assert said == (f'"{default}"' if isinstance(default, str) else str(default))
