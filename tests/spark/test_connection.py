"""The connection that a process of Spark's keeps."""

import gc

from talweg.spark.connection import logs_of


def test_a_process_keeps_one_connection_and_what_it_has_imported_is_no_garbage() -> None:
    servers = ("http://127.0.0.1:9",)  # nobody is asked before something is wanted
    gc.unfreeze()
    try:
        logs = logs_of(servers, 1.0)
        assert gc.get_freeze_count() > 10_000, "Spark looks for garbage after every task"
        gc.unfreeze()
        assert logs_of(servers, 1.0) is logs
        assert gc.get_freeze_count() == 0, "once is enough: what came later may be garbage"
        assert logs_of(servers, 2.0) is not logs
    finally:
        gc.unfreeze()
        for seconds_max in (1.0, 2.0):
            logs_of(servers, seconds_max).close()
