"""Configuration changes, one replica at a time. Raft thesis, section 4.1.

A configuration counts from the moment it is in the log, committed or not, and no longer when it is
truncated away. A leader proposes one only after an entry of its own term is committed, and only when
the last one is: otherwise two leaders could hold configurations whose majorities do not meet.
"""

from typing import TYPE_CHECKING

from talweg.raft import leading
from talweg.raft.configuration import Configuration
from talweg.raft.entries import CONFIGURATION, Entries, Entry
from talweg.raft.messages import Refusal, Role
from talweg.raft.progress import Progress

if TYPE_CHECKING:
    from talweg.raft.core import Raft


def propose(raft: "Raft", configuration: Configuration) -> Refusal | None:
    """Append a configuration entry, or say why not."""
    if raft.role is not Role.LEADER:
        return Refusal.NOT_LEADER
    if raft.transfer_target is not None:
        return Refusal.TRANSFERRING
    if raft.configuration_history[-1][0] > raft.commit_index:
        return Refusal.CHANGE_PENDING
    if not leading.term_is_open(raft):
        return Refusal.TERM_NOT_OPEN
    if not configuration.voters or not raft.configuration.differs_by_one_voter_at_most(configuration):
        return Refusal.UNSAFE_CHANGE
    entry = Entry(raft.log.last_index + 1, raft.term, CONFIGURATION, configuration.to_bytes())
    leading.propose(raft, [entry])
    leading.advance_commit(raft)  # fewer voters may be a majority already of what went before
    return None


def heed(raft: "Raft", entries: Entries) -> None:
    """Let the configurations among appended entries count."""
    for entry in entries:
        if isinstance(entry, Entry) and entry.kind == CONFIGURATION:
            raft.configuration_history.append((entry.index, Configuration.from_bytes(entry.payload)))
            _take_effect(raft)


def roll_back(raft: "Raft", index: int) -> None:
    """Entries from `index` on are gone, and with them their configurations."""
    history = raft.configuration_history
    if history[-1][0] >= index:
        while history[-1][0] >= index:
            history.pop()
        _take_effect(raft)


def forget_before(raft: "Raft", index: int) -> None:
    """Keep the configuration in force at `index`, and the later ones."""
    history = raft.configuration_history
    while len(history) > 1 and history[1][0] <= index:
        history.pop(0)


def configuration_at(raft: "Raft", index: int) -> Configuration:
    """The one in force at `index`, which is not below the log's start."""
    for at, configuration in reversed(raft.configuration_history):
        if at <= index:
            return configuration
    raise AssertionError("the history reaches back to the log's start")


def may_stand(raft: "Raft") -> bool:
    """Whether this replica is a voter, or was one until a change that is not committed yet.

    It may be the only one to hold that change, and thereby the longest log: if it did not stand, and
    refused the others its vote, nobody could win (thesis, section 4.2.2).
    """
    for at, configuration in reversed(raft.configuration_history):
        if raft.replica in configuration.voters:
            return True
        if at <= raft.commit_index:
            return False
    return False


def _take_effect(raft: "Raft") -> None:
    raft.configuration = raft.configuration_history[-1][1]
    raft.doubt_at = 0  # those who were heard may be none of its voters
    if raft.role is not Role.LEADER:
        return
    members = {member for member in raft.configuration.members if member != raft.replica}
    for gone in raft.progress.keys() - members:
        del raft.progress[gone]
    for new in sorted(members - raft.progress.keys()):
        raft.progress[new] = Progress(raft.log.last_index, raft.clock)
    if raft.transfer_target not in raft.configuration.voters:
        raft.transfer_target = None
