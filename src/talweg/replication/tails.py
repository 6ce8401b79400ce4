"""What the groups of a broker keep at hand of their logs, for followers that lag: together it is bounded."""

from collections.abc import Sequence

from talweg.raft import Raft


def let_go(rafts: Sequence[Raft], bytes_max: int) -> None:
    """Let go of the longest tails until all together are within the bound, or none can be let go of.

    A broker that is away lags in all groups. What was let go of is read from the disk when it is back.
    """
    excess_bytes = sum(raft.log.tail_bytes for raft in rafts) - bytes_max
    if excess_bytes <= 0:
        return
    for raft in sorted(rafts, key=lambda raft: raft.log.tail_bytes, reverse=True):
        excess_bytes -= raft.log.tail_bytes
        raft.let_go_of_tail()
        excess_bytes += raft.log.tail_bytes
        if excess_bytes <= 0:
            return
