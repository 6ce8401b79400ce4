"""`talweg up`: a whole cluster, from nothing to ready and back, twice."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.talweg_command import TALWEG, Command, clean_environment, run, running
from server_process import is_alive, stands_still
from talweg.testing.asking import Asker, try_to_get
from talweg.testing.ports import Ports
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("cli-up")


@pytest.fixture
def port() -> Iterator[str]:
    ports = Ports()
    yield str(ports.take_any("primary"))
    ports.close()


@contextlib.contextmanager
def up(data: Path, port: str, *more: str) -> Iterator[tuple[Command, dict[str, Any]]]:
    """A cluster that is ready, and the document that says so; stopped by SIGINT at the end."""
    with running("up", "--data", str(data), "--port", port, "--json", *more) as command:
        document = json.loads(command.wait_for_line("{"))
        try:
            yield command, document
        finally:
            if command.process.poll() is None:
                began = time.monotonic()
                command.send(signal.SIGINT)
                assert command.wait() == 0, command.story()
                assert time.monotonic() - began < 5.0
                assert "did not stop in time" not in command.story()
        pids = [row["pid"] for row in document["processes"]]
        assert not any(is_alive(pid) for pid in pids)


def test_up_twice_on_one_directory_finds_everything_again(tmp_path: Path, port: str) -> None:
    with up(tmp_path, port) as (_, first):
        assert first["url"] == f"http://127.0.0.1:{port}"
        names = [row["name"] for row in first["processes"]]
        assert names == ["primary", "reader-1", "reader-2", "broker-1", "broker-2", "broker-3"]
        assert all(row["state"] == "ready" and Path(row["log"]).exists() for row in first["processes"])
        with Asker(first["url"]) as manager:
            manager.post("/topics", name="kept", partitions=2)
            producer = manager.post("/producer/register", topic="kept")["producer_id"]
            consumer = manager.post("/consumer/register", topic="kept")["consumer_id"]
            for number in range(6):
                manager.post("/producer/produce", topic="kept", producer_id=producer, message=f"m{number}")
            asked = {"topic": "kept", "consumer_id": consumer}
            assert [manager.get("/consumer/consume", **asked)["message"] for _ in range(2)] == ["m0", "m1"]
    with up(tmp_path, port) as (_, second):
        assert [row["endpoint"] for row in second["processes"]] == [
            row["endpoint"] for row in first["processes"]
        ]
        with Asker(second["processes"][1]["endpoint"]) as reader:
            assert [reader.get("/consumer/consume", **asked)["message"] for _ in range(4)] == [
                "m2", "m3", "m4", "m5",
            ]  # fmt: skip
        with Asker(second["url"]) as manager:
            assert manager.post("/producer/register", topic="kept")["producer_id"] > producer
            brokers = manager.get("/admin/brokers")["brokers"]
            assert len(brokers) == 3, "the same three, not three more"


def test_one_that_dies_is_started_again_and_a_directory_is_for_one(tmp_path: Path, port: str) -> None:
    with up(tmp_path, port) as (command, document):
        again = run("up", "--data", str(tmp_path), "--port", port)
        assert again.returncode == 2
        assert "is in use by another cluster" in again.stderr
        assert "Traceback" not in again.stderr
        for name in ("broker-2", "primary"):
            row = next(row for row in document["processes"] if row["name"] == name)
            os.kill(row["pid"], signal.SIGKILL)
            command.wait_for_line(f"{name} was killed by signal 9; starting it again", of_err=True)
            command.wait_for_line(f"{name} started again", of_err=True)
            wait_until(lambda row=row: try_to_get(row["endpoint"], "/") is not None, name, 30)  # type: ignore[misc]


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run("up", "--data", str(tmp_path), "--port", port)
    assert ended.returncode == 2
    assert f"port {port} is in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path, port: str) -> None:
    (tmp_path / "file").write_text("")
    ended = run("up", "--data", str(tmp_path / "file" / "data"), "--port", port)
    assert ended.returncode == 2
    assert str(tmp_path / "file") in ended.stderr
    assert "Traceback" not in ended.stderr


SCRIPT = """
import os, sys, urllib.request
with urllib.request.urlopen(os.environ["TALWEG_URL"] + "/admin/brokers") as answer:
    print(answer.read().decode())
