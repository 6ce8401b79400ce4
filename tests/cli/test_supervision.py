"""The pieces that clusters of processes are made of: ports, the directory's lock, restarts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server_process import is_alive
from talweg.errors import InvalidSetting
from talweg.testing.cluster import PORTS_FILE, LocalCluster
from talweg.testing.directory_lock import DirectoryLock
from talweg.testing.ports import Ports, is_free, read_ports, write_ports
from talweg.testing.processes import Process, Restart, Supervisor, stop_all, wait_until


def test_ports_are_free_and_no_two_are_the_same() -> None:
    first, second = Ports(), Ports()
    taken = [ports.take_any(name) for ports in (first, second) for name in ("a", "b", "c")]
    assert len(set(taken)) == 6
    assert all(is_free(port) for port in taken)
    first.close()
    second.close()


def test_a_port_is_the_same_again_if_it_is_free(tmp_path: Path) -> None:
    ports = Ports()
    port = ports.take_any("a")
    write_ports(tmp_path / "ports.json", ports.by_name)
    ports.close()
    again = Ports(read_ports(tmp_path / "ports.json"))
    assert again.take_any("a") == port
    again.close()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        other = Ports(read_ports(tmp_path / "ports.json"))
        assert other.take_any("a") != port
        with pytest.raises(InvalidSetting, match=f"port {port} is in use"):
            other.take("b", port)
        other.close()


def test_the_port_of_another_cluster_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # To try one is to listen on it for a moment: a process that starts there just then would find it taken.
    other, tried = Ports(), list[int]()
    port = other.take_any("a")

    def is_free_noting(each: int) -> bool:
        tried.append(each)
        return is_free(each)

    monkeypatch.setattr("talweg.testing.ports.is_free", is_free_noting)
    ports = Ports({"a": port})
    assert [ports.take_any("a")] == tried[-1:]
    assert port not in tried
    for each in (ports, other):
        each.close()


@pytest.mark.parametrize("whose", ["broker-1", "broker-1-peers"])
def test_a_cluster_that_lost_a_port_to_a_stranger_takes_others(tmp_path: Path, whose: str) -> None:
    cluster = LocalCluster(tmp_path, brokers=1, readers=0)
    try:
        cluster.prepare()
        port = read_ports(tmp_path / PORTS_FILE)[whose]
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
            cluster.start()
        assert read_ports(tmp_path / PORTS_FILE)[whose] != port
    finally:
        cluster.close()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": "x"}', '{"a": 99999999}'])
def test_ports_that_cannot_be_read_are_forgotten(tmp_path: Path, content: str) -> None:
    (tmp_path / "ports.json").write_text(content)
    assert read_ports(tmp_path / "ports.json") == {}


def test_a_directory_is_locked_once(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(InvalidSetting, match=rf"in use by another cluster \(process {os.getpid()}\)"):
        DirectoryLock(tmp_path)
    lock.close()
    DirectoryLock(tmp_path).close()


def test_a_lock_is_waited_for_while_children_of_a_dead_parent_end(tmp_path: Path) -> None:
    program = (
        "import sys, subprocess, pathlib\n"
        "from talweg.testing.directory_lock import DirectoryLock\n"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1]))\n"
        "subprocess.Popen(['sleep', '1.5'], pass_fds=[lock.descriptor])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    wait_until(lambda: not is_alive(parent.pid), "it to end, with nobody who takes note of that", 30)
    try:
        DirectoryLock(tmp_path).close()  # the child had it until it ended
    finally:
        assert parent.wait() == 0


class ShortLived(Process):
    """Ends by itself, as often as it is started."""

    def __init__(self, log: Path) -> None:
        super().__init__("short", ["--version"], port=1, log=log, environment=os.environ)


def test_what_ends_is_started_again_after_pauses_that_grow(tmp_path: Path) -> None:
    process = ShortLived(tmp_path / "log")
    now = 100.0
    process.start()
    supervisor = Supervisor([process], clock=lambda: now)
    pauses = []
    for _ in range(3):
        wait_until(lambda: not process.running, "its end", 30)
        [ended] = supervisor.look()
        assert ended.process == "short"
        assert ended.exit_code is not None
        pauses.append(ended.pause_seconds)
        now += ended.pause_seconds - 0.01
        assert supervisor.look() == []
        now += 0.02
        assert supervisor.look() == [Restart("short", None)]
    assert pauses == [0.2, 0.4, 0.8]
    now += 1000  # it was well for long
    wait_until(lambda: not process.running, "its end", 30)
    assert supervisor.look()[0].pause_seconds == 0.2
    assert process.starts == 4
    stop_all([process], 1)
    process.kill()
