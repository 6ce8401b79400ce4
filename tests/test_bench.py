"""Every benchmark runs, in miniature. What it measures is never judged here: a figure fails no test."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from bench import __main__ as command
from bench import (
    batches,
    chart,
    document,
    entries,
    gaps,
    idle,
    machine,
    plain,
    records,
    sending,
    simulation,
    slow_follower,
    store,
    usage,
)
from bench.document import Report, Section
from bench.load import Load, LoadFailed, Plan, run_load
from bench.processes import Cluster, ProcessFailed, attempted
from bench.results import Bound, Curve, Missing, Row, Scene, Yielded

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, lambda what: None)


def rows(results: Iterator[Yielded]) -> dict[str, Row]:
    found = {each.what: each for each in results if isinstance(each, Row)}
    assert all(row.shown_value and row.unit for row in found.values())
    return found


def test_entries_go_through_talweg_and_through_pysyncobj_where_that_is_installed(scene: Scene) -> None:
    rival = entries.Rival("quick ticks", 32)
    size = entries.Pipelined("1 KB", 1 << 10, window=32, ratio_min=10, rivals=[rival])
    sizes = entries.Sizes([size], 1, warm_seconds=0.1, seconds=0.3, one_by_one=10)
    results = list(entries.run(scene, sizes))
    found = rows(iter(results))
    assert found["1 KB entries, pipelined: Talweg"].value > 0
    copies, _ = re.findall(r"([\d.]+) (?:copies|MB/s)", found["1 KB entries, pipelined: Talweg"].note)
    assert 2 <= float(copies) <= 3
    assert found["1 KB entries, one at a time: Talweg, median"].value > 0
    ratio = found.get("1 KB entries, pipelined: Talweg against pysyncobj")
    if importlib.util.find_spec("pysyncobj") is None:
        assert ratio is None
        assert [each.what for each in results if isinstance(each, Missing)] == ["pysyncobj"]
    else:
        assert ratio is not None
        assert ratio.required == Bound(at_least=10)
    assert list(scene.directory.iterdir()) == [], "each measurement cleans up after itself"


def test_what_is_said_to_be_on_the_disk_is_what_each_process_wrote() -> None:
    assert entries.copies_made(10, [110, 110, 60]) == 2.5
    assert entries.copies_made(10, [110, 110, 110]) == 3
    measured = entries.Measured(1000.0, 0, leader_us=1.0, all_us=2.0, copies=2.5)
    assert entries._written([measured], 10_000) == "2.50 copies of each, 25 MB/s to the disk in all"


def test_the_best_rival_is_looked_for_at_several_windows() -> None:
    for size in entries.FULL.pipelined:
        windows = {(rival.setting, rival.window) for rival in size.rivals}
        assert len([each for each in windows if each[0] == "quick ticks"]) >= 2


def test_batches_are_stored_and_compared_with_a_bare_loop(scene: Scene) -> None:
    found = rows(store.run(scene, store.Sizes(batches=3, messages=100)))
    assert found["Segment store against the bare loop"].required == Bound(at_least=0.6)
    assert (scene.directory / "bare").stat().st_size > 4 * 100 * 100


def test_idle_groups_are_watched_in_each_process(scene: Scene) -> None:
    found = rows(idle.run(scene, idle.Sizes(groups=3, rest_seconds=0, seconds=0.1)))
    watched = [row for row in found.values() if row.required == Bound(at_most=10)]
    assert len(watched) == 3
    assert all("threads" in row.note and "descriptors" in row.note for row in watched)


def test_memory_is_sampled_while_a_follower_is_down_and_while_it_catches_up(scene: Scene) -> None:
    sizes = slow_follower.Sizes(warm_seconds=0.1, seconds=0.5, interval_seconds=0.05, window=64)
    results = list(slow_follower.run(scene, sizes))
    curves = [each for each in results if isinstance(each, Curve)]
    assert [curve.what for curve in curves] == [
        "Resident memory of the leader",
        "Resident memory of the live follower",
    ]
    assert all(min(curve.values) > 1 for curve in curves)
    found = rows(iter(results))
    assert found["Pushed while a follower is down"].value > 0
    assert found["Memory while it catches up: returning follower, highest"].value > 1


def test_what_is_sent_is_acknowledged_and_compared_with_confluent_kafka_where_that_is_installed(
    scene: Scene,
) -> None:
    results = list(sending.run(scene, sending.Sizes(2, rounds=1, warm_seconds=0.1, seconds=0.3)))
    found = rows(iter(results))
    assert found["Producer.send"].value > 0
    assert found["Producer.send_many against send"].required == Bound(at_least=3)
    assert found["Producer.send_arrow against send"].required == Bound(at_least=10)
    ratio = "Producer.send, acknowledged, against confluent-kafka's produce(), accepted"
    if importlib.util.find_spec("confluent_kafka") is None:
        assert [each.what for each in results if isinstance(each, Missing)] == ["confluent-kafka"]
    else:
        assert found[ratio].required == Bound(at_least=0.5)
    assert list(scene.directory.iterdir()) == [], "each measurement cleans up after itself"


def test_records_and_simulation_are_timed(scene: Scene) -> None:
    found = rows(records.run(scene, records.Sizes(messages=100, repetitions=2)))
    assert {"the leader's stamp", "decode to Arrow, lz4", "to NDJSON"} <= found.keys()
    assert rows(simulation.run(scene, simulation.Sizes(seeds=1)))["Simulated clusters"].value > 0


@contextmanager
def answering(*pieces: bytes) -> Iterator[int]:
    """A server on a port that answers everything with these pieces, one after the other."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # a client that has seen enough goes
            while connection.recv(1 << 16):
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.001)  # so that they come apart

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def plan(port: int, *, may_fail: bool = False) -> Plan:
    return Plan(port, [b"GET / HTTP/1.1\r\n\r\n"] * 3, b"yes", 0.05, 0.2, may_fail)


