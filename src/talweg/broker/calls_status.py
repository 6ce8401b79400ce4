"""Who this broker is, and what managers ask of it besides messages."""

from typing import TYPE_CHECKING

from talweg.errors import GroupNotFound, Unavailable
from talweg.http import Call, Natural, Parameters, Request
from talweg.protocol.control import BrokerFace, GroupAnswer
from talweg.version import __version__

if TYPE_CHECKING:
    from talweg.broker.broker import Broker


class GroupPath(Parameters, frozen=True, kw_only=True):
    """A group, by its incarnation."""

    group: Natural


class StatusCalls:
    """Answers them for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [
            Call("GET", "/", self._face, "Who this is", answer=BrokerFace, tag="Broker"),
            Call("POST", "/nudge", self._nudge, "Send a heartbeat now", tag="Broker"),
            Call(
                "GET",
                "/groups/{group}",
                self._group,
                "What is known of a group that is carried here",
                parameters=GroupPath,
                answer=GroupAnswer,
                errors=(GroupNotFound, Unavailable),
                tag="Broker",
            ),
        ]

    async def _face(self, request: Request[None, None]) -> BrokerFace:
        broker = self._broker
        return BrokerFace(
            role="broker",
            version=__version__,
            healthy=broker.broker_id is not None,
            incarnation=broker.directory.identity.incarnation,
            peer_endpoint=broker.peer_endpoint,
            broker_id=broker.broker_id,
            managers=broker.settings.managers,
        )

    async def _nudge(self, request: Request[None, None]) -> None:
        self._broker.nudge()

    async def _group(self, request: Request[GroupPath, None]) -> GroupAnswer:
        group = request.parameters.group
        assignment = self._broker.hosting.assignments.get(group)
        if assignment is None:
            raise GroupNotFound(f"this broker carries no group {group}")
        return GroupAnswer(assignment=assignment)
