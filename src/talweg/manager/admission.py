"""Who may be a broker: at an address that is allowed, and only if a broker answers there."""

import asyncio
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

from talweg.errors import BadRequest, Forbidden, TalwegError
from talweg.http import HttpClient
from talweg.protocol.control import AddBroker, BrokerFace

_LOOK_SECONDS_MAX: Final = 3.0


class Admission:
    """Asks no address outside the networks, whatever it is told: managers may stand where others may not."""

    def __init__(self, client: HttpClient, networks: tuple[str, ...]) -> None:
        self._client = client
        self._networks = [ipaddress.ip_network(network) for network in networks]

    async def look_at(self, wanted: AddBroker) -> tuple[str, BrokerFace]:
        """A broker's URL, as it is to be written down, and who answers there. Raises Forbidden, and
        BadRequest for anything but a broker, and for one that is not as it was said to be."""
        host, port = _read(wanted.endpoint)
        address = await self._address(host, port)
        try:
            # At the address that was checked, not at the name, which may stand for another by now.
            face = await self._client.call(
                f"http://{address}:{port}", "GET", "/", BrokerFace, seconds_max=_LOOK_SECONDS_MAX
            )
        except TalwegError as error:
            raise BadRequest(f"endpoint: no broker answers there: {error}") from None
        if wanted.incarnation not in (None, face.incarnation):
            raise BadRequest("endpoint: another broker answers there")
        if wanted.peer_endpoint not in (None, face.peer_endpoint):
            raise BadRequest(f"peer_endpoint: the broker that answers there has {face.peer_endpoint}")
        return f"http://{f'[{host}]' if ':' in host else host}:{port}", face

    async def _address(self, host: str, port: int) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise BadRequest("endpoint: its host is not known") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        for address in addresses:
            if not any(address in network for network in self._networks):
                raise Forbidden(f"{address} is in none of the networks that brokers may be in")
        first = addresses[0]
        return f"[{first}]" if first.version == 6 else str(first)


def _read(endpoint: str) -> tuple[str, int]:
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadRequest("endpoint: expected http://HOST:PORT") from None
    if (
        parts.scheme != "http"
        or not host
        or not port
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
    ):
        raise BadRequest("endpoint: expected http://HOST:PORT")
    if "@" in parts.netloc or not endpoint.isprintable() or " " in endpoint or len(endpoint) > 300:
        raise BadRequest("endpoint: expected http://HOST:PORT")
    return host, port
