"""A manager in a process of its own, for what cannot be done to one beside us: stopping it in mid-thought.

python manager_process.py SETTINGS    as JSON; prints its URL, runs until its input ends
"""

import asyncio
import sys

import msgspec

from talweg.config import ManagerSettings
from talweg.manager import Manager


async def main() -> None:
    manager = Manager(msgspec.json.decode(sys.argv[1], type=ManagerSettings))
    await manager.start()
    sys.stdout.write(f"{manager.endpoint}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await manager.stop()


asyncio.run(main())