def test_an_answer_that_comes_in_pieces_is_counted_once() -> None:
    head, body = b"HTTP/1.1 200 OK\r\nserver: x\r\nContent-Length: 4\r\nx: y\r\n\r\n", b"yes!"
    with answering(head[:20], head[20:] + body[:1], body[1:]) as port:
        load = run_load(plan(port))
    assert 3 <= load.answers <= 0.3 / 0.001 * 3
    assert load.answers_in_all >= load.answers + 3, "those under way at the end are waited for"
    assert load.failures == 0
    assert 0 < load.median_ms <= load.p99_ms


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\nyes", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"],
    ids=["status", "body"],
)
def test_an_answer_that_was_not_hoped_for_is_not_counted(answer: bytes) -> None:
    with answering(answer) as port:
        with pytest.raises(LoadFailed, match="not hoped for"):
            run_load(plan(port))
        with pytest.raises(LoadFailed, match="no answer"):
            run_load(plan(port, may_fail=True))


def test_single_messages_go_through_talweg_a_bare_handler_and_the_reference_design(scene: Scene) -> None:
    sizes = plain.Sizes(4, 2, 3, rounds=1, warm_seconds=0.1, seconds=0.3, variants=plain.VARIANTS[:1])
    results = list(plain.run(scene, sizes))
    found = rows(iter(results))
    assert found["Plain produce, 2 partitions"].value > 0
    assert found["Plain consume, 3 partitions"].value > 0
    assert found["Plain produce: 3 partitions against 2"].required == Bound(at_least=0.5)
    against_bare = found.get("Plain consume against the bare handler")
    against_reference = found.get("Plain produce against the reference design, as it comes")
    if importlib.util.find_spec("fastapi") is None:
        assert against_bare is against_reference is None
        assert len([each for each in results if isinstance(each, Missing)]) == 1
    else:
        assert against_bare is not None
        assert against_bare.required == Bound(at_least=0.2)
        assert against_reference is not None
        assert against_reference.required == Bound(at_least=20)
    assert [path.name for path in scene.directory.iterdir() if path.is_dir()] == []


