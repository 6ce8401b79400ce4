"""A store whose server is killed: what callers hear, and that all goes on by itself when it is back."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from metadata.conftest import NOW_US, SECOND_US, emptied, redis_url_of
from server_process import wait_until
from servers import MariadbServer, PostgresServer, RedisServer
from talweg.errors import LeaseLost, MetadataUnavailable
from talweg.metadata import MetadataCopy, MetadataStore, open_metadata
from talweg.metadata.model import RemovedTopic
from talweg.metadata.sql import SqlMetadata
from talweg.metadata.sql_database import WAITS
from talweg.metadata.sql_schema import removed_topics

SORTS: list[type[PostgresServer | MariadbServer | RedisServer]] = [PostgresServer, MariadbServer, RedisServer]


@pytest.fixture(params=SORTS)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | MariadbServer | RedisServer]:
    with request.param() as started:
        yield started


def acquire(store: MetadataStore) -> int:
    lease = store.acquire_lease("first", "http://first", now_us=NOW_US, duration_us=10 * SECOND_US)
    assert lease is not None
    return lease.epoch


def test_a_store_whose_server_was_killed_goes_on_when_it_is_back(
    server: PostgresServer | MariadbServer | RedisServer,
) -> None:
    url = redis_url_of(server.url) if isinstance(server, RedisServer) else server.url
    with open_metadata(url) as store:
        epoch = acquire(store)
        topic = store.create_topic("orders", [[0, 1, 2]], now_us=NOW_US, epoch=epoch)
        numbers = register_until_killed(store, epoch, server)
        calls: list[Callable[[], object]] = [
            store.topics,
            lambda: store.changes(0),
            lambda: store.register_producer("orders", now_us=NOW_US, epoch=epoch),
            lambda: store.renew_lease(epoch, now_us=NOW_US, duration_us=SECOND_US),
            lambda: acquire(store),
        ]
        for call in calls:
            with pytest.raises(MetadataUnavailable) as unavailable:
                call()
            assert unavailable.value.retriable
        server.start()
        after = MetadataCopy()
        after.follow(store)
        assert after.topics == {"orders": topic}
        assert set(numbers) <= set(after.producers), "what was answered is there"
        epoch = acquire_again(store, epoch)
        numbers.append(store.register_producer("orders", now_us=NOW_US, epoch=epoch).id)
        assert len(set(numbers)) == len(numbers), "and no number comes again"


def register_until_killed(
    store: MetadataStore, epoch: int, server: PostgresServer | MariadbServer | RedisServer
) -> list[int]:
    """Many threads register, and in the midst of it the server is killed."""
    numbers: list[int] = []

    def register() -> None:
        with contextlib.suppress(MetadataUnavailable):
            while True:
                numbers.append(store.register_producer("orders", now_us=NOW_US, epoch=epoch).id)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(numbers) >= 20, "some registrations")
    server.kill()
    for thread in threads:
        thread.join()
    return numbers


def acquire_again(store: MetadataStore, epoch: int) -> int:
    with contextlib.suppress(LeaseLost):  # a Redis that was restarted honours no lease
        return store.renew_lease(epoch, now_us=NOW_US, duration_us=SECOND_US).epoch
    return acquire(store)


def test_a_host_that_goes_away_without_a_word_is_noticed(postgresql_server: PostgresServer) -> None:
    with SqlMetadata(postgresql_server.url) as store, store._database.reading() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        with socket.socket(fileno=os.dup(driver.fileno())) as wire:
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (wire.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    assert idle + interval * count <= WAITS.answer_seconds_max


@pytest.mark.parametrize("sort", ["postgresql", "mariadb"])
def test_a_manager_that_vanished_in_the_midst_of_a_change_is_not_waited_for_for_ever(
    sort: str, request: pytest.FixtureRequest
) -> None:
    url = emptied(request.getfixturevalue(f"{sort}_metadata"))
    with SqlMetadata(url, waits=replace(WAITS, idle_seconds_max=1)) as vanished, SqlMetadata(url) as other:
        epoch = acquire(vanished)

        def vanish_and_come_back() -> None:
            with vanished._writing(epoch) as late:
                late.changed["lease_endpoint"] = "http://vanished"
                late.insert(
                    removed_topics, [RemovedTopic(name=f"t{n}", incarnation=n, partitions=1) for n in (8, 9)]
                )
                other.create_topic("orders", [[0]], now_us=NOW_US, epoch=epoch)

        with pytest.raises(MetadataUnavailable):
            vanish_and_come_back()
        lease = other.lease()
        assert lease is not None
        assert lease.endpoint == "http://first", "what it did not finish is undone"
        assert [topic.name for topic in other.topics()] == ["orders"]


@pytest.mark.parametrize("sort", ["postgresql", "mariadb"])
def test_a_row_that_is_not_given_back_is_waited_for_with_a_limit(
    sort: str, request: pytest.FixtureRequest
) -> None:
    url = emptied(request.getfixturevalue(f"{sort}_metadata"))
    brief = replace(WAITS, lock_seconds_max=1, answer_seconds_max=60)
    with SqlMetadata(url) as holder, SqlMetadata(url, waits=brief) as other:
        epoch = acquire(holder)
        with holder._writing(epoch), pytest.raises(MetadataUnavailable):
            other.renew_lease(epoch, now_us=NOW_US, duration_us=SECOND_US)
        other.renew_lease(epoch, now_us=NOW_US, duration_us=SECOND_US)


def test_options_in_the_url_come_after_ours(postgresql_server: PostgresServer) -> None:
    url = f"{postgresql_server.url}?options=-c%20lock_timeout%3D1234"
    with SqlMetadata(url) as store, store._database.reading() as connection:
        values = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        ]
    assert values == ["1234ms", f"{WAITS.idle_seconds_max}s"]
