"""`talweg status`: managers, brokers and topics at a glance."""

from typing import TYPE_CHECKING

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.complaints import EXIT_FAILED
from talweg.cli.options import TIMEOUT
from talweg.cli.output import counted, print_json, print_lines, print_table

if TYPE_CHECKING:
    from talweg.protocol.plain import BrokerShown


def status(
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Managers, brokers and topics at a glance. The exit code is 1 if something is not as it should be."""
    with open_admin(servers, timeout) as admin:
        found = admin.status()
    if as_json:
        print_json(
            {
                "healthy": found.healthy,
                "managers": found.managers,
                "brokers": found.brokers,
                "topics": found.topics,
                "leaderless": [{"topic": topic, "partition": number} for topic, number in found.leaderless],
            }
        )
    else:
        print_table(
            ("manager", "role", "version", "healthy"),
            [
                (each.endpoint, each.role or "does not answer", each.version, "yes" if each.healthy else "no")
                for each in found.managers
            ],
        )
        print_lines([""])
        print_table(
            ("broker", "endpoint", "status", "partitions", "leads"),
            [(each.id, each.endpoint, each.status, each.partitions, _leads(each)) for each in found.brokers],
        )
        partitions = sum(len(topic.partitions) for topic in found.topics)
        without = len(found.leaderless)
        topics = f"{counted(len(found.topics), 'topic')}, {counted(partitions, 'partition')}"
        print_lines(["", f"{topics}, {without} of them without a leader"])
        if not found.healthy:
            print_lines(["not everything is as it should be: talweg doctor says more"])
    if not found.healthy:
        raise typer.Exit(EXIT_FAILED)


def _leads(broker: "BrokerShown") -> int | None:
    """How many partitions. Of one that is gone managers only know what it led last."""
    return None if broker.status == "inactive" else broker.leaders
