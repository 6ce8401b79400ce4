"""Numbers that are never handed out twice, although Redis may forget what it was told last.

Redis replicates behind its answers: when a master dies, the replica that takes its place may lack the
last writes. A counter in one place would go back. So the mark below which numbers are taken is kept three
times, in three hash slots a third of the slots apart, which three or more masters with equal shares keep
on three different machines. To take numbers is to *claim* them in all three: a slot accepts a claim if
nothing at or above its first number was claimed there before. Then at least one replica must confirm that
it has the claim. Numbers whose claim fails halfway are skipped.

Why that is enough: let two callers be given the same number. Each slot accepted both claims, so each slot
forgot the earlier one in between. But a master whose replica has confirmed a claim cannot forget it by
failing over to that replica. Hence:

- one master that fails over, whatever its replica lacks: no number comes again;
- two or three that fail over: none comes again either, so long as a replica that confirmed takes over
  from its own master (with one replica each there is no other that could);
- no replica answers anywhere: nothing is handed out, unless the cluster has no replicas and so no failover.

What remains: masters with several replicas, all three of which fail over to one that had not confirmed;
`CLUSTER FAILOVER TAKEOVER` or `FLUSHALL` by hand; slots moved by hand so that one master has all three;
machines that lose power with `appendfsync everysec`, all at once and within that second.
"""

import threading
from enum import Enum
from typing import Final

from talweg.errors import MetadataUnavailable
from talweg.metadata.redis_nodes import Command, Confirmation, Nodes
from talweg.metadata.redis_scripts import CLAIM

# Hash tags with the slots 2,723, 8,197 and 13,654 of 16,384: the middles of three equal shares.
TAGS: Final = ("talweg-732", "talweg-752", "talweg-762")
_ATTEMPTS_MAX: Final = 100  # each but the last was lost to another process that took numbers meanwhile


class Numbered(Enum):
    """What is numbered."""

    GROUP = "group"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    BROKER = "broker"
    EPOCH = "epoch"


class Sequences:
    """Takes numbers. `wait_ms_max` is how long a replica may take to confirm."""

    def __init__(self, nodes: Nodes, namespace: str, wait_ms_max: int) -> None:
        self._nodes = nodes
        self._keys = [f"{{{tag}}}:{namespace}:marks" for tag in TAGS]
        self._wait_ms_max = wait_ms_max
        self._lock = threading.Lock()  # threads would only take each other's numbers away
        self._next = dict.fromkeys(Numbered, 0)  # a guess; the marks know better

    def take(self, sequence: Numbered, count: int = 1) -> int:
        """The first of `count` numbers in a row that are the caller's alone."""
        with self._lock:
            for _ in range(_ATTEMPTS_MAX):
                first = self._next[sequence]
                taken = self._claim(sequence, first, first + count)
                self._next[sequence] = first + count if taken is None else taken
                if taken is None:
                    return first
        raise MetadataUnavailable(f"too many processes take {sequence.value} numbers at once")

    def skip_to(self, sequence: Numbered, number: int) -> None:
        """Never hand out what lies below `number`: it is in use, although no mark may say so."""
        with self._lock:
            while (first := self._next[sequence]) < number:
                taken = self._claim(sequence, first, number)
                self._next[sequence] = number if taken is None else taken

    def _claim(self, sequence: Numbered, first: int, following: int) -> int | None:
        """None if the numbers up to `following` (exclusive) are ours; else a mark above `first`."""
        confirmed = False
        for key in self._keys:
            claim: Command = ("EVAL", CLAIM, 1, key, sequence.value, first, following)
            if confirmed:  # one replica that has it is enough
                accepted, mark, _ = self._nodes.run(key, claim)
            else:
                (accepted, mark), confirmation = self._nodes.run_confirmed(key, claim, self._wait_ms_max)
                confirmed = confirmation is Confirmation.CONFIRMED
            if not accepted:
                return int(mark)
        if not confirmed and self._nodes.has_replicas(self._keys[0]):
            raise MetadataUnavailable("no replica has confirmed that numbers were taken")
        return None
