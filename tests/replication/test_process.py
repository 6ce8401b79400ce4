"""What a process that carries replicas asks of its interpreter and of the C library."""

import gc
import subprocess
import sys

from talweg.replication import process

_FAULTS = """
import resource, sys
from talweg.replication import process

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def batches_come_and_go(rounds):
    for _ in range(rounds):
        [bytearray(1 << 20) for _ in range(8)]

process.prepare(switch_seconds=0.001)
batches_come_and_go(5)
before = faults()
batches_come_and_go(20)
print(faults() - before)
"""


def test_memory_of_batches_that_come_and_go_is_used_again() -> None:
    # In a process of its own: how memory is handed out is a matter of all that happened before.
    ran = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 100, "of the 40,960 pages of what came and went"


def test_threads_and_the_collector_are_told_too() -> None:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        process.prepare(switch_seconds=0.0005)
        assert sys.getswitchinterval() == 0.0005
        process.prepare(switch_seconds=0.001)
        assert sys.getswitchinterval() == 0.0005, "whoever wants it shorter gets it"
        assert gc.get_threshold()[0] > 100_000
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
