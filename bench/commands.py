"""What the benchmark says to a process of a cluster, and what that answers: a JSON document a line.

Talweg's process and pysyncobj's understand the same commands, so that both are measured alike.
"""

import os

import msgspec

LINE_BYTES_MAX = 16 << 20
_PAYLOADS_BYTES = 4 << 20  # of random payloads that are used in turn

Settings = dict[str, bool | int | float]  # pysyncobj insists on integers where it wants them


class Member(msgspec.Struct, frozen=True):
    """One process of a cluster; its first and only argument, as JSON."""

    number: int  # from 1 on
    ports: list[int]  # of all members, in order
    directory: str
    groups: int = 1
    settings: Settings = {}  # pysyncobj's own, by their names

    @property
    def port(self) -> int:
        """Where this one listens."""
        return self.ports[self.number - 1]


class AskState(msgspec.Struct, frozen=True, tag=True):
    """How are things? Also answered first of all, when the process is ready."""


class Spread(msgspec.Struct, frozen=True, tag=True):
    """Hand groups over to where they belong, so that each process leads as many; then as `AskState`."""


class Push(msgspec.Struct, frozen=True, tag=True):
    """Append entries as fast as it goes, `window` of them under way. Only for a leader."""

    entry_bytes: int
    window: int
    warm_seconds: float  # before counting
    seconds: float


class PushOneByOne(msgspec.Struct, frozen=True, tag=True):
    """Append an entry, wait for it, append the next."""

    entry_bytes: int
    count: int


class State(msgspec.Struct, frozen=True, tag=True):
    """How things are."""

    leads: int  # groups that this process leads
    led: int  # groups of which it knows the leader
    connected: int  # peers
    last_index: int  # of the first group


class Pushed(msgspec.Struct, frozen=True, tag=True):
    """What came of `Push`, without what came before it was warm."""

    entries: int  # acknowledged
    refused: int
    seconds: float

    @property
    def entries_per_second(self) -> float:
        """How fast it went."""
        return self.entries / self.seconds


class Latencies(msgspec.Struct, frozen=True, tag=True):
    """What came of `PushOneByOne`."""

    seconds: list[float]

    def quantile_ms(self, share: float) -> float:
        """The latency that this share of the entries did not exceed."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


Command = AskState | Spread | Push | PushOneByOne
Answer = State | Pushed | Latencies

encode = msgspec.json.encode
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_members = msgspec.json.Decoder(Member)


def decode_command(line: bytes) -> Command:
    """What the benchmark said."""
    return _commands.decode(line)


def decode_answer(line: bytes) -> Answer:
    """What a process answered."""
    return _answers.decode(line)


def decode_member(argument: str) -> Member:
    """Who a process is."""
    return _members.decode(argument)


def payloads(entry_bytes: int) -> list[bytes]:
    """Random bytes, to be used in turn: more different ones than a compressor looks back over."""
    count = max(8, _PAYLOADS_BYTES // entry_bytes)
    return [os.urandom(entry_bytes) for _ in range(count)]
