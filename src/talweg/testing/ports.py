"""Ports for processes that come and go: free ones, and the same ones again."""

import contextlib
import json
import random
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from talweg.errors import InvalidSetting

HOST: Final = "127.0.0.1"
# Below the range that systems take client ports from, so that no connection squats on the port of a
# process that is down for a moment.
_RANGE: Final = range(22_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a process of ours could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


class Ports:
    """The ports of a cluster by name, no two the same, kept from other clusters while this is open.

    A number is kept by a name in the kernel's abstract socket space where there is one (Linux): it goes
    when the process goes, and needs no file.
    """

    def __init__(self, remembered: Mapping[str, int] | None = None) -> None:
        self.by_name: dict[str, int] = dict(remembered or {})  # also of those that are not taken this time
        self._holds: dict[str, socket.socket | None] = {}  # None: nothing to hold it by

    def take(self, name: str, port: int) -> None:
        """This very port for a name; raises InvalidSetting when it is not free."""
        if not is_free(port):
            raise InvalidSetting(f"--port: port {port} is in use; choose another, or stop what listens there")
        self._holds[name] = _hold(port)  # one that cannot be held is still free to be listened on
        self.by_name[name] = port

    def take_any(self, name: str) -> int:
        """The port that the name had before, if it is free, else any free one."""
        others = {self.by_name[other] for other in self._holds}
        for port in self._candidates(name):
            if port in others:
                continue
            # Held before it is tried: to try the port of another cluster would be in the way of its process.
            hold = _hold(port)
            if hold is None and _CAN_HOLD:
                continue
            if not is_free(port):
                if hold is not None:
                    hold.close()
                continue
            self._holds[name] = hold
            self.by_name[name] = port
            return port
        raise InvalidSetting(f"no free port from {_RANGE.start} to {_RANGE.stop}")

    def _candidates(self, name: str) -> Iterable[int]:
        if name in self.by_name:
            yield self.by_name[name]
        yield from random.sample(_RANGE, k=500)

    def close(self) -> None:
        """Let others have them."""
        while self._holds:
            _, hold = self._holds.popitem()
            if hold is not None:
                hold.close()


_CAN_HOLD: Final = sys.platform == "linux"


def _hold(port: int) -> socket.socket | None:
    if not _CAN_HOLD:
        return None
    hold = socket.socket(socket.AF_UNIX)
    try:
        hold.bind(f"\0talweg-port-{port}")
    except OSError:
        hold.close()
        return None
    return hold


def read_ports(path: Path) -> dict[str, int]:
    """What was remembered; nothing when that cannot be read: ports are no loss."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return {
                name: port for name, port in content.items() if isinstance(port, int) and 0 < port < 65536
            }
    return {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Remember them."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(ports, indent=2) + "\n")
    draft.replace(path)
