"""What a manager is made of, for the calls that it answers."""

from dataclasses import dataclass

from talweg.config import ManagerSettings
from talweg.http import HttpClient
from talweg.manager.clients import Heartbeats
from talweg.manager.consuming import Consuming
from talweg.manager.follower import Follower
from talweg.manager.forwarding import Forwarding
from talweg.manager.leaders import Leaders
from talweg.manager.lease import LeaseKeeper
from talweg.manager.nudging import Nudging
from talweg.manager.producing import Producing
from talweg.manager.routing import Router
from talweg.manager.topics import Topics
from talweg.manager.watch import Watch
from talweg.manager.writer import Writer


@dataclass(frozen=True, slots=True)
class Parts:
    """One of each."""

    settings: ManagerSettings
    endpoint: str  # this manager's own URL
    client: HttpClient
    follower: Follower
    leaders: Leaders
    lease: LeaseKeeper
    writer: Writer
    router: Router
    topics: Topics
    producing: Producing
    consuming: Consuming
    heartbeats: Heartbeats
    nudging: Nudging
    watch: Watch
    forwarding: Forwarding