sys.exit(7)
"""


def test_a_command_runs_on_the_cluster_and_gives_its_exit_code(tmp_path: Path, port: str) -> None:
    data = tmp_path / "100%41 of? #ö:"  # it is a directory's name, and no part of a URL
    small = ["up", "--data", str(data), "--port", port, "--brokers", "1", "--readers", "0"]
    ended = run(*small, "--", sys.executable, "-c", SCRIPT)
    assert (data / "metadata.db").exists()
    assert ended.returncode == 7
    brokers = json.loads(ended.stdout)["brokers"]  # nothing else is printed there
    assert [broker["status"] for broker in brokers] == ["active"]
    ended = run(*small, "--", "sh", "-c", "kill -9 $$")
    assert ended.returncode == 128 + 9
    ended = run(*small, "--", "no-such-command")
    assert ended.returncode == 127
    assert "no-such-command" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_signal_reaches_the_command_and_everything_stops(tmp_path: Path, port: str) -> None:
    small = ["up", "--data", str(tmp_path), "--port", port, "--brokers", "1", "--readers", "0"]
    waits = "trap 'exit 5' TERM; echo waiting; while true; do sleep 0.1; done"
    with running(*small, "--", "sh", "-c", waits) as command:
        command.wait_for_line("waiting")
        command.send(signal.SIGTERM)
        assert command.wait() == 5


def test_children_end_when_the_parent_is_killed(tmp_path: Path, port: str) -> None:
    arguments = ["--data", str(tmp_path), "--port", port, "--brokers", "2", "--readers", "1", "--json"]
    with running("up", *arguments) as command:
        document = json.loads(command.wait_for_line("{"))
        pids = {row["name"]: row["pid"] for row in document["processes"]}
        os.kill(pids["broker-2"], signal.SIGSTOP)  # one that stands still must go, too
        wait_until(lambda: stands_still(pids["broker-2"]), "it to stand still", 60)
        command.process.kill()
        command.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids.values()), "the children to end", 15)
    with up(tmp_path, port, "--brokers", "2", "--readers", "1"):
        pass


def test_a_terminal_shows_a_table_and_ctrl_c_stops_it(tmp_path: Path, port: str) -> None:
    ours, theirs = pty.openpty()
    arguments = ["up", "--data", str(tmp_path), "--port", port, "--brokers", "1", "--readers", "1"]
    process = subprocess.Popen(
        [*TALWEG, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment(TERM="xterm"),
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads run here
    )
    os.close(theirs)
    seen = b""
    try:
        while b"Ctrl-C stops it" not in seen:
            seen += os.read(ours, 65536)
        os.write(ours, b"\x03")
        with contextlib.suppress(OSError):  # the terminal goes with the last process on it
            while piece := os.read(ours, 65536):
                seen += piece
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert re.search(r"primary +primary +http://127\.0\.0\.1:\d+ +ready", text)
    assert re.search(r"broker-1 +broker +http://127\.0\.0\.1:\d+ +stopped", text)
    assert "Traceback" not in text


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(("terminal", "shown"), [("xterm", "TableDisplay"), ("dumb", "LinesDisplay")])
def test_a_terminal_that_cannot_show_a_table_is_told_in_lines(terminal: str, shown: str) -> None:
    ours, theirs = pty.openpty()
    program = (
        "from talweg.cli.status import choose_display\n"
        "display = choose_display(as_json=False, alone=True)\n"
        "display.close()\n"
        "print(type(display).__name__)\n"
    )
    environment = clean_environment(TERM=terminal)
    subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert shown in seen
