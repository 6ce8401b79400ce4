"""Real database servers for tests, from Debian's packages: PostgreSQL, MariaDB, Redis, a Redis Cluster.

Each is a class for `with`: it makes its data in a temporary directory, listens on a loopback port of
its own, and can be stopped, killed and started again on the same data and the same port. The fixtures
below share one server of each sort within a process, started when a test first asks for it; with
pytest-xdist every worker has its own. Tests that kill a server start one for themselves.

A server syncs to disk as it would in earnest, unless it is started with `syncs=False`, as the shared ones
are: nobody pulls the plug in a test, and a process that is killed loses nothing that the kernel has.
"""

import contextlib
import itertools
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest

from server_process import START_SECONDS_MAX, Server, binary, wait_until


class PostgresServer(Server):
    """PostgreSQL with one superuser, `talweg`, who needs no password on loopback."""

    package = "postgresql"
    account = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM would wait for every client to leave
    driver_errors = (psycopg.Error,)

    def __init__(self, *, syncs: bool = True) -> None:
        super().__init__()
        self._syncs = syncs
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        return f"postgresql+psycopg://talweg@127.0.0.1:{self.port}/{name}"

    def prepare(self) -> None:
        initdb = ["-D", str(self.directory / "data"), "-U", "talweg", "--auth=trust", "--encoding=UTF8"]
        self.run([self._binary("initdb"), *initdb, "--locale=C", "--no-sync"])

    def command(self) -> list[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.directory,
            "shared_buffers": "32MB",
            "fsync": "on" if self._syncs else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._binary("postgres"), "-D", str(self.directory / "data"), *options]

    def answers(self) -> bool:
        # Over the socket in our own directory: nobody else's server can answer there.
        self.execute("SELECT 1")
        return True

    def execute(self, statement: str) -> None:
        """Run one statement as the superuser, outside any transaction."""
        with psycopg.connect(
            host=str(self.directory), port=self.port, user="talweg", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    def create_database(self) -> str:
        """Make a new, empty database; its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _binary(self, name: str) -> str:
        versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
        newest = max(versions, key=lambda path: float(path.parts[-3]), default=None)
        return str(newest) if newest else binary(name, self.package)


class MariadbServer(Server):
    """MariaDB with its default settings and one user, `talweg`, who needs no password on loopback."""

    package = "mariadb-server"
    account = "mysql"
    driver_errors = (pymysql.Error,)

    def __init__(self, *, syncs: bool = True) -> None:
        super().__init__()
        self._syncs = syncs
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return self.database_url("talweg")

    def database_url(self, name: str) -> str:
        # Without TLS, for which PyMySQL reads all certificates of the machine for each connection.
        return f"mysql+pymysql://talweg@127.0.0.1:{self.port}/{name}?ssl_disabled=true"

    def prepare(self) -> None:
        (self.directory / "users.sql").write_text(
            "CREATE DATABASE IF NOT EXISTS talweg;\n"
            "CREATE USER IF NOT EXISTS talweg@'127.0.0.1';\n"
            "CREATE USER IF NOT EXISTS talweg@localhost;\n"
            "GRANT ALL ON *.* TO talweg@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO talweg@localhost;\n"
        )
        install = [binary("mariadb-install-db", self.package), "--no-defaults", "--skip-test-db"]
        datadir = f"--datadir={self.directory / 'data'}"
        self.run([*install, datadir, "--auth-root-authentication-method=normal"])

    def command(self) -> list[str]:
        return [
            binary("mariadbd", self.package),
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self._socket}",
            f"--pid-file={self.directory / 'pid'}",
            f"--init-file={self.directory / 'users.sql'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            *([] if self._syncs else ["--debug-no-sync"]),
        ]

    @property
    def _socket(self) -> Path:
        return self.directory / "socket"

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:  # PyMySQL leaks its socket when nobody listens
            probe.connect(str(self._socket))
        self.execute("SELECT 1")
        return True

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement as a user who may do everything; its rows."""
        with (
            contextlib.closing(
                pymysql.connect(
                    unix_socket=str(self._socket), user="talweg", autocommit=True, ssl_disabled=True
                )
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def create_database(self) -> str:
        """Make a new, empty database; its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        # A connection that was left in a transaction would hold the tables.
        users = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        for (connection,) in self.execute(users):
            with contextlib.suppress(pymysql.Error):
                self.execute(f"KILL {connection}")
        self.execute(f"DROP DATABASE IF EXISTS {name}")


class RedisServer(Server):
    """One Redis that keeps an append-only file; with `cluster`, a node for `RedisCluster`."""

    package = "redis-server"
    account = "redis"
    BUS_PORT_DISTANCE: ClassVar = 10_000  # where a node's peers talk to it; Redis's own rule

    def __init__(self, *, cluster: bool = False) -> None:
        super().__init__((0, self.BUS_PORT_DISTANCE) if cluster else (0,))
        self.cluster = cluster

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.directory,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "repl-diskless-sync-delay": 0,  # of five seconds, in which more replicas might come
            "shutdown-timeout": 0,  # of ten, in which a replica that is down might catch up
        }
        if self.cluster:
            settings |= {"cluster-enabled": "yes", "cluster-node-timeout": 2000}
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [binary("redis-server", self.package), *options]

    def answers(self) -> bool:
        return self.ask("PING") == "PONG"

    def ask(self, *words: str) -> str:
        """One command and its answer, through redis-cli."""
        command = [binary("redis-cli", "redis-tools"), "-h", "127.0.0.1", "-p", str(self.port), *words]
        answer = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=START_SECONDS_MAX
        )
        return (answer.stdout + answer.stderr).strip()


class RedisCluster:
    """Six Redis nodes on loopback: three masters that share the slots, and a replica for each."""

    MASTERS = 3

    def __init__(self) -> None:
        self.nodes = [RedisServer(cluster=True) for _ in range(2 * self.MASTERS)]
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._open.enter_context(node)
            addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
            create = [binary("redis-cli", "redis-tools"), "--cluster", "create", *addresses]
            self.nodes[0].run([*create, "--cluster-replicas", "1", "--cluster-yes"])
            self.wait_until_whole()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all nodes and remove their data."""
        self._open.close()

    @property
    def url(self) -> str:
        """Of one node; a client asks it for the others."""
        return self.nodes[0].url

    def start(self) -> None:
        """Start the nodes that are down; returns when the cluster is whole."""
        for node in self.nodes:
            if node.process is None:
                node.start()
        self.wait_until_whole()

    def stop(self) -> None:
        """Stop all nodes in good order."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """SIGKILL for all nodes."""
        for node in self.nodes:
            node.kill()

    def wait_until_whole(self) -> None:
        """Every node agrees that all slots are served, and every replica follows its master."""
        wait_until(lambda: all(self._is_whole(node) for node in self.nodes), "the Redis Cluster to be whole")

    def _is_whole(self, node: RedisServer) -> bool:
        if "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
            return False
        nodes = node.ask("CLUSTER", "NODES")
        if nodes.count("master") != self.MASTERS or nodes.count("slave") != self.MASTERS or "fail" in nodes:
            return False
        role = node.ask("INFO", "replication")
        return "state=online" in role if "role:master" in role else "master_link_status:up" in role


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    with PostgresServer(syncs=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_url(postgresql_server: PostgresServer) -> str:
    return postgresql_server.url


@pytest.fixture
def postgresql_database(postgresql_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database."""
    postgresql_server.check()
    name = postgresql_server.create_database()
    yield postgresql_server.database_url(name)
    postgresql_server.drop_database(name)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with MariadbServer(syncs=False) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_url(mariadb_server: MariadbServer) -> str:
    return mariadb_server.url


@pytest.fixture
def mariadb_database(mariadb_server: MariadbServer) -> Iterator[str]:
    """The URL of a new, empty MariaDB database."""
    mariadb_server.check()
    name = mariadb_server.create_database()
    yield mariadb_server.database_url(name)
    mariadb_server.drop_database(name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    return redis_cluster.url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database; the test runs once for each sort."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'database.sqlite'}"
    return str(request.getfixturevalue(f"{request.param}_database"))
