"""What the benchmark needs for Kafka, without Maven and without Kafka."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import machine, spark
from bench.kafka import BROKER, Connector, KafkaCluster, connectors, properties
from bench.maven import Artifact, Libraries, NotFetched, cache_directory, fetch_first
from bench.processes import ProcessFailed
from bench.results import Bound, Missing, Row, Scene

OLD = Libraries((Artifact("a.group", "old", "1"),), with_dependencies=True)
NEW = Libraries((Artifact("a.group", "new", "2"),), with_dependencies=False)
Command = Callable[[str, str], None]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Makes a script that is found instead of whatever the machine has of that name."""
    directory = tmp_path / "commands"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def make(name: str, text: str) -> None:
        path = directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def without_commands(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("PATH", str(directory / "nowhere"))


def maven(command: Command, calls: Path) -> None:
    """One that has only what is new, and says who it asked."""
    command(
        "mvn",
        f"""echo "$4" >> {calls}
for argument; do
  case "$argument" in -DoutputDirectory=*) jars="${{argument#*=}}";; esac
done
if ! grep -q new "$4"; then echo "cannot reach the-registry"; exit 1; fi
mkdir "$jars" && echo jar > "$jars/new-2.jar" """,
    )


def test_the_first_that_can_be_had_is_fetched_and_kept(tmp_path: Path, command: Command) -> None:
    calls, cache = tmp_path / "calls", tmp_path / "cache"
    maven(command, calls)
    for _ in range(2):
        libraries, directory = fetch_first([OLD, NEW], cache)
        assert libraries is NEW
        assert [path.name for path in directory.iterdir()] == ["new-2.jar"]
    assert len(calls.read_text().splitlines()) == 2, "the second time nobody is asked"
    assert sorted(path.name for path in cache.iterdir()) == ["maven.log", directory.name]


def test_what_cannot_be_had_is_named_and_no_host_is(tmp_path: Path, command: Command) -> None:
    maven(command, tmp_path / "calls")
    with pytest.raises(NotFetched, match="old 1") as caught:
        fetch_first([OLD], tmp_path / "cache")
    assert "the-registry" not in str(caught.value)
    assert "the-registry" in (tmp_path / "cache" / "maven.log").read_text()


def test_without_maven_what_is_kept_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_commands(monkeypatch, tmp_path)
    with pytest.raises(NotFetched, match="mvn is not installed"):
        fetch_first([OLD, NEW], tmp_path)
    NEW.directory(tmp_path).mkdir()
    assert fetch_first([OLD, NEW], tmp_path)[0] is NEW


def test_a_project_asks_for_the_dependencies_or_for_none() -> None:
    assert "<version>4.1.0</version></dependency>" in BROKER.project()
    assert "<exclusion>" not in BROKER.project()
    assert NEW.project().count("<exclusion><groupId>*</groupId>") == 1
    changed = Libraries(NEW.artifacts, with_dependencies=True)
    assert changed.directory(Path()) != NEW.directory(Path()), "another project, another directory"


def test_the_cache_is_where_the_user_says() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/a/cache"}) == Path("/a/cache/talweg-bench")
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == cache_directory({})
    assert cache_directory({}).is_relative_to(Path.home())


def test_the_connector_of_sparks_own_version_is_asked_for_first() -> None:
    versions = [[str(each) for each in choice.artifacts[:2]] for choice in connectors("9.1.2")]
    assert versions[0] == ["spark-sql-kafka-0-10_2.13 9.1.2", "spark-token-provider-kafka-0-10_2.13 9.1.2"]
    assert len(connectors("4.2.0")) == len(versions) - 1, "none twice"


def test_three_nodes_of_kafka_know_one_another() -> None:
    clients, controllers = [1, 2, 3], [11, 12, 13]
    settings = [
        dict(line.split("=", 1) for line in properties(number, clients, controllers, Path("d")).splitlines())
        for number in (1, 2, 3)
    ]
    assert {each["controller.quorum.voters"] for each in settings} == {
        "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    }
    assert settings[1]["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12"
    assert [each["node.id"] for each in settings] == ["1", "2", "3"]
    assert all(each["min.insync.replicas"] == "2" for each in settings)


def test_a_node_that_does_not_come_up_says_why_and_none_is_left(tmp_path: Path, command: Command) -> None:
    # The first fails; the others would take their time.
    command(
        "java",
        f"""echo $$ >> {tmp_path}/pids
case "$*" in */1/server.properties) echo "no such class"; exit 1;; esac
exec sleep 600""",
    )
    with pytest.raises(ProcessFailed, match="node 1 could not be formatted\nno such class"):
        KafkaCluster(tmp_path / "kafka", tmp_path / "jars").__enter__()
    pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_without_kafka_the_benchmark_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_commands(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = spark.find_connector()
    assert isinstance(missing, Missing)
    assert "not installed" in missing.reason


@pytest.mark.parametrize(
    ("java", "reason"),
    [
        (
            """echo 'openjdk version "11.0.20" 2023-07-18' >&2""",
            "it runs on Java 17 or newer, and this is 11",
        ),
        ("exit 1", "it runs on Java 17 or newer, and there is none"),
    ],
)
def test_without_a_java_that_spark_runs_on_the_benchmark_says_so(
    java: str, reason: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    command("java", java)
    scene = Scene(tmp_path, lambda what: None)
    assert list(spark.run(scene, spark.QUICK)) == [Missing("Spark", reason)]


def test_java_is_looked_for_where_spark_does(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("java", """echo 'openjdk version "1.8.0_392"' >&2""")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert machine.java_major() == 8
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java_major() is None, "Spark would not look on the PATH"
    (tmp_path / "bin").symlink_to(tmp_path / "commands")
    command("java", """echo 'Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "21" 2023-09-19' >&2""")
    assert machine.java_major() == 21


def test_a_topic_is_filled_with_lines_of_100_bytes() -> None:
    lists = list(spark.lists_of_lines(25_000))
    assert [len(lines) for lines in lists] == [10_000, 10_000, 5_000]
    assert {len(line) for line in lists[0]} == {100}


def figures(connector: Connector) -> dict[str, Row]:
    measured = {
        name: [1.0, 9.0, 2.0]
        for name in (
            "talweg count, talweg values, talweg values alone, talweg all, talweg stream, talweg copy, "
            "parquet values, kafka count, kafka stream"
        ).split(", ")
    } | {"kafka copy": [4.0, 8.0, 9.0], "parquet count": [1.0, 3.0, 1.0]}
    sizes = spark.Sizes(1_000_000, warm_rounds=1, rounds=3)
    found = [*spark.rows(measured, sizes), *spark.kafka_rows(measured, sizes, connector)]
    return {row.what: row for row in found}


def test_figures_are_of_the_median_round_and_kafkas_have_no_bound() -> None:
    found = figures(Connector((), "connector 1"))
    against_parquet = found["Spark batch read into a count: Talweg against Parquet"]
    assert (against_parquet.value, against_parquet.required) == (0.5, Bound(at_least=0.5))
    assert found["Spark stream, topic to topic, exactly once"].value == 0.5
    assert found["Spark batch read into a count: Kafka"].note.endswith("connector 1")
    against_kafka = found["Spark stream, topic to topic: Talweg against Kafka"]
    assert (against_kafka.value, against_kafka.required) == (4.0, None)
