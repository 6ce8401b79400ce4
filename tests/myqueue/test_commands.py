"""runproduce, runconsume and the set-ups as people run them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from myqueue import ApiHandler, MyProducer
from myqueue.delivery import Delivery
from myqueue.log_file import read_consumer_log
from myqueue.setups import _show_table
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("myqueue")

ROOT = Path(__file__).resolve().parents[2]


def start(module: str, *arguments: object, broker: str | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", f"myqueue.{module}", *map(str, arguments)]
    environment = {**os.environ, **({"TALWEG_URL": broker} if broker else {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def run(module: str, *arguments: object, broker: str | None = None) -> tuple[int, str, str]:
    with start(module, *arguments, broker=broker) as process:
        output, errors = process.communicate(timeout=90)
    assert "Traceback" not in errors
    return process.returncode, output, errors


def wait_for_lines(path: Path, count: int) -> None:
    wait_until(lambda: path.read_bytes().count(b"\n") >= count, f"{count} lines in {path.name}", 30)


@pytest.fixture
def recording(broker: str, topic: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A consumer that has registered."""
    with start("runconsume", "--id", 7, "--topics", topic, "--log_loc", tmp_path, broker=broker) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"consumer 7 ready: {topic}\n"
        yield process
        process.kill()


def test_a_log_goes_in_and_comes_out(
    recording: "subprocess.Popen[str]", broker: str, topic: str, tmp_path: Path
) -> None:
    lines = [f"00:00:{n:02}\tmessage {n}\t\tP3-{n // 3}\t{topic}" for n in range(9)]
    (tmp_path / "producer_3.txt").write_text("\n".join(lines))
    code, output, errors = run(
        "runproduce", "--id", 3, "--topics", topic, "--broker", broker, "--log_loc", tmp_path, "--json"
    )
    assert (code, errors) == (0, "")
    assert json.loads(output)["sent"] == 9
    written = tmp_path / "consumer_7.txt"
    wait_for_lines(written, 9)
    recording.send_signal(signal.SIGINT)
    output, errors = recording.communicate(timeout=30)
    assert (recording.returncode, output, errors) == (0, "consumer 7: 9 messages received\n", "")
    came = [message.decode() for _, message in read_consumer_log(written)]
    assert [sorted(came[at : at + 3]) for at in (0, 3, 6)] == [
        [f"message {n}" for n in range(at, at + 3)] for at in (0, 3, 6)
    ], "a tag goes out when the one before it is there"


def test_any_message_can_be_recorded(
    recording: "subprocess.Popen[str]", broker: str, topic: str, tmp_path: Path
) -> None:
    odd = ["two\nlines", "a\ttab", "back\\slash", "\r", "\x85\u2028"]
    with MyProducer(topic, broker) as producer:
        for text in odd:
            producer.produce(topic, text)
    wait_for_lines(tmp_path / "consumer_7.txt", len(odd))
    recording.terminate()
    recording.communicate(timeout=30)
    assert recording.returncode == 0
    came = read_consumer_log(tmp_path / "consumer_7.txt")
    assert sorted(message.decode() for _, message in came) == sorted(odd)


@pytest.mark.parametrize(
    "bad", ["00:00:01\tx\tP1-2", "00:00:01\tx\tP1-2\tanother-topic"], ids=["shape", "topic"]
)
def test_a_bad_file_is_refused_and_nothing_is_sent(
    api: ApiHandler, broker: str, topic: str, tmp_path: Path, bad: str
) -> None:
    api.create_topic(topic)
    good = f"00:00:00\tx\tP1-1\t{topic}\n"
    (tmp_path / "producer_1.txt").write_text(good * 3 + bad + "\n" + good)
    code, output, errors = run(
        "runproduce", "--id", 1, "--topics", topic, "--broker", broker, "--log_loc", tmp_path
    )
    assert (code, output) == (2, "")
    assert errors.startswith("myqueue: log file: incompatible: ")
    assert "line 4" in errors
    assert [partition.size for partition in api.list_partitions(topic)] == [0, 0, 0, 0]
    assert topic not in {producer["topic"] for producer in api.list_producers()}


