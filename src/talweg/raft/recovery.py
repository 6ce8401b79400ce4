"""How a replica that lost some of its log comes back. It is told by `HardState.recovering`.

It may have forgotten votes, terms and entries that it acknowledged. So until it is whole again nothing
that it says counts: it does not vote nor stand, what it acknowledges commits nothing, and its replies
neither keep a leader in office nor confirm a read. (An old leader could otherwise go on with a voter who
has forgotten that it helped to elect another one.)

It is whole again once it holds everything that was committed before the loss, and everything that it
ever acknowledged to the present leader, whose messages of that time may still arrive. A leader that
hears of a loss therefore notes where its log ends now, and lets a majority, without the one who lost its
log, confirm that it leads. What was committed before the loss is on a majority, which shares somebody
with that one who has not forgotten; so it was committed by this leader or an earlier one, and is in this
leader's log, before the end that it noted. Then the replica is told that index, and waits until it
holds it, committed and durable. The number of its life makes sure that it is not told of an earlier loss.

One thing remains. A vote that it gave before the loss, and that a candidate has not counted yet, is
forgotten for good. With three voters the majority above is both of the others, and the candidate is one
of them: it would have told the leader of its term. With five, a vote that travels for longer than all
of this takes could count twice.
"""

from typing import TYPE_CHECKING

from talweg.raft.messages import AppendReply, HeartbeatReply
from talweg.raft.progress import Progress

if TYPE_CHECKING:
    from talweg.raft.core import Raft


def heard(raft: "Raft", progress: Progress, reply: AppendReply | HeartbeatReply) -> None:
    """A leader has got a reply: does it count, and has its sender lost some of its log?"""
    if not reply.recovering:
        progress.heard_at = raft.clock
        if reply.life == progress.recovering_life:
            progress.recovery_index = 0  # it is whole again
    elif not progress.recovery_index or progress.recovering_life != reply.life:
        progress.recovering_life = reply.life
        progress.recovery_index = raft.log.last_index
        progress.recovery_round = raft.reads.begin_bare_round()


def index_to_tell(raft: "Raft", progress: Progress) -> int:
    """Where a follower is whole again; 0 if it lost nothing, or as long as our leadership is in doubt."""
    return progress.recovery_index if raft.reads.confirmed_round >= progress.recovery_round else 0


def leave(raft: "Raft") -> None:
    """Count again, if the time has come."""
    if not raft.recovering or raft.leader is None or not raft.recovery_index:
        return
    if min(raft.commit_index, raft.stable_index) >= raft.recovery_index:
        raft.recovering = False
        raft.vote = raft.leader  # we may have voted in this term and forgotten: never for another
