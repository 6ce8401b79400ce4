"""A server in its process: the line when it is ready, signals, and mistakes of the world."""

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.talweg_command import Command, run, running

STUBBORN = Path(__file__).with_name("stubborn_server.py")
NOBODY = "http://127.0.0.1:1"  # no manager is there: a broker serves all the same


@contextlib.contextmanager
def stubborn(behaviour: str, *more: str) -> Iterator[Command]:
    command = Command([sys.executable, str(STUBBORN), behaviour, *more])
    try:
        yield command
    finally:
        command.close()


def test_a_broker_says_where_it_is_when_it_is_ready_and_stops_cleanly(tmp_path: Path) -> None:
    with running("broker", "--data", str(tmp_path / "b"), "--port", "0", "--managers", NOBODY) as broker:
        line = broker.wait_for_line("ready")
        port = re.fullmatch(r"talweg broker ready at http://127\.0\.0\.1:(\d+)", line)
        assert port is not None
        socket.create_connection(("127.0.0.1", int(port[1])), 5).close()
        broker.send(signal.SIGTERM)
        assert broker.wait() == 0
        assert broker.out == [line]
        assert "Traceback" not in broker.story()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with stubborn("good") as server:
        server.wait_for_line("ready")
        server.send(number)
        assert server.wait() == 0
        assert any(f"{number.name}: stopping" in line for line in server.err)


def test_log_lines_have_a_time_and_a_level() -> None:
    with stubborn("good") as server:
        server.wait_for_line("ready")
        server.send(signal.SIGTERM)
        server.wait()
        stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) +[\w.]+: .+"
        assert server.err
        assert all(re.fullmatch(stamp, line) for line in server.err)


def test_the_second_signal_ends_it_at_once() -> None:
    with stubborn("never-stops") as server:
        server.wait_for_line("ready")
        server.send(signal.SIGTERM)
        server.wait_for_line("SIGTERM: stopping", of_err=True)
        server.send(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


def test_what_is_not_there_yet_is_said_and_waited_for() -> None:
    with stubborn("unreachable-twice") as server:
        server.wait_for_line("ready")
        complaints = [line for line in server.err if "nobody answers" in line]
        assert len(complaints) == 2
        assert "trying again" in complaints[0]


@pytest.mark.parametrize("behaviour", ["never-there", "hangs"])
def test_one_that_waits_at_its_start_can_be_stopped(behaviour: str) -> None:
    with stubborn(behaviour) as server:
        if behaviour == "never-there":
            server.wait_for_line("nobody answers", of_err=True)
        while server.process.poll() is None:  # the first may come before there is a handler
            server.send(signal.SIGTERM)
            with contextlib.suppress(Exception):
                server.process.wait(0.3)
        assert server.wait() in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        assert "Traceback" not in server.story()


def test_a_server_that_cannot_go_on_says_why_and_ends() -> None:
    with stubborn("breaks") as server:
        assert server.wait() == 1
        assert "cannot go on: no disk" in server.err[-2] + server.err[-1]
        assert "Traceback" not in server.story()


def test_one_that_cannot_start_says_why_in_one_line() -> None:
    with stubborn("says-no") as server:
        assert server.wait() == 1
        assert server.err == ["talweg: written by a newer Talweg"]


def test_an_attached_one_stops_when_its_parent_lets_go() -> None:
    with stubborn("good", "attached") as server:
        server.wait_for_line("ready")
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.wait() == 0


def test_a_port_that_is_taken_is_told_without_a_trace(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run("broker", "--port", port, "--data", str(tmp_path / "b"), "--managers", NOBODY)
    assert ended.returncode == 2
    assert f"talweg: --host, --port: cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity").write_text('{"format": 99, "incarnation": "x"}')
    ended = run("broker", "--port", "0", "--data", str(tmp_path), "--managers", NOBODY)
    assert ended.returncode == 1
    assert "newer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run("broker", "--port", "0", "--data", str(tmp_path / "file" / "b"), "--managers", NOBODY)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"talweg: --data: {tmp_path / 'file'}")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("storage", ["sqlite:///{}/no/log.db", "segments://{}/file/log"])
def test_a_place_where_messages_cannot_be_kept_is_told(tmp_path: Path, storage: str) -> None:
    (tmp_path / "file").write_text("")
    place = ["--data", str(tmp_path / "b"), "--storage", storage.format(tmp_path)]
    ended = run("broker", "--port", "0", *place, "--managers", NOBODY)
    assert ended.returncode in (1, 2)
    assert ended.stderr.startswith("talweg: --storage: ")
    assert "Traceback" not in ended.stderr


def test_a_manager_whose_metadata_store_is_not_there_says_so_and_goes_on() -> None:
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
    with running("manager", "--port", "0", "--metadata", nowhere) as manager:
        manager.wait_for_line("the metadata store cannot be reached", of_err=True)
        manager.wait_for_line("ready")
        manager.send(signal.SIGTERM)
        assert manager.wait() == 0
        assert "Traceback" not in manager.story()


def test_a_metadata_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run("manager", "--port", "0", "--metadata", f"sqlite:///{tmp_path}/file/metadata.db")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith(f"talweg: --metadata: the directory {tmp_path / 'file'}")


def test_a_metadata_url_that_cannot_work_is_told() -> None:
    ended = run("manager", "--port", "0", "--metadata", "redis://host:port")
    assert ended.returncode == 2
    assert ended.stderr.startswith("talweg: --metadata: ")
    assert "expected redis://HOST:PORT" in ended.stderr
