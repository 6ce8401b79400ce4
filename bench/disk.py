"""What the disk itself gives: bare loops of write and fdatasync, several at once."""

import os
import threading
import time
from pathlib import Path


def bare_bytes_per_second(directory: Path, *, loops: int, write_bytes: int, seconds: float) -> float:
    """The bytes that so many loops together make durable in a second, each in a file of its own."""
    data = os.urandom(write_bytes)
    written = [0] * loops
    end = time.perf_counter() + seconds

    def loop(number: int) -> None:
        path = directory / f"bare-{number}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            while time.perf_counter() < end:
                os.write(descriptor, data)
                os.fdatasync(descriptor)
                written[number] += write_bytes
        finally:
            os.close(descriptor)
            path.unlink()

    # Threads will do: both calls let go of the interpreter.
    threads = [threading.Thread(target=loop, args=(number,)) for number in range(loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(written) / seconds
