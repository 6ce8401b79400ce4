"""The soak of `make chaos`, short; and that its judge can find fault."""

import json

import pytest

from talweg.testing import chaos

FILLING = b" " * 20


def message(sender: int, number: int) -> bytes:
    return b"%c%010d" % (sender, number) + FILLING


def test_nothing_is_lost_nor_doubled_while_servers_die() -> None:
    report = chaos.run(20_000, seconds=8.0, seed=1)
    assert report.wrong == []
    assert report.messages == 20_000
    assert sum(report.faults.values()) >= 2


def test_a_message_that_comes_twice_is_found() -> None:
    received = chaos.Received(1, 3)
    received.take(0, [message(0, 0), message(0, 1)])
    received.take(1, [message(0, 1)])
    assert received.wrong == ["message 1 of sender 0 came twice"]
    assert received.missing == 1


def test_messages_out_of_order_are_found() -> None:
    received = chaos.Received(2, 3)
    received.take(0, [message(0, 1), message(1, 0), message(0, 0)])
    assert received.wrong == ["message 0 of sender 0 came too late in partition 0"]
    received.take(1, [message(1, 1)])  # another partition has an order of its own
    assert len(received.wrong) == 1


def test_the_command_prints_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos.main(["--messages", "2000", "--seconds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] == 2000
    assert report["wrong"] == []
