"""`talweg manager`: one manager, primary or read-only, in this process, until it is told to stop."""

import os

from talweg.cli.flags import Flags, with_flags
from talweg.config import ManagerSettings, load_settings


@with_flags(ManagerSettings)
def manager(flags: Flags, attached: bool) -> None:
    """Run a manager, which answers clients. Of several that may be the primary, one is; others stand by."""
    settings = load_settings(ManagerSettings, flags, os.environ)
    # Only here: what it takes is much to load, and of no use to the other commands.
    from talweg.cli.running import run_server  # noqa: PLC0415
    from talweg.manager import Manager  # noqa: PLC0415

    run_server("manager", lambda: Manager(settings), settings, attached=attached)
