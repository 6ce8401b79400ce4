"""From the configuration that a group has to the one it should have, one safe step at a time. Pure.

What should be is the primary's word (an assignment); what is, the group's own log. A step that was
forgotten or done twice does no harm: the next one is worked out from what is there.
"""

from collections.abc import Collection

from talweg.raft import Configuration


def next_configuration(
    now: Configuration, wanted: Configuration, *, leader: int, caught_up: Collection[int]
) -> Configuration | None:
    """The next configuration to propose; None if there is nothing (yet) to do.

    A broker becomes a voter only as a learner that has caught up, so that a majority never waits for one
    that has the log still to fetch. The leader is removed by whoever leads after it.
    """
    for broker in wanted.members:
        if broker not in now.members:
            return now.with_learner(broker)
    for broker in wanted.voters:
        if broker in now.learners and broker in caught_up:
            return now.with_voter(broker)
    if not set(wanted.voters) <= set(now.voters):
        return None  # one is still catching up: nobody goes before it has come
    for broker in now.voters:
        if broker not in wanted.voters and broker != leader:
            return now.with_learner(broker) if broker in wanted.learners else now.without(broker)
    for broker in now.learners:
        if broker not in wanted.members:
            return now.without(broker)
    return None


def should_hand_over(now: Configuration, wanted: Configuration, *, leader: int) -> bool:
    """Whether everything is done but the leader's own removal."""
    return leader not in wanted.voters and set(wanted.voters) <= set(now.voters)
