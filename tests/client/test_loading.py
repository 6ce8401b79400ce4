"""What a program pays for when it imports the library."""

import subprocess
import sys

HEAVY = "pyspark pyarrow numpy uvicorn sqlalchemy rich".split()


def loaded(statement: str) -> list[str]:
    script = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_it_loads_nothing_heavy() -> None:
    assert loaded("import talweg") == []


def test_administration_needs_no_columns() -> None:
    assert loaded("from talweg import Admin, AsyncAdmin") == []


def test_clients_load_neither_spark_nor_servers() -> None:
    clients = "AsyncConsumer, AsyncProducer, Consumer, Producer"
    assert loaded(f"from talweg import {clients}") == ["pyarrow", "numpy"]