def test_a_variant_of_the_reference_design_that_fails_is_left_out_and_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = plain.Measured(Load(60, 80, 0, 1.0, 0.1, median_ms=1.0, p99_ms=2.0), {"server": 1.0})
    topics = ("plain", "plain-many")
    talweg = [(f"{topic} {what}", each) for topic in topics for what in ("produce", "consume")]
    slower = msgspec.structs.replace(each, load=msgspec.structs.replace(each.load, seconds=30.0))

    def measure_reference(_scene: Scene, _sizes: plain.Sizes, variant: plain.Variant) -> plain.Measured:
        if variant.name == "as it comes":
            raise LoadFailed("connection reset")
        return slower

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: "there")
    monkeypatch.setattr(plain, "_measure_bare", lambda *_: each)
    monkeypatch.setattr(plain, "_measure_talweg", lambda *_: talweg)
    monkeypatch.setattr(plain, "_measure_reference", measure_reference)
    sizes = msgspec.structs.replace(plain.QUICK, rounds=2)
    results = list(plain.run(scene, sizes))
    missing = Missing("the reference design, as it comes", "connection reset")
    assert [result for result in results if isinstance(result, Missing)] == [missing]
    found = rows(iter(results))
    assert found["Plain produce against the reference design, quick ticks"].value == 30
    assert not [what for what in found if "as it comes" in what]


def test_batches_go_to_leaders_and_come_back_as_arrow(scene: Scene) -> None:
    sizes = batches.Sizes(2, 3, messages=100, window=2, rounds=1, warm_seconds=0.1, seconds=0.3)
    found = rows(batches.run(scene, sizes))
    assert found["Batch produce, 2 partitions"].required == Bound(at_least=2.0)
    assert found["Batch fetch into Arrow, 2 partitions"].value > 0
    assert found["Batch produce: 3 partitions against 2"].required == Bound(at_least=0.5)


def test_a_writer_notices_the_gap_when_a_leader_goes(scene: Scene) -> None:
    found = rows(gaps.run(scene, gaps.Sizes(kills=1, moves=1, removals=1, steady_seconds=0.2)))
    assert found["Write gap after kill -9 of a leader: worst"].value > 0.01
    for how in ("deactivated", "stopped", "removed"):
        assert found[f"Write gap when a leader is {how}: worst"].required == Bound(at_most=300)
    assert found["Messages written around kills and moves"].value > 0


def test_every_benchmark_can_be_chosen_by_its_name() -> None:
    assert list(command.BENCHMARKS) == (
        "entries store idle slow_follower records simulation plain batches "
        "sending consuming gaps spark".split()
    )