def test_a_consumer_ends_after_a_count_or_when_nothing_comes(broker: str, topic: str, tmp_path: Path) -> None:
    given = ("--id", 1, "--topics", topic, "--log_loc", tmp_path, "--json")
    code, output, _ = run("runconsume", *given, "--idle-seconds", 0.3, broker=broker)
    assert (code, json.loads(output)["received"]) == (0, 0)
    code, output, errors = run("runconsume", *given, "--idle-seconds", 0.3, "--count", 2, broker=broker)
    assert (code, json.loads(output)["received"]) == (1, 0)
    assert "only 0 of 2" in errors
    with start("runconsume", *given, "--count", 2, broker=broker) as process:
        assert process.stderr is not None
        process.stderr.readline()
        with MyProducer(topic, broker) as producer:
            for number in range(5):
                producer.produce(topic, str(number))
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(output)["received"] == 2
    assert len(read_consumer_log(tmp_path / "consumer_1.txt")) == 2


@pytest.mark.parametrize(
    ("module", "arguments", "expected"),
    [
        ("runproduce", ["--id", "1", "--topics", "T1", "--log_loc", "no-such-place"], "cannot be read"),
        ("runproduce", ["--topics", "T1"], "--id"),
        ("runproduce", ["--id", "-1", "--topics", "T1"], "--id"),
        ("runconsume", ["--id", "1", "--topics", "T1", "--broker", "ftp://a"], "HOST:PORT"),
        ("runconsume", ["--id", "1", "--topics", "T1", "--idle-seconds", "0"], "--idle-seconds"),
        ("setups", ["3P1C"], "3P1C"),
        ("setups", ["2P2C", "--lines", "0"], "--lines"),
        ("setups", ["2P2C", "--log_loc", "no-such-place"], "no-such-place"),
        ("setups", ["2P2C", "--log_loc", ".", "--lines", "3"], "not allowed with"),
    ],
)
def test_what_is_given_wrong_is_named(module: str, arguments: list[str], expected: str) -> None:
    code, output, errors = run(module, *arguments)
    assert (code, output) == (2, "")
    assert expected in errors


def test_nobody_at_the_address_is_said_in_a_line(tmp_path: Path) -> None:
    code, _, errors = run("runconsume", "--id", 1, "--topics", "T1", "--broker", "127.0.0.1:1")
    assert code == 1
    assert errors.count("\n") == 1
    assert "is the cluster up" in errors


@pytest.mark.parametrize(("name", "consumers"), [("2P2C", 2), ("5P3C", 3)])
def test_a_set_up_runs_as_one_command_and_again(
    broker: str, tmp_path: Path, name: str, consumers: int
) -> None:
    for source in (ROOT / "examples" / name).glob("producer_*.txt"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    code, output, errors = run("setups", name, "--log_loc", tmp_path, broker=broker)
    assert (code, errors) == (0, "")
    assert "every consumer got exactly what it should" in output
    assert len(list(tmp_path.glob("consumer_*.txt"))) == consumers
    code, output, errors = run("setups", name, "--lines", 12, "--json", broker=broker)
    assert (code, errors) == (0, "")
    rows = json.loads(output)["deliveries"]
    assert {row["consumer"] for row in rows} == set(range(1, consumers + 1))
    assert all(row["received"] == row["expected"] > 0 and row["in_order"] for row in rows)


def test_the_table_of_a_set_up_is_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    missing = Counter({"lost": 12_345})
    _show_table("2P2C", [Delivery(1, "T1", 12_345, 0, missing, Counter(), ())])
    shown = capsys.readouterr().out
    for cell in ("consumer", "expected", "received", "missing", "too many", "tags in order", "12345"):
        assert cell in shown
