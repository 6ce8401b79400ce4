"""The servers that other tests stand on: they start, keep their data through a kill, and leave nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy

from server_process import (
    LOCK_NAME,
    HeldPort,
    Server,
    ServerError,
    binary,
    children,
    is_alive,
    remove_leftovers,
    wait_until,
)
from servers import MariadbServer, PostgresServer, RedisCluster, RedisServer

# For processes of our own: what we can import, they can.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements in one transaction; the rows of the last."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(sqlalchemy.text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


@pytest.mark.parametrize("sort", [PostgresServer, MariadbServer])
def test_a_database_server_keeps_what_was_committed_through_a_kill(
    sort: Callable[[], PostgresServer | MariadbServer],
) -> None:
    with sort() as server:
        run(server.url, "CREATE TABLE kept (number INT)", "INSERT INTO kept VALUES (7)")
        killed = server.pid
        server.kill()
        assert not is_alive(killed)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            run(server.url, "SELECT 1")
        server.start()
        assert run(server.url, "SELECT number FROM kept") == [(7,)]
        server.stop()
        server.start()
        assert run(server.url, "SELECT number FROM kept") == [(7,)]


@pytest.mark.parametrize("sort", [PostgresServer, MariadbServer])
def test_a_database_server_that_ends_by_itself_is_missed_and_runs_again(
    sort: Callable[[], PostgresServer | MariadbServer],
) -> None:
    with sort() as server:
        name = server.create_database()
        server.check()
        os.kill(server.pid, signal.SIGKILL)
        ended = server.process
        assert ended is not None
        ended.wait()
        with pytest.raises(ServerError, match="ended by itself, with -9"):
            server.check()
        server.check()
        assert run(server.database_url(name), "SELECT 1") == [(1,)]


def test_a_redis_keeps_what_it_acknowledged_through_a_kill() -> None:
    with RedisServer() as server:
        assert server.ask("SET", "key", "value") == "OK"
        server.kill()
        assert "refused" in server.ask("GET", "key")
        server.start()
        assert server.ask("GET", "key") == "value"


def test_a_redis_cluster_keeps_what_it_acknowledged_through_a_kill_of_all_nodes() -> None:
    with RedisCluster() as cluster:
        keys = [f"key-{number}" for number in range(30)]  # enough for every master to get some
        for key in keys:
            assert cluster.nodes[0].ask("-c", "SET", key, key.upper()) == "OK"
        # Replicas follow behind the answers.
        wait_until(
            lambda: all(node.ask("DBSIZE") != "0" for node in cluster.nodes),
            "three masters and their replicas to share the keys",
        )
        cluster.kill()
        assert all(node.process is None for node in cluster.nodes)
        cluster.start()
        assert [cluster.nodes[0].ask("-c", "GET", key) for key in keys] == [key.upper() for key in keys]


def test_a_redis_cluster_fails_over_when_a_master_is_killed() -> None:
    with RedisCluster() as cluster:
        master = next(node for node in cluster.nodes if "role:master" in node.ask("INFO", "replication"))
        master.kill()
        witness = next(node for node in cluster.nodes if node is not master)

        def has_failed_over() -> bool:
            nodes = witness.ask("CLUSTER", "NODES").splitlines()
            masters = [line for line in nodes if "master" in line and "fail" not in line]
            state = witness.ask("CLUSTER", "INFO")
            return len(masters) == RedisCluster.MASTERS and "cluster_state:ok" in state

        wait_until(has_failed_over, "a replica to take over")
        cluster.start()  # the old master comes back as a replica


def test_a_mariadb_that_starts_removes_no_temporary_table_of_another(mariadb_server: MariadbServer) -> None:
    engine = sqlalchemy.create_engine(mariadb_server.url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TEMPORARY TABLE mine (number INT) ENGINE=Aria"))
        directory = Path(connection.execute(sqlalchemy.text("SELECT @@tmpdir")).scalar_one())
        assert list(directory.glob("#sql*"))
        with MariadbServer(syncs=False):
            assert list(directory.glob("#sql*"))


def test_the_shared_servers_answer(
    postgresql_url: str, mariadb_url: str, redis_server: RedisServer, redis_url: str
) -> None:
    assert run(postgresql_url, "SELECT 1") == [(1,)]
    assert run(mariadb_url, "SELECT 1") == [(1,)]
    assert redis_url == f"redis://127.0.0.1:{redis_server.port}"
    assert redis_server.ask("PING") == "PONG"


def test_the_shared_redis_cluster_is_whole(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    assert redis_cluster_url == redis_cluster.nodes[0].url
    assert "cluster_state:ok" in redis_cluster.nodes[-1].ask("CLUSTER", "INFO")


@pytest.mark.parametrize("sort", ["postgresql", "mariadb"])
def test_a_test_gets_an_empty_database_of_its_own(sort: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{sort}_database")
    server = request.getfixturevalue(f"{sort}_server")
    other = server.create_database()
    try:
        run(url, "CREATE TABLE mine (number INT)")
        assert run(server.database_url(other), _COUNT_TABLES[sort]) == [(0,)]
        assert run(url, _COUNT_TABLES[sort]) == [(1,)]
    finally:
        server.drop_database(other)


_COUNT_TABLES = {
    "postgresql": "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'",
    "mariadb": "SELECT count(*) FROM information_schema.tables WHERE table_schema = database()",
}


def test_a_database_is_dropped_under_a_connection_that_still_uses_it() -> None:
    with PostgresServer() as postgres, MariadbServer() as mariadb:
        for server in (postgres, mariadb):
            name = server.create_database()
            engine = sqlalchemy.create_engine(server.database_url(name), poolclass=sqlalchemy.NullPool)
            with engine.connect() as connection:
                connection.execute(sqlalchemy.text("CREATE TABLE held (number INT)"))
                connection.execute(sqlalchemy.text("INSERT INTO held VALUES (1)"))
                server.drop_database(name)
                connection.invalidate()
            with pytest.raises(sqlalchemy.exc.OperationalError):
                run(server.database_url(name), "SELECT 1")


@pytest.mark.parametrize("sort", [PostgresServer, MariadbServer, RedisServer])
def test_nothing_is_left_when_a_test_fails(sort: Callable[[], Server]) -> None:
    class Failure(Exception):
        pass

    server, processes = sort(), []
    with pytest.raises(Failure), server:  # noqa: PT012
        processes += [server.pid, *children(server.pid)]
        raise Failure
    assert not any(is_alive(process) for process in processes)
    assert not server.directory.exists()


_PROGRAM = """
import sys
from server_process import children
from servers import {sort}
with {sort}() as server:
    print(server.directory, server.pid, *children(server.pid), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("sort", ["PostgresServer", "MariadbServer", "RedisServer"])
def test_no_server_outlives_a_test_process_that_was_killed(sort: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(sort=sort)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        first, *others = program.stdout.readline().split()
        directory, processes = Path(first), [int(word) for word in others]
        assert is_alive(processes[0])  # a child may have been the backend of the first query, gone already
        program.kill()
    wait_until(lambda: not any(is_alive(process) for process in processes), "the server to end")
    make_old(directory)
    with RedisServer():
        assert not directory.exists(), "the next one cleans up"


def make_old(directory: Path) -> None:
    os.utime(directory / LOCK_NAME, (0, 0))


def test_the_directory_of_a_living_server_is_nobodys_leftover() -> None:
    with RedisServer() as server:
        make_old(server.directory)
        remove_leftovers()
        assert server.log.exists()


def test_an_interrupted_run_stops_its_servers(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import pathlib, sys, threading\n"
        "def test_long(postgresql_server, redis_server):\n"
        "    facts = [postgresql_server.pid, redis_server.pid, postgresql_server.directory]\n"
        "    pathlib.Path('facts').write_text('\\n'.join(map(str, facts)))\n"
        "    pathlib.Path('ready').touch()\n"
        "    threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "servers", "-p", "no:cacheprovider", "test_long.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE) as run_of_pytest:
        wait_until((tmp_path / "ready").exists, "the servers to start")
        postgres, redis, directory = (tmp_path / "facts").read_text().splitlines()
        run_of_pytest.send_signal(signal.SIGINT)
        run_of_pytest.communicate()
    assert run_of_pytest.returncode == pytest.ExitCode.INTERRUPTED
    assert not is_alive(int(postgres))
    assert not is_alive(int(redis))
    assert not Path(directory).exists()


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(ServerError, match="install the Debian package talweg-none"):
        binary("no-such-program", "talweg-none")


@pytest.mark.parametrize(
    ("sort", "option", "said"),
    [
        (PostgresServer, ["-c", "no_such_setting=1"], "no_such_setting"),
        (MariadbServer, ["--no-such-setting=1"], "no-such-setting"),
        (RedisServer, ["--no-such-setting", "1"], "no-such-setting"),
    ],
)
def test_a_server_that_does_not_start_says_what_its_log_says(
    sort: type[Server], option: list[str], said: str
) -> None:
    class Broken(sort):  # type: ignore[valid-type, misc]
        def command(self) -> list[str]:
            return [*super().command(), *option]

    server = Broken()
    with pytest.raises(ServerError, match=said), server:
        pass
    assert server.process is None
    assert not server.directory.exists()


def test_a_preparation_that_fails_says_why() -> None:
    class Broken(PostgresServer):
        def prepare(self) -> None:
            self.run([self._binary("initdb"), "-D", str(self.directory), "--encoding=none-such"])

    with pytest.raises(ServerError, match="none-such"), Broken():
        pass


def test_a_held_port_is_given_to_nobody_else() -> None:
    held = HeldPort()
    try:
        with pytest.raises(ServerError, match="no free port"):
            HeldPort(candidates=[held.number])
    finally:
        held.close()
    HeldPort(candidates=[held.number]).close()


def test_a_port_on_which_someone_listens_is_not_free() -> None:
    with RedisServer() as server:
        server._held_port.close()  # as if a stranger's server had this port
        with pytest.raises(ServerError, match="no free port"):
            HeldPort(candidates=[server.port])