def run_command(*arguments: str) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return command.main(arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


def figure_and_curve(scene: Scene) -> Iterator[Yielded]:
    (scene.directory / "file").write_bytes(b"x")
    yield Row("the figure", 3, "times", Bound(at_least=5))
    yield Curve("the curve", "MB", 0.5, [50.0, 100.0])


def test_the_command_line_writes_the_figures_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(scene: Scene) -> Iterator[Yielded]:
        yield Row("a figure before", 1, "ms")
        raise ProcessFailed("it did not start")

    run = figure_and_curve
    monkeypatch.setitem(command.BENCHMARKS, "store", command.Benchmark("Title", "About.", run, run))
    monkeypatch.setitem(command.BENCHMARKS, "idle", command.Benchmark("Other", "About.", fail, fail))
    files = f"--json {tmp_path}/json --page {tmp_path}/page --directory {tmp_path}"
    status = run_command("--only", "store", "--only", "idle", *files.split())
    assert status == 1, "one of them could not be run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["json", "page"], "its files are gone"
    report = msgspec.json.decode((tmp_path / "json").read_bytes())
    assert report["sections"][0]["yielded"][0]["value"] == 3
    assert "it did not start" in report["sections"][1]["failed"]
    page = (tmp_path / "page").read_text()
    assert "| the figure | 3 times | at least 5 times | **no** |" in page
    assert "it did not start" in page
    assert "a figure before" in page
    assert "the figure" in capsys.readouterr().out


def test_the_page_says_what_machine_it_was_and_draws_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = figure_and_curve
    monkeypatch.setitem(command.BENCHMARKS, "store", command.Benchmark("Title", "About.", run, run))
    page = tmp_path / "page"
    assert run_command("--only", "store", "--page", str(page), "--directory", str(tmp_path)) == 0
    text = page.read_text()
    facts = dict(re.findall(r"^\| ([A-Z][a-z ]+) \| (.+) \|$", text, re.MULTILINE))
    assert [*facts] == "Date,Processor,Memory,File system,Kernel,Python,Packages,Load".split(",")
    assert "before the run" in facts["Load"]
    _, block, _ = text.split("```")
    head, top, *_, axis = block.removeprefix("text\n").splitlines()
    assert head == "the curve (MB)"
    assert top == "     100  █"
    assert axis.split() == ["0", "1", "s"]


@pytest.mark.parametrize("arguments", [[], ["--quick"], ["--only", "store"]])
def test_a_full_run_alone_writes_the_page_of_the_documents(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command._PAGE == ROOT / "docs/benchmarks.md"
    page = tmp_path / "docs/benchmarks.md"
    monkeypatch.setattr(command, "_PAGE", page)
    benchmark = command.Benchmark("Title", "About.", figure_and_curve, figure_and_curve)
    monkeypatch.setattr(command, "BENCHMARKS", {"store": benchmark})
    assert run_command(*arguments, "--directory", str(tmp_path)) == 0
    assert page.exists() == (not arguments)
    if not arguments:
        assert "| the figure | 3 times |" in page.read_text()


def test_the_page_names_neither_the_machine_nor_its_directories(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    assert facts["File system"] != "unknown"
    page = document.render(Report("2026-01-01", facts, [Section("name", "Title", "About.")]))
    assert os.uname().nodename not in page
    assert str(tmp_path.parts[1]) not in page


def test_a_bound_is_kept_or_not() -> None:
    assert Row("", 10, "times", Bound(at_least=10)).reached is True
    assert Row("", 9.9, "times", Bound(at_least=10)).reached is False
    assert Row("", 10.1, "%", Bound(at_most=10)).reached is False
    assert Row("", 1, "ms").reached is None


def test_a_curve_is_drawn_from_zero_up() -> None:
    head, *lines, axis = chart.lines(Curve("What", "MB", 1.0, [100.0, 50.0]))
    assert head == "What (MB)"
    assert lines == ["     100 █ ", "         █ ", "         ██", "      25 ██"]
    assert axis.split() == ["0", "2", "s"]
    assert max(map(len, chart.lines(Curve("", "MB", 1.0, [1.0] * 1000)))) <= 9 + chart.COLUMNS_MAX


def test_a_process_that_ends_says_what_it_last_said(tmp_path: Path) -> None:
    with (
        pytest.raises(ProcessFailed, match="No module named"),
        Cluster("bench.there_is_no_such_module", tmp_path) as cluster,
    ):
        cluster.wait_for_leader()


def test_no_process_outlives_its_cluster(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with Cluster("bench.talweg_process", tmp_path) as cluster:
            pids.extend(process.pid for process in cluster.processes.values())
            assert all(usage.threads(pid) for pid in pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 3
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "bench", "--only", "slow_follower", "--directory", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    while len(pids := children.read_text().split()) < 3:
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"interrupted" in output
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_what_fails_is_measured_again_but_not_for_ever() -> None:
    for failures, outcome in ((0, "measured"), (2, "measured"), (3, "failed")):
        left = iter([True] * failures + [False])

        def measure(left: Iterator[bool] = left) -> str:
            if next(left):
                raise ProcessFailed("a hiccup")
            return "measured"

        if outcome == "measured":
            assert attempted(measure, ProcessFailed) == outcome
        else:
            with pytest.raises(ProcessFailed):
                attempted(measure, ProcessFailed)
