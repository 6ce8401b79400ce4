"""Imports point down the table of design.md, pure modules stay pure, and edges keep their dependencies."""

import re
import sys
import tomllib
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from house import imports

ROOT = Path(__file__).resolve().parents[2]
STANDARD = frozenset(sys.stdlib_module_names)

Source = list[imports.SourceFile]
Written = Callable[[str, str], Source]


def core_dependencies() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[^\w-]", wanted)[0].lower() for wanted in project["dependencies"])
    return frozenset(name.replace("-", "_") for name in names)  # as they are imported


@pytest.fixture(scope="module")
def source() -> Source:
    return imports.read_source(ROOT / "src")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Puts one file into an otherwise empty source tree and reads that."""

    def write(path: str, text: str) -> Source:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return imports.read_source(tmp_path)

    return write


def test_the_table_itself_has_no_circle() -> None:
    layers = {layer: row - {"*"} for layer, row in imports.TABLE.items()}
    assert set(TopologicalSorter(layers).static_order()) == set(layers)


def test_the_table_lets_servers_and_clients_meet_only_on_the_wire() -> None:
    for server in imports.SERVERS:
        assert not imports.TABLE[server] & imports.CLIENTS
    for client in imports.CLIENTS:
        assert not imports.TABLE[client] & imports.SERVERS


def test_the_architecture_document_shows_the_same_table() -> None:
    rows = re.findall(
        r"^\| `([\w.]+?)(?:/|\.py)?` \|[^|]*\| ([^|]*) \|",
        (ROOT / "ARCHITECTURE.md").read_text(),
        re.MULTILINE,
    )
    shown = {}
    for layer, targets in rows:
        names = frozenset(re.findall(r"`(\w+)`", targets))
        shown[layer] = imports.ANYTHING if targets.strip() == "anything" else names
    below = {layer: row - {"errors"} for layer, row in imports.TABLE.items() if layer != "talweg"}
    assert {layer: row - {"errors"} for layer, row in shown.items() if layer in imports.TABLE} == below


def test_every_module_has_a_row(source: Source) -> None:
    assert source
    assert imports.layers_without_a_row(source) == []


def test_imports_point_down_the_table(source: Source) -> None:
    assert imports.imports_against_the_table(source) == []


def test_pure_modules_reach_for_nothing_outside(source: Source) -> None:
    assert imports.impurities(source) == []


def test_no_bytes_become_code(source: Source) -> None:
    assert imports.unsafe_bytes(source) == []


def test_the_core_imports_only_declared_dependencies(source: Source) -> None:
    assert imports.undeclared(source, core_dependencies(), STANDARD) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("talweg/raft/core.py", "from talweg.records import Batch"),
        ("talweg/raft/core.py", "import talweg.errors"),
        ("talweg/records/batch.py", "from talweg import storage"),
        ("talweg/records/batch.py", "from ..storage import segments"),
        ("talweg/broker/produce.py", "from talweg.client import Producer"),
        ("talweg/client/producer.py", "def f():\n    import talweg.broker.hosting"),
        ("talweg/client/producer.py", "import importlib\nimportlib.import_module('talweg.broker')"),
        ("talweg/replication/driver.py", "from talweg.testing import FakeClock"),
        ("talweg/errors.py", "import talweg"),
        ("talweg/console/pages.py", "from talweg.manager import Manager"),
        ("myqueue/__init__.py", "from talweg.broker import Broker"),
    ],
)
def test_an_import_upwards_is_caught(written: Written, path: str, text: str) -> None:
    assert len(imports.imports_against_the_table(written(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "talweg/storage/segments.py",
            "from talweg.errors import StorageFull\nfrom talweg.raft import Entry",
        ),
        ("talweg/raft/core.py", "from talweg.raft.log import Log\nfrom .log import Log"),
        ("talweg/testing/cluster.py", "from talweg.broker import Broker\nfrom talweg.client import Producer"),
        ("talweg/cli/main.py", "from talweg.testing import cluster"),
    ],
)
def test_an_import_downwards_is_let_through(written: Written, path: str, text: str) -> None:
    files = written(path, text)
    assert imports.imports_against_the_table(files) == []


@pytest.mark.parametrize(
    "name", "asyncio socket time random logging os pathlib threading subprocess tempfile secrets".split()
)
@pytest.mark.parametrize("layer", ["raft", "records"])
def test_a_pure_module_that_reaches_outside_is_caught(written: Written, layer: str, name: str) -> None:
    assert len(imports.impurities(written(f"talweg/{layer}/core.py", f"from {name} import x"))) == 1
    assert imports.impurities(written(f"talweg/{layer}/core.py", "import struct, msgspec")) == []


@pytest.mark.parametrize("text", ["open('x')", "print(1)", "import datetime\ndatetime.datetime.now()"])
def test_a_pure_module_that_touches_a_file_a_terminal_or_a_clock_is_caught(
    written: Written, text: str
) -> None:
    assert len(imports.impurities(written("talweg/records/batch.py", text))) == 1


def test_an_edge_may_open_a_file(written: Written) -> None:
    assert imports.impurities(written("talweg/storage/files.py", "import os\nopen('x')")) == []


def test_unsafe_readers_are_caught(written: Written) -> None:
    assert len(imports.unsafe_bytes(written("talweg/broker/wire.py", "import pickle\neval('1')"))) == 2


def test_a_module_without_a_row_is_caught(written: Written) -> None:
    assert len(imports.layers_without_a_row(written("talweg/misc/things.py", ""))) == 1


@pytest.mark.parametrize("name", ["pyspark", "pysyncobj", "requests", "pytest"])
def test_a_dependency_in_the_wrong_place_is_caught(written: Written, name: str) -> None:
    files = written("talweg/client/producer.py", f"from {name} import x")
    assert len(imports.undeclared(files, core_dependencies(), STANDARD)) == 1


def test_spark_may_import_pyspark(written: Written) -> None:
    files = written("talweg/spark/source.py", "from pyspark.sql.datasource import DataSource")
    assert imports.undeclared(files, core_dependencies(), STANDARD) == []
