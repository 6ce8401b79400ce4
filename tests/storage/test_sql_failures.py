"""The SQL store when its database dies, loses the line, or has no space left."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy

from servers import MariadbServer, PostgresServer
from storage.logs import together
from storage.sql_logs import ALL, MEMBERS, batches, by_hand, opened, read_all, write
from talweg.errors import (
    StorageError,
    StorageFull,
)
from talweg.raft import Entry, HardState, Snapshot, singly
from talweg.storage.contract import Write
from talweg.storage.sql import SqlStores
from talweg.storage.sql_space import RESERVE_BYTES, free_bytes_around

DatabaseServer = PostgresServer | MariadbServer


# Servers that die


@pytest.mark.parametrize("sort", [PostgresServer, MariadbServer])
def test_what_was_acknowledged_survives_the_kill_of_the_server(sort: Callable[[], DatabaseServer]) -> None:
    with sort() as server, opened(server.url) as stores:
        store = stores.open("group", 1)
        acknowledged: list[Entry] = []
        unacknowledged: list[Entry] = []
        has_begun = threading.Event()

        def write_until_it_fails() -> None:
            for number in range(1_000_000):
                entries = batches(10 * number + 1, 10 * number + 10, body=os.urandom(500))
                try:
                    write(store, entries)
                except StorageError:
                    unacknowledged.extend(entries)
                    return
                acknowledged.extend(entries)
                if number == 20:
                    has_begun.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_until_it_fails)
            assert has_begun.wait(60)
            server.kill()
            writing.result()
        server.start()
        with opened(server.url) as later:
            found = read_all(later.open("group", 1))
            assert found[: len(acknowledged)] == acknowledged
            assert found[len(acknowledged) :] in ([], unacknowledged)
            assert later.open("group", 1).summary().damage is None


@pytest.mark.parametrize("sort", [PostgresServer, MariadbServer])
def test_a_store_goes_on_by_itself_when_its_server_is_back(sort: Callable[[], DatabaseServer]) -> None:
    with sort() as server, opened(server.url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 5))
        server.kill()
        with pytest.raises(StorageError):
            write(store, batches(6, 10))
        with pytest.raises(StorageError):
            store.read(1, ALL)
        with pytest.raises(StorageError):
            stores.open("other", 1)
        server.start()
        assert store.read(1, ALL) == batches(1, 5)
        write(store, batches(6, 10))
        server.stop()  # and once more, without any call in between that would notice
        server.start()
        write(store, batches(11, 15))
        assert read_all(store) == batches(1, 15)


_WRITER = """
import sys
sys.path.insert(0, {tests!r})
from storage.sql_logs import SqlStores, batches, write
store = SqlStores({url!r}).open("group", 1)
for number in range(1_000_000):
    write(store, batches(10 * number + 1, 10 * number + 10))
    print(10 * number + 10, flush=True)
