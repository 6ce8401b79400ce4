"""A pipeline that copies messages to the topic `copy`, and lets a test in while its tasks stage them.

As long as there is a file `wait` in the directory that the variable TALWEG_TEST_TROUBLE names, a task that
comes to the message `INFO wait` waits there, when it has told its process in a file `task-…`. The rows before
it are with the writer by then, or staged.
"""

import os
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from talweg.pipeline import pipeline

TROUBLE = os.environ["TALWEG_TEST_TROUBLE"]


@pipeline(to_topic="copy", source="messages")
def copying(messages: DataFrame) -> DataFrame:
    """Every message, in another topic."""
    trouble = TROUBLE  # workers do not have the variable

    def wait_there(value: bytes) -> bytes:
        directory = Path(trouble)
        if value == b"INFO wait" and (directory / "wait").exists():
            (directory / f"task-{os.getpid()}").touch()
            while (directory / "wait").exists():
                time.sleep(0.05)
        return value

    waiting = fn.udf(wait_there, "binary", useArrow=False)
    return messages.select("key", waiting("value").alias("value"))
