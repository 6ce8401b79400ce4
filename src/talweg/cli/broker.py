"""`talweg broker`: one broker, in this process, until it is told to stop."""

import os

from talweg.cli.flags import Flags, with_flags
from talweg.cli.running import run_server
from talweg.config import BrokerSettings, load_settings


@with_flags(BrokerSettings)
def broker(flags: Flags, attached: bool) -> None:
    """Run a broker, which keeps replicas of partitions and registers itself with the managers."""
    settings = load_settings(BrokerSettings, flags, os.environ)
    # Only here: what it takes is much to load, and of no use to the other commands.
    from talweg.broker import Broker  # noqa: PLC0415

    run_server("broker", lambda: Broker(settings), settings, attached=attached)
