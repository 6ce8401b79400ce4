"""A store of every sort, new and empty, and a primary that may write to it."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, delete

from servers import MariadbServer, PostgresServer
from talweg.metadata import Lease, MetadataStore, open_metadata
from talweg.metadata.sql_schema import metadata

SECOND_US = 1_000_000
NOW_US = 1_800_000_000 * SECOND_US


def redis_url_of(url: str, *, cluster: bool = False) -> str:
    """With a namespace of its own, which is what a database is elsewhere."""
    scheme = "redis+cluster" if cluster else "redis"
    return f"{scheme}://{url.partition('://')[2]}?namespace=test_{uuid.uuid4().hex}"


# To make a database and its tables takes a server longer than a test does with them. So the tests of this
# folder share one, and each finds it empty.


@pytest.fixture(scope="session")
def postgresql_metadata(postgresql_server: PostgresServer) -> Iterator[str]:
    name = postgresql_server.create_database()
    yield postgresql_server.database_url(name)
    postgresql_server.drop_database(name)


@pytest.fixture(scope="session")
def mariadb_metadata(mariadb_server: MariadbServer) -> Iterator[str]:
    name = mariadb_server.create_database()
    yield mariadb_server.database_url(name)
    mariadb_server.drop_database(name)


def emptied(url: str) -> str:
    engine = create_engine(url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
    engine.dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "redis", "redis-cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/metadata.db"
    if request.param == "redis":
        return redis_url_of(request.getfixturevalue("redis_url"))
    if request.param == "redis-cluster":
        return redis_url_of(request.getfixturevalue("redis_cluster_url"), cluster=True)
    return emptied(request.getfixturevalue(f"{request.param}_metadata"))


@pytest.fixture
def store(url: str) -> Iterator[MetadataStore]:
    with open_metadata(url) as opened:
        yield opened


@pytest.fixture
def lease(store: MetadataStore) -> Lease:
    taken = store.acquire_lease("first", "http://first", now_us=NOW_US, duration_us=10 * SECOND_US)
    assert taken is not None
    return taken


@pytest.fixture
def epoch(lease: Lease) -> int:
    return lease.epoch