"""


def test_what_was_acknowledged_survives_the_kill_of_a_process_with_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.sqlite'}"
    program = _WRITER.format(tests=str(Path(__file__).parent.parent), url=url)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.kill()
        acknowledged = 200 + 10 * len(writer.stdout.readlines())
    with opened(url) as stores:
        summary = stores.open("group", 1).summary()
        assert summary.last_index in (acknowledged, acknowledged + 10)
        assert summary.damage is None
        assert read_all(stores.open("group", 1)) == batches(1, summary.last_index)


_COMMIT = re.compile(rb"COMMIT(?!TED)")  # READ COMMITTED goes over the same line


class CuttingProxy:
    """Stands between client and server; on demand it cuts the line when a commit has been carried out."""

    def __init__(self, port: int) -> None:
        self.cuts = threading.Event()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                commits = threading.Event()
                for source, target in ((client, server), (server, client)):
                    pump = threading.Thread(target=self._pump, args=(source, target, client, commits))
                    self._threads.append(pump)
                    pump.start()

    def _pump(
        self, source: socket.socket, target: socket.socket, client: socket.socket, commits: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is client and self.cuts.is_set() and _COMMIT.search(data):
                    commits.set()
                elif source is not client and commits.is_set():
                    self.cuts.clear()
                    break  # the server has answered: it is done, but the client never hears of it
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture(params=["postgresql", "mariadb"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[str, CuttingProxy]]:
    url = sqlalchemy.make_url(request.getfixturevalue(f"{request.param}_database"))
    assert url.port is not None
    proxy = CuttingProxy(url.port)
    yield url.set(port=proxy.port).render_as_string(hide_password=False), proxy
    proxy.close()


@pytest.mark.parametrize(
    "lost",
    [
        Write(entries=together(batches(6, 9)), hard_state=HardState(2, 1)),
        Write(truncate_from=4, entries=together(batches(4, 9, term=2)), hard_state=HardState(2, 1)),
        Write(
            snapshot=Snapshot(20, 2, MEMBERS, b"state"),
            next_offset=20,
            entries=together(batches(21, 22, term=2)),
            hard_state=HardState(2, 1),
        ),
    ],
    ids=["append", "truncate", "install"],
)
def test_a_write_may_be_repeated_when_the_answer_to_its_commit_was_lost(
    lost: Write, proxied: tuple[str, CuttingProxy]
) -> None:
    url, proxy = proxied
    with opened(url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 5), hard_state=HardState(1, 2))
        proxy.cuts.set()
        with pytest.raises(StorageError):
            store.write(lost)
        assert not proxy.cuts.is_set()
        store.write(lost)
        assert store.summary().hard_state == lost.hard_state
        assert store.summary().damage is None
        first, last = lost.entries[0].index, lost.entries[-1].last_index
        assert store.read(first, ALL) == singly(lost.entries)
        write(store, batches(last + 1, last + 3, term=2))
        assert stores.open("group", 1).summary().last_index == last + 3


def test_a_head_may_be_dropped_again_when_the_answer_to_the_commit_was_lost(
    proxied: tuple[str, CuttingProxy],
) -> None:
    url, proxy = proxied
    with opened(url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 5))
        store.save_snapshot(Snapshot(3, 1, MEMBERS, b"state"))
        steps: list[Callable[[], None]] = [
            lambda: store.save_snapshot(Snapshot(4, 1, MEMBERS, b"more")),
            lambda: store.drop_head(4),
        ]
        for repeated in steps:
            proxy.cuts.set()
            with pytest.raises(StorageError):
                repeated()
            repeated()
        assert store.summary().start_index == 4
        assert [mark.index for mark in store.snapshots()] == [4]
        assert read_all(store) == batches(5, 5)


# Full disks


def test_a_full_sqlite_refuses_writes_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.sqlite'}"
    with opened(url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 3))
        set_page_limit(stores, 30)
        with pytest.raises(StorageFull):
            write(store, batches(4, 6, body=bytes(100_000)))
        assert read_all(store) == batches(1, 3)
        set_page_limit(stores, 1_000_000)
        write(store, batches(4, 6, body=bytes(100_000)))
        assert store.summary().last_index == 6


def test_the_last_of_sqlites_disk_is_kept_for_deleting(tmp_path: Path) -> None:
    free_bytes = [1 << 40]
    with opened(f"sqlite:///{tmp_path / 'log.sqlite'}", free_bytes=lambda: free_bytes[0]) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 50, body=bytes(100_000)), hard_state=HardState(1))
        store.save_snapshot(Snapshot(40, 1, MEMBERS, b"state"))
        free_bytes[0] = RESERVE_BYTES - 1
        with pytest.raises(StorageFull):
            write(store, batches(51, 51))
        with pytest.raises(StorageFull):
            store.save_snapshot(Snapshot(45, 1, MEMBERS, b"state"))
        with pytest.raises(StorageFull):
            store.write(Write(snapshot=Snapshot(90, 1, MEMBERS, b"state"), next_offset=90))
        store.write(Write(hard_state=HardState(2)))
        assert store.summary().hard_state == HardState(2)
        assert store.summary().last_index == 50
        store.drop_head(40)
        assert store.summary().start_index == 40
        write(store, batches(51, 53))  # where the head was: the file does not grow
        assert read_all(store) == batches(41, 50, body=bytes(100_000)) + batches(51, 53)
        with pytest.raises(StorageFull):
            write(store, batches(54, 90, body=bytes(200_000)))
        free_bytes[0] = 0
        with pytest.raises(StorageFull):
            write(store, batches(54, 54))
        stores.delete("group")


def test_the_room_on_a_disk_is_that_of_the_disk(tmp_path: Path) -> None:
    assert 0 < free_bytes_around(str(tmp_path / "log.sqlite"))() <= shutil.disk_usage(tmp_path).total
    assert free_bytes_around(str(tmp_path / "missing" / "log.sqlite"))() == sys.maxsize


def set_page_limit(stores: SqlStores, pages: int) -> None:
    # The limit belongs to a connection, so it has to be set on the one that writes; there is only one.
    with stores._database.writing() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


_REFUSING_FUNCTION = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$
"""
_REFUSING_TRIGGER = """
    CREATE TRIGGER full_disk BEFORE INSERT ON talweg_parts FOR EACH ROW EXECUTE FUNCTION refuse()
"""
_SIGNALLING_TRIGGER = """
    CREATE TRIGGER full_disk BEFORE INSERT ON talweg_parts FOR EACH ROW
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = '{message}'
"""


@pytest.mark.parametrize(
    ("sort", "fill", "clear"),
    [
        (
            "postgresql",
            [_REFUSING_FUNCTION, _REFUSING_TRIGGER],
            "DROP TRIGGER full_disk ON talweg_parts",
        ),
        *(
            (
                "mariadb",
                [_SIGNALLING_TRIGGER.format(number=number, message=message)],
                "DROP TRIGGER full_disk",
            )
            for number, message in (
                (1021, "Disk full"),
                (1114, "The table is full"),
                (1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
            )
        ),
    ],
    ids=["postgresql 53100", "mariadb 1021", "mariadb 1114", "mariadb 1030"],
)
def test_a_full_server_refuses_writes_and_goes_on_when_there_is_space(
    sort: str, fill: list[str], clear: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{sort}_database")
    with opened(url) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 3), hard_state=HardState(1))
        with by_hand(url) as connection:
            for statement in fill:
                connection.exec_driver_sql(statement)
        secret = os.urandom(8).hex()
        with pytest.raises(StorageFull) as caught:
            write(store, batches(4, 6, body=secret.encode()), hard_state=HardState(2))
        assert secret not in "".join(traceback.format_exception(caught.value)), (
            "messages stay out of log files"
        )
        assert store.summary().hard_state == HardState(1)
        assert read_all(store) == batches(1, 3)
        with by_hand(url) as connection:
            connection.exec_driver_sql(clear)
        write(store, batches(4, 6), hard_state=HardState(2))
        assert read_all(store) == batches(1, 6)
