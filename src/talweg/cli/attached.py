"""A server as a local cluster starts it: `talweg broker` or `talweg manager` without the command line.

Typer and Rich take a good part of the time that a server takes to start, and a cluster starts many servers
at once. Whoever starts this has made the arguments itself (`LocalCluster`), so nobody needs help with them.
"""

import os
import sys
from collections.abc import Iterator, Sequence

from talweg.cli.complaints import complain
from talweg.cli.running import RunnableServer, run_server
from talweg.config import BrokerSettings, ManagerSettings, load_settings
from talweg.errors import InvalidSetting

_SWITCHES = {"--read-only": "true", "--no-read-only": "false"}


def read_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Flags with their values, by their long names; raises InvalidSetting for one without."""
    flags: dict[str, str] = {}
    words: Iterator[str] = iter(arguments)
    for flag in words:
        if flag in _SWITCHES:
            flags["--read-only"] = _SWITCHES[flag]
            continue
        value = next(words, None)
        if value is None or not flag.startswith("--"):
            raise InvalidSetting(f"{flag}: expected flags with a value each")
        flags[flag] = value
    return flags


def main(arguments: Sequence[str]) -> None:
    """Run `broker` or `manager` with these flags until it is told to stop, or standard input ends."""
    role, *rest = arguments
    assert role in ("broker", "manager"), role
    try:
        flags = read_flags(rest)
        if role == "broker":
            broker_settings = load_settings(BrokerSettings, flags, os.environ)
            from talweg.broker import Broker  # noqa: PLC0415 - the one of the two that is wanted

            def make() -> RunnableServer:
                return Broker(broker_settings)

            run_server(role, make, broker_settings, attached=True)
        else:
            manager_settings = load_settings(ManagerSettings, flags, os.environ)
            from talweg.manager import Manager  # noqa: PLC0415 - likewise

            run_server(role, lambda: Manager(manager_settings), manager_settings, attached=True)
    except InvalidSetting as error:
        sys.exit(complain(error))


if __name__ == "__main__":
    main(sys.argv[1:])
