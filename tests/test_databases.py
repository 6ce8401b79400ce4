"""What is asked of every database, whatever is kept in it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from talweg.metadata import MetadataStore, open_metadata
from talweg.storage import LogStores, open_stores


@pytest.mark.parametrize("open_it", [open_metadata, open_stores], ids=["metadata", "logs"])
def test_who_opens_a_new_file_waits_for_the_one_that_is_about_it(
    open_it: Callable[[str], MetadataStore | LogStores], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", check_same_thread=False)) as first:
        first.execute("CREATE TABLE another (number INTEGER)")
        # In the mode that a new file has, SQLite refuses at once whoever wants to change it now.
        first.execute("BEGIN IMMEDIATE")
        ready = Timer(0.3, first.commit)
        ready.start()
        try:
            open_it(f"sqlite:///{tmp_path}/new.db").close()
        finally:
            ready.join()
