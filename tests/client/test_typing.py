"""What type checkers know of the clients, in programs of their users."""

import subprocess
import sys
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import assert_type

import talweg
from talweg import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from talweg.errors import DeliveryFailed, TalwegError


def produce(contents: Sequence[talweg.Content], headers: talweg.Headers) -> talweg.Delivery:
    with Producer("127.0.0.1:8000", acks="all") as producer:
        delivery = producer.send("logs", b"a", key="k", headers=headers, timestamp=datetime.now(UTC))
        assert_type(delivery, talweg.Delivery)
        assert_type(delivery.result(timeout=3), talweg.Sent)
        many = producer.send_many("logs", contents)
        assert_type(many, talweg.Deliveries)
        producer.send("logs", bytearray(b"x"))
        producer.send("logs", memoryview(b"x"), headers=[("a", b"b")])
        with producer.transaction() as transaction:
            assert_type(transaction, talweg.Transaction)
            transaction.send("logs", None)
        try:
            producer.flush()
        except DeliveryFailed as failed:
            assert_type(failed.first, TalwegError | None)
    return delivery


def consume(reset: talweg.Reset, where: talweg.Where, servers: talweg.Servers) -> dict[talweg.Place, int]:
    with Consumer("logs", group="g", partitions=[0], auto_offset_reset=reset, servers=servers) as consumer:
        consumer.seek_all(where)
        for message in consumer:
            assert_type(message, talweg.Message)
        assert_type(consumer.poll_batch(timeout=1), talweg.ReceivedBatch | None)
        return consumer.lag()


async def main() -> None:
    async with AsyncProducer() as producer:
        assert_type(await (await producer.send("logs", "x")), talweg.Sent)
        async with producer.transaction() as transaction:
            assert_type(transaction, talweg.AsyncTransaction)
    async with AsyncConsumer("logs") as consumer:
        async for message in consumer.read_to_end():
            assert_type(message, talweg.Message)
    async with AsyncAdmin() as admin:
        assert_type(await admin.topic("logs"), talweg.TopicDescription)
    with Admin() as blocking:
        for reader in blocking.consumers("logs"):
            assert_type(reader, talweg.ConsumerDescription)
        assert_type(blocking.brokers(), list[talweg.BrokerShown])
        assert_type(blocking.status(), talweg.ClusterStatus)


asyncio.run(main())
produce(["a", b"b", None, bytearray(b"c")], {"h": "v"}).cancelled  # there is no such thing
"""


def test_a_program_that_uses_them_is_checked_strictly(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--follow-imports=silent",
            f"--cache-dir={tmp_path}",
            program,
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    complaints = [line for line in checked.stdout.splitlines() if line.startswith("program.py")]
    assert [line.rpartition("[")[2] for line in complaints] == ["attr-defined]"], checked.stdout
    assert "cancelled" in complaints[0]


def test_type_checkers_are_told_that_there_are_types(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as built:
        assert {"talweg/py.typed", "myqueue/py.typed"} <= set(built.namelist())
