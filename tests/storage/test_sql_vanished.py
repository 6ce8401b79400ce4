"""The SQL store when somebody vanishes without a word in the midst of a transaction, and may come back."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from storage.sql_logs import batches, opened, read_all, write
from talweg.errors import StorageError
from talweg.raft import HardState
from talweg.storage.contract import Write
from talweg.storage.sql import SqlStores
from talweg.storage.sql_database import WAITS
from talweg.storage.sql_schema import groups

PATIENT = replace(WAITS, lock_seconds_max=60)


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_database"))


@contextlib.contextmanager
def row_held(stores: SqlStores, group: str) -> Iterator[None]:
    """A transaction that holds the row of a group, as every write does, and does nothing more."""
    with stores._database.writing() as connection:
        connection.execute(select(groups).where(groups.c.name == group).with_for_update())
        yield


def test_a_broker_that_vanished_in_a_write_is_not_waited_for_for_ever(url: str) -> None:
    with (
        opened(url, waits=replace(WAITS, idle_seconds_max=1)) as vanished_stores,
        opened(url, waits=PATIENT) as later_stores,
    ):
        vanished = vanished_stores.open("group", 1)
        write(vanished, batches(1, 3), hard_state=HardState(1, 1))

        def vanish_and_come_back() -> None:
            with vanished._changing({"term": 7}) as change:
                vanished._append(change, batches(4, 5))
                # Not a word from it now, while another broker takes the log over.
                write(later_stores.open("group", 1), batches(4, 6, body=b"later"))

        with pytest.raises(StorageError):
            vanish_and_come_back()
        later = later_stores.open("group", 1)
        assert read_all(later) == [*batches(1, 3), *batches(4, 6, body=b"later")]
        assert later.summary().hard_state == HardState(1, 1)
        with pytest.raises(StorageError, match="somebody else"):
            vanished.write(Write(entries=batches(4, 5)))
        assert len(read_all(later)) == 6


def test_a_write_whose_transaction_was_given_up_may_be_tried_again(url: str) -> None:
    with opened(url, waits=replace(WAITS, idle_seconds_max=1, lock_seconds_max=60)) as stores:
        store = stores.open("group", 1)
        write(store, batches(1, 3))
        # The line broke, which the server has not noticed: our own transaction is in our way.
        with pytest.raises(StorageError), row_held(stores, "group"):
            write(store, batches(4, 5))
        write(store, batches(6, 7))
        assert read_all(store) == batches(1, 7)


def test_a_row_that_is_not_given_back_is_waited_for_with_a_limit(url: str) -> None:
    with opened(url) as holder, opened(url, waits=replace(WAITS, lock_seconds_max=1)) as others:
        store = others.open("group", 1)
        write(store, batches(1, 3))
        with row_held(holder, "group"):
            with pytest.raises(StorageError):
                write(store, batches(4, 5))
            with pytest.raises(StorageError):
                others.delete("group")
        write(others.open("group", 1), batches(4, 5))
        assert read_all(others.open("group", 1)) == batches(1, 5)


def test_who_waits_for_one_group_does_not_hold_up_the_others(url: str) -> None:
    with opened(url) as holder, opened(url, waits=PATIENT) as stores, ThreadPoolExecutor(2) as pool:
        for group in ("held", "deleted", "free"):
            write(holder.open(group, 1), batches(1, 3))
        with row_held(holder, "held"), row_held(holder, "deleted"):
            opening = pool.submit(stores.open, "held", 1)
            deleting = pool.submit(stores.delete, "deleted")
            write(stores.open("free", 1), batches(4, 5))
            stores.delete("free")
            stores.open("new", 1)
            assert not opening.done()
            assert not deleting.done()
        write(opening.result(60), batches(4, 5))
        deleting.result(60)
        assert stores.groups() == {"held": 1, "new": 1}


def test_waiting_for_a_row_ends_before_the_patience_of_the_caller_does() -> None:
    assert WAITS.lock_seconds_max < WAITS.idle_seconds_max < WAITS.answer_seconds_max


def test_options_in_a_url_come_after_ours(postgresql_database: str) -> None:
    url = f"{postgresql_database}?options=-c%20lock_timeout%3D1234"
    with opened(url) as stores, stores._database.writing() as connection:
        values = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle")
        ]
    assert values == ["1234ms", f"{WAITS.idle_seconds_max}s", str(WAITS.idle_seconds_max)]
