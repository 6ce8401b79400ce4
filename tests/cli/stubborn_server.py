"""A server that behaves as badly as it is told to, in the hands of the runner that brokers and managers have.

`python stubborn_server.py never-stops|unreachable-twice|breaks|fails|says-no`
"""

import asyncio
import sys

from talweg.cli.running import run_server
from talweg.config import BrokerSettings
from talweg.errors import MetadataUnavailable, NewerFormat, StorageError

BEHAVIOUR = sys.argv[1]
attempts = 0


class StubbornServer:
    endpoint = "http://127.0.0.1:1"
    failed: "asyncio.Future[None]"

    async def start(self) -> None:
        global attempts  # noqa: PLW0603 - a new server is made for each attempt
        attempts += 1
        self.failed = asyncio.get_running_loop().create_future()
        if BEHAVIOUR == "unreachable-twice" and attempts <= 2:
            raise MetadataUnavailable("nobody answers")
        if BEHAVIOUR == "never-there":
            raise MetadataUnavailable("nobody answers")
        if BEHAVIOUR == "says-no":
            raise NewerFormat("written by a newer Talweg")
        if BEHAVIOUR == "hangs":
            await asyncio.Event().wait()
        if BEHAVIOUR == "breaks":
            asyncio.get_running_loop().call_later(0.05, self.failed.set_exception, StorageError("no disk"))

    async def stop(self) -> None:
        if BEHAVIOUR == "never-stops":
            await asyncio.Event().wait()


run_server("broker", StubbornServer, BrokerSettings(), attached="attached" in sys.argv)
