"""The nodes of a Redis Cluster, or one Redis alone: a few commands for the node that has a key, together.

Nothing is sent twice on its own: a command whose answer was lost may have been carried out, and only the
caller knows whether it may be repeated.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import MovedError, RedisClusterException, RedisError
from redis.retry import Retry

from talweg.errors import InvalidSetting, MetadataUnavailable

CONNECT_SECONDS_MAX: Final = 2
ANSWER_SECONDS_MAX: Final = 5
PORT: Final = 6379
_REDIRECTIONS_MAX: Final = 3
_SCHEMES: Final = frozenset({"redis", "rediss", "redis+cluster", "rediss+cluster"})
_EXPECTED: Final = (
    "expected redis://HOST:PORT or redis+cluster://HOST:PORT,HOST:PORT,… with ?namespace=NAME if wanted"
)

Command = tuple[str | int, ...]
_Answer = TypeVar("_Answer")


class Address(msgspec.Struct, frozen=True):
    """What a URL says."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    namespace: str = "talweg"  # several Talweg clusters may share a Redis
    username: str | None = None
    password: str | None = None
    tls: bool = False


def read_url(text: str) -> Address:
    """Take a URL apart; raises InvalidSetting, without showing a password."""
    try:
        url = urlsplit(text)
        hosts = tuple(_host_and_port(part) for part in url.netloc.rpartition("@")[2].split(","))
        query = parse_qs(url.query, strict_parsing=bool(url.query))
    except ValueError as error:
        raise InvalidSetting(f"a metadata URL that is none; {_EXPECTED}") from error
    if url.scheme not in _SCHEMES or url.path not in ("", "/", "/0") or not query.keys() <= {"namespace"}:
        raise InvalidSetting(f"a metadata URL that Redis cannot serve; {_EXPECTED}")
    cluster = url.scheme.endswith("+cluster")
    if len(hosts) > 1 and not cluster:
        raise InvalidSetting("several Redis hosts are a cluster: write redis+cluster://")
    namespace = query.get("namespace", ["talweg"])[0]
    if not namespace.isascii() or not namespace.isidentifier():
        raise InvalidSetting(f"the namespace {namespace!r}; expected letters, digits and '_'")
    username, password = _credentials(url)
    return Address(hosts, cluster, namespace, username, password, url.scheme.startswith("rediss"))


def _credentials(url: SplitResult) -> tuple[str | None, str | None]:
    account = url.netloc.rpartition("@")[0]
    username, _, password = account.partition(":")
    return unquote(username) or None, unquote(password) or None


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host without a name")
    return parts.hostname, parts.port or PORT


class Confirmation(Enum):
    """Whether a write is on more than one node."""

    CONFIRMED = 0  # by a replica
    MISSING = 1  # a replica is connected, and has not confirmed it in time
    NO_REPLICA = 2  # none is connected


class Nodes(ABC):
    """Where keys are. May be used from any thread."""

    def run(self, key: str, command: Command) -> Any:
        """The answer of the node that has the key; MetadataUnavailable if there is none."""
        return self._ask(key, lambda connection: connection.execute_command(*command))

    def run_confirmed(self, key: str, command: Command, wait_ms_max: int) -> tuple[list[Any], Confirmation]:
        """The same for a script that writes, and whose answer ends with the number of replicas that are
        connected to the node. If there are any, wait until one has the write."""

        def ask(connection: Any) -> tuple[list[Any], Confirmation]:
            *answer, replicas = connection.execute_command(*command)
            if not replicas:
                return answer, Confirmation.NO_REPLICA  # Redis would wait in vain
            confirmed = connection.execute_command("WAIT", 1, wait_ms_max)
            return answer, Confirmation.CONFIRMED if confirmed else Confirmation.MISSING

        return self._ask(key, ask)

    def _ask(self, key: str, ask: Callable[[Any], _Answer]) -> _Answer:
        with _errors_translated():
            for _ in range(_REDIRECTIONS_MAX):
                try:
                    # One connection for all: WAIT is about what was written over the same one.
                    with self._client(key).client() as connection:
                        return ask(connection)
                except MovedError:  # it did nothing, but knows that another has the key
                    self._look_again()
                except (RedisError, RedisClusterException, OSError):
                    with contextlib.suppress(RedisError, RedisClusterException, OSError):
                        self._look_again()  # for the next call
                    raise
        raise MetadataUnavailable("the Redis Cluster's nodes do not agree on who has the metadata")

    @abstractmethod
    def has_replicas(self, key: str) -> bool:
        """Whether any node has, or should have, a replica that may take its place. The key's is asked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    @abstractmethod
    def _client(self, key: str) -> Any: ...

    @abstractmethod
    def _look_again(self) -> None: ...


class OneNode(Nodes):
    """A Redis that is no cluster."""

    def __init__(self, address: Address) -> None:
        (host,) = address.hosts
        if _is_of_cluster(host, address):
            raise InvalidSetting("this Redis is a node of a cluster: write redis+cluster:// in the URL")
        self._redis = _one_redis(host, address)

    def has_replicas(self, key: str) -> bool:
        def ask(connection: Any) -> bool:
            return bool(connection.info("replication")["connected_slaves"])

        return self._ask(key, ask)

    def close(self) -> None:
        self._redis.close()

    def _client(self, key: str) -> Any:
        return self._redis

    def _look_again(self) -> None:
        pass


class ClusterNodes(Nodes):
    """The masters of a Redis Cluster, as they change."""

    def __init__(self, address: Address) -> None:
        for host in address.hosts:
            with contextlib.suppress(MetadataUnavailable):
                if not _is_of_cluster(host, address):
                    raise InvalidSetting("this Redis is no cluster: write redis:// in the URL")
        with _errors_translated():
            self._cluster: Any = RedisCluster(  # much of it has no types
                startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],  # type: ignore[no-untyped-call]
                require_full_coverage=False,  # a slot that nobody serves may be none of ours
                **_arguments(address),
            )

    def has_replicas(self, key: str) -> bool:
        # Those that are down count too, and who was a master until just now: they may come back.
        nodes = self.run(key, ("CLUSTER NODES",))
        return len(nodes) > sum(1 for node in nodes.values() if node["slots"])

    def close(self) -> None:
        self._cluster.close()

    def _client(self, key: str) -> Any:
        return self._cluster.get_redis_connection(self._cluster.get_node_from_key(key))

    def _look_again(self) -> None:
        self._cluster.nodes_manager.initialize()


def _one_redis(host: tuple[str, int], address: Address) -> redis.Redis:
    return redis.Redis(host=host[0], port=host[1], retry=Retry(NoBackoff(), 0), **_arguments(address))


def _is_of_cluster(host: tuple[str, int], address: Address) -> bool:
    with _errors_translated(), _one_redis(host, address) as client:
        answer: Any = client.info("cluster")
        return bool(answer.get("cluster_enabled"))


def _arguments(address: Address) -> dict[str, Any]:
    return {
        "username": address.username,
        "password": address.password,
        "ssl": address.tls,
        "socket_connect_timeout": CONNECT_SECONDS_MAX,
        "socket_timeout": ANSWER_SECONDS_MAX,
        "protocol": 2,
    }


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        raise MetadataUnavailable(f"the metadata's Redis failed: {error}") from error
