"""Who belongs to a group: voters, and learners that follow without a voice.

One replica changes at a time (Raft thesis, section 4.1): any majority of the old configuration then
shares a member with any majority of the new one, so no joint configuration is needed.
"""

import struct
from collections.abc import Iterable

import msgspec

_COUNTS = struct.Struct("<HH")


class Configuration(msgspec.Struct, frozen=True):
    """Voters decide elections and commits; learners only receive."""

    voters: tuple[int, ...] = ()  # sorted, disjoint from learners
    learners: tuple[int, ...] = ()  # sorted

    @classmethod
    def of(cls, voters: Iterable[int], learners: Iterable[int] = ()) -> "Configuration":
        """The configuration with these members, in whatever order they come."""
        made = cls(tuple(sorted(set(voters))), tuple(sorted(set(learners))))
        assert not set(made.voters) & set(made.learners), "a replica is a voter or a learner"
        return made

    @property
    def members(self) -> tuple[int, ...]:
        """Everyone who receives entries."""
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def with_learner(self, replica: int) -> "Configuration":
        """Add one that follows without a voice (or take a voter's voice away)."""
        return Configuration.of(set(self.voters) - {replica}, {*self.learners, replica})

    def with_voter(self, replica: int) -> "Configuration":
        """Add a voter, or give a learner its voice."""
        return Configuration.of({*self.voters, replica}, set(self.learners) - {replica})

    def without(self, replica: int) -> "Configuration":
        """Take a member out."""
        return Configuration.of(set(self.voters) - {replica}, set(self.learners) - {replica})

    def differs_by_one_voter_at_most(self, other: "Configuration") -> bool:
        """The condition under which old and new majorities must overlap."""
        return len(set(self.voters) ^ set(other.voters)) <= 1

    def to_bytes(self) -> bytes:
        """The payload of a configuration entry."""
        members = self.members
        counts = _COUNTS.pack(len(self.voters), len(self.learners))
        return counts + struct.pack(f"<{len(members)}Q", *members)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Configuration":
        """Read back what `to_bytes` wrote; raises ValueError for anything else."""
        if len(data) < _COUNTS.size:
            raise ValueError("a configuration of fewer than four bytes")
        voters, learners = _COUNTS.unpack_from(data)
        if len(data) != _COUNTS.size + 8 * (voters + learners):
            raise ValueError(f"a configuration of {voters} + {learners} members in {len(data)} bytes")
        members = struct.unpack_from(f"<{voters + learners}Q", data, _COUNTS.size)
        if len(set(members)) != len(members):
            raise ValueError("a configuration that names a replica twice")
        return cls.of(members[:voters], members[voters:])
