"""A store by its URL: what is understood, what is refused and how, and who may open it at the same time."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metadata.conftest import NOW_US, SECOND_US
from racing import another_is_first
from servers import RedisCluster
from talweg.errors import InvalidSetting, MetadataUnavailable
from talweg.metadata import MemberKind, MetadataStore, open_metadata
from talweg.metadata.redis_nodes import Address, read_url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "/var/lib/metadata.db",
        "oracle://host/db",
        "http://host",
        "postgresql+asyncpg://host/db",
        "postgresql+psycopg://host:port/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////no/such/directory/metadata.db",
        "redis://",
        "redis://host:port",
        "redis://host/3",
        "redis://one,two",
        "redis://host?namespace=a:b",
        "redis://host?colour=red",
        "redis+sentinel://host",
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        open_metadata(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database\n" * 100)
    (tmp_path / "directory").mkdir()
    for name in ("text", "directory"):
        with pytest.raises(InvalidSetting, match="a file of SQLite's"):
            open_metadata(f"sqlite:///{tmp_path / name}")


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://me:secret@host:port/db", "redis://me:secret@host:port"]
)
def test_a_refusal_shows_no_password(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        open_metadata(url)
    assert "secret" not in str(refused.value)


def test_a_redis_url_names_hosts_account_and_namespace() -> None:
    assert read_url("redis://host") == Address((("host", 6379),), cluster=False)
    assert read_url("rediss+cluster://me:a%40b@one:1,two:2,[::1]:3/?namespace=blue") == Address(
        (("one", 1), ("two", 2), ("::1", 3)),
        cluster=True,
        namespace="blue",
        username="me",
        password="a@b",
        tls=True,
    )
    assert read_url("redis://:secret@host").username is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://talweg@127.0.0.1:1/talweg",
        "mysql+pymysql://talweg@127.0.0.1:1/talweg",
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1",
    ],
)
def test_a_server_that_does_not_answer_is_to_be_tried_again(url: str) -> None:
    with pytest.raises(MetadataUnavailable) as unavailable:
        open_metadata(url)
    assert unavailable.value.retriable


def test_a_cluster_is_not_taken_for_one_redis_nor_the_other_way_round(
    redis_cluster: RedisCluster, redis_url: str
) -> None:
    with pytest.raises(InvalidSetting, match=r"redis\+cluster://"):
        open_metadata(redis_cluster.url)
    with pytest.raises(InvalidSetting, match="no cluster"):
        open_metadata(redis_url.replace("redis://", "redis+cluster://"))


def test_a_dead_seed_is_no_hindrance(redis_cluster: RedisCluster) -> None:
    with open_metadata(f"redis+cluster://127.0.0.1:1,{redis_cluster.url.partition('://')[2]}") as store:
        assert store.changes(1 << 60).restart


def test_namespaces_in_one_redis_know_nothing_of_each_other(redis_url: str) -> None:
    with (
        open_metadata(f"{redis_url}?namespace=blue") as blue,
        open_metadata(f"{redis_url}?namespace=red") as red,
    ):
        assert blue.acquire_lease("blue", "http://blue", now_us=NOW_US, duration_us=SECOND_US) is not None
        assert red.lease() is None


@pytest.mark.parametrize("sort", ["sqlite", "postgresql", "mariadb"])
def test_many_may_open_a_new_store_at_once(sort: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = (
        f"sqlite:///{tmp_path}/metadata.db"
        if sort == "sqlite"
        else str(request.getfixturevalue(f"{sort}_database"))
    )
    start, stores = threading.Barrier(6), []

    def open_it() -> None:
        start.wait()
        stores.append(open_metadata(url))

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leases = [
        store.acquire_lease("one", "http://one", now_us=NOW_US, duration_us=SECOND_US) for store in stores
    ]
    assert [lease.epoch for lease in leases if lease] == [1, 2, 3, 4, 5, 6]
    for store in stores:
        store.close()


def test_another_may_be_first_at_every_table(mariadb_database: str) -> None:
    with another_is_first(mariadb_database) as done:
        store = open_metadata(mariadb_database)
    assert len(done) > 2
    with store, open_metadata(mariadb_database) as later:
        leases = [
            each.acquire_lease("one", "http://one", now_us=NOW_US, duration_us=SECOND_US)
            for each in (store, later)
        ]
        assert [lease.epoch for lease in leases if lease] == [1, 2]


_PROGRAM = """
import sys
from talweg.metadata import open_metadata
url, epoch = sys.argv[1], int(sys.argv[2])
with open_metadata(url) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(30):
        print(store.register_producer("orders", now_us=1, epoch=epoch).id, flush=True)
"""


@pytest.mark.parametrize("url", ["sqlite", "redis-cluster"], indirect=True)
def test_processes_that_register_at_once_get_different_numbers(
    url: str, store: MetadataStore, epoch: int
) -> None:
    store.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, url, str(epoch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    numbers = [int(word) for program in programs for word in program.communicate()[0].split()]
    assert all(program.returncode == 0 for program in programs)
    assert len(set(numbers)) == len(numbers) == 60
    assert set(store.heartbeats(MemberKind.PRODUCER)) == set(numbers)
    if url.startswith("sqlite"):
        assert sorted(numbers) == list(range(60)), "without gaps"
