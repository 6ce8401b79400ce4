"""What the doctor finds wrong, from what was seen; each with a remedy."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from talweg.cli.checks import (
    Broker,
    Finding,
    Machine,
    Partition,
    Reader,
    Server,
    check_brokers,
    check_clocks,
    check_machine,
    check_managers,
    check_partitions,
    check_positions,
    check_readers,
    check_versions,
)
from talweg.cli.examining import _look, most_positions, this_machine
from talweg.client.description import ConsumerDescription, Progress

PRIMARY = Server("http://a", "primary", "1.0", True)
READER = Server("http://b", "read-only", "1.0", True)
ALL = [Broker(number, f"http://{number}", "active") for number in range(3)]
MACHINE = Machine(65_536, None, False, {})


def bad(findings: object) -> list[Finding]:
    """Those that are not fine. Each says what to do."""
    found = [each for each in findings if each.level != "fine"]  # type: ignore[attr-defined]
    assert all(each.remedy or "drained" in each.what for each in found)
    return found


def test_all_is_well() -> None:
    partitions = [Partition("logs", 0, 1, (0, 1, 2))]
    findings = [
        *check_managers([PRIMARY, READER]),
        *check_brokers(ALL, [Server(each.endpoint, "broker", "1.0", True) for each in ALL]),
        *check_partitions(partitions, ALL),
        *check_clocks([Server("http://a", "primary", clock_ahead_seconds=1.0)]),
        *check_versions([PRIMARY], "1.0"),
        *check_machine(MACHINE),
    ]
    assert bad(findings) == []
    assert len(findings) == 9


@pytest.mark.parametrize(
    ("managers", "levels"),
    [
        ([Server("http://a", error="refused")], {"http://a": "wrong"}),
        ([Server("http://a", error="refused"), PRIMARY], {"http://a": "warning"}),
        ([READER], {"primary": "wrong"}),
        ([Server("http://a", "primary", "1.0", False)], {"http://a": "wrong"}),
        ([Server("http://a", "primary", "1.0", True, False)], {"metadata store": "wrong"}),
    ],
)
def test_managers(managers: list[Server], levels: dict[str, str]) -> None:
    assert {each.subject: each.level for each in bad(check_managers(managers))} == levels


def reads(topic: str, *partitions: int) -> ConsumerDescription:
    progress = Progress(position=0, start_offset=0, next_offset=0)
    return ConsumerDescription(
        group="g",
        consumer_id=None,
        topic=topic,
        status=None,
        last_heartbeat=None,
        partitions=dict.fromkeys(partitions, progress),
    )


def test_a_partition_that_soon_has_no_room_for_positions() -> None:
    crowd = [reads("logs", 0, 1), reads("logs", 1), reads("events", 0), reads("silent")]
    assert most_positions(crowd) == {"logs": 2, "events": 1}
    assert list(check_positions({"logs": 7}, 10)) == []
    [soon] = bad(check_positions({"logs": 8, "events": 1}, 10))
    assert (soon.level, soon.subject) == ("warning", "consumers, topic logs")
    assert "8 have a position" in soon.what
    assert "consumer delete NAME logs" in soon.remedy
    [full] = bad(check_positions({"logs": 10}, 10))
    assert full.level == "wrong"


def test_a_consumer_that_retention_has_overtaken() -> None:
    ahead = [Reader("7", "logs", (), True), Reader("g", "logs", (), False)]
    assert [(each.level, each.subject) for each in check_readers(ahead)] == [("fine", "holds")]
    assert list(check_readers(ahead[1:])) == []
    behind = [Reader("h", "logs", (0, 2), True), Reader("f", "logs", (1,), False)]
    held, free = bad(check_readers([*ahead, *behind]))
    assert held.subject == "consumer h, topic logs"
    assert "its hold was too small" in held.what
    assert "(partition 0, 2)" in held.what
    assert "talweg consumer hold h logs SIZE" in held.remedy
    assert "talweg consumer seek f logs start" in free.remedy


@pytest.mark.parametrize(
    ("status", "level"), [("inactive", "wrong"), ("deactivated", "warning"), ("draining", "warning")]
)
def test_brokers_that_are_not_active(status: str, level: str) -> None:
    found = bad(check_brokers([Broker(7, "http://x", status)], []))
    assert [(each.subject, each.level) for each in found] == [("broker 7", level)]


def test_a_broker_that_only_managers_reach() -> None:
    found = bad(check_brokers(ALL[:1], [Server("http://0", error="no route")]))
    assert "no route" in found[0].what
    assert bad(check_brokers([], []))[0].level == "wrong"


@pytest.mark.parametrize(
    ("partition", "dead", "level"),
    [
        (Partition("t", 0, None, (0, 1, 2)), [], "wrong"),
        (Partition("t", 0, 0, (0, 1, 2)), [1], "warning"),
        (Partition("t", 0, 0, (0, 1, 2)), [1, 2], "wrong"),
        (Partition("t", 0, 0, (0,)), [0], "wrong"),
        (Partition("t", 0, 0, (0, 1)), [], "warning"),
    ],
)
def test_partitions(partition: Partition, dead: list[int], level: str) -> None:
    whole = Partition("t", 1, 0, (0, 1, 2))
    brokers = [
        Broker(each.number, each.endpoint, "inactive" if each.number in dead else "active") for each in ALL
    ]
    found = [
        each for each in bad(check_partitions([partition, whole], brokers)) if "partition 0" in each.subject
    ]
    assert [each.level for each in found] == [level]


def test_clocks_and_versions_that_differ() -> None:
    for ahead, word in ((60.0, "ahead of"), (-60.0, "behind")):
        found = bad(check_clocks([Server("http://a", "broker", clock_ahead_seconds=ahead)]))
        assert found[0].level == "wrong"
        assert f"60 s {word}" in found[0].what
    differing = bad(check_versions([PRIMARY, Server("http://c", "broker", "0.9", True)], "1.0"))
    assert "0.9: http://c" in differing[0].what
    assert bad(check_versions([PRIMARY], "2.0"))


@pytest.mark.parametrize(("free", "level"), [(50, "fine"), (8, "warning"), (2, "wrong")])
def test_disks_that_are_nearly_full(free: int, level: str) -> None:
    machine = Machine(65_536, None, False, {"/data": (free, 100)})
    assert [each.level for each in check_machine(machine) if "/data" in each.subject] == [level]


def test_what_servers_and_spark_would_lack_here() -> None:
    assert bad(check_machine(Machine(256, "/java", True, {})))[0].subject == "open files"
    assert bad(check_machine(Machine(65_536, None, True, {})))[0].subject == "java"


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    machine = this_machine([tmp_path])
    free, total = machine.disks[str(tmp_path)]
    assert 0 < free <= total
    assert machine.open_files_max > 0
    (found,) = bad(check_machine(this_machine([tmp_path, tmp_path / "none"])))
    assert (found.level, found.subject) == ("wrong", f"disk of {tmp_path / 'none'}")
    assert "No such file or directory" in found.what


def test_readers_that_nobody_could_be_asked_about() -> None:
    found = bad(check_readers([Reader("g", "logs", (), True)], {"logs": (0, 2)}))
    assert [(each.level, each.subject) for each in found] == [("warning", "consumers, topic logs")]
    assert "partition 0, 2" in found[0].what
    assert len(list(check_readers([Reader("g", "logs", (), True)], {"logs": (1,)}))) == 1, "no praise besides"


def test_what_answers_and_is_no_server_of_ours_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "timed out" in _look(f"http://127.0.0.1:{port}", 0.1).error
    assert "refused" in _look(f"http://127.0.0.1:{port}", 0.1).error


@pytest.mark.parametrize(
    "body",
    [b"<html>", b'{"role": 1}', b"[]", b'{"role": "\xff"}', b"[" * 10_000],
    ids=["page", "part", "list", "no-utf-8", "deep"],
)
def test_what_answers_in_no_language_of_ours_is_told_apart(body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        looking = pool.submit(_look, f"http://127.0.0.1:{server.getsockname()[1]}", 10.0)
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        assert looking.result().error == "it answers, but not as a server of Talweg does"
