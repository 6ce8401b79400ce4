"""`talweg broker`: one broker, in this process, until it is told to stop; and all brokers of a cluster."""

import os
from typing import Annotated

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.confirming import confirm
from talweg.cli.flags import Flags, with_flags
from talweg.cli.offsets import moment_text
from talweg.cli.options import TIMEOUT
from talweg.cli.output import print_json, print_lines, print_table
from talweg.config import BrokerSettings, load_settings

app = typer.Typer()


@app.callback(invoke_without_command=True)
@with_flags(BrokerSettings, of_group=True)
def broker(flags: Flags, attached: bool) -> None:
    """Run a broker, which keeps replicas of partitions and registers itself with the managers.

    With a subcommand, look at the brokers of a cluster and change what they do.
    """
    settings = load_settings(BrokerSettings, flags, os.environ)
    # Only here: what it takes is much to load, and of no use to the other commands.
    from talweg.broker import Broker  # noqa: PLC0415
    from talweg.cli.running import run_server  # noqa: PLC0415

    run_server("broker", lambda: Broker(settings), settings, attached=attached)


@app.command("list")
def list_brokers(
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """All brokers, with what they carry and lead."""
    with open_admin(servers, timeout) as admin:
        found = admin.brokers()
    if as_json:
        print_json({"brokers": found})
        return
    print_table(
        ("broker", "endpoint", "status", "last heartbeat", "partitions", "leads"),
        [
            (
                each.id,
                each.endpoint,
                each.status,
                moment_text(each.last_heartbeat),
                each.partitions,
                each.leaders,
            )
            for each in found
        ],
    )


@app.command("add")
def add_broker(
    endpoint: Annotated[
        str, typer.Argument(help="Its URL, as managers reach it.", metavar="URL", show_default=False)
    ],
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Add a broker that runs already. One that was started with --managers does so itself."""
    with open_admin(servers, timeout) as admin:
        number = admin.add_broker(endpoint)
    _tell(number, f"broker {number} is {endpoint}", as_json=as_json)


@app.command("remove")
def remove_broker(
    number: options.BrokerNumber,
    *,
    yes: options.Yes = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Move everything away from a broker, then remove it."""
    confirm(f"Remove broker {number} for good, once all it carries is elsewhere?", yes=yes)
    with open_admin(servers, timeout) as admin:
        message = admin.remove_broker(number)
    _tell(number, message, as_json=as_json)


@app.command("activate")
def activate_broker(
    number: options.BrokerNumber,
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Let a broker have partitions and lead."""
    with open_admin(servers, timeout) as admin:
        admin.activate_broker(number)
    _tell(number, f"broker {number} may have partitions and lead", as_json=as_json)


@app.command("deactivate")
def deactivate_broker(
    number: options.BrokerNumber,
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Give a broker no new partitions, and let others lead."""
    with open_admin(servers, timeout) as admin:
        admin.deactivate_broker(number)
    _tell(number, f"broker {number} gets no new partitions", as_json=as_json)


def _tell(number: int, message: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"broker_id": number, "message": message})
    else:
        print_lines([message])
