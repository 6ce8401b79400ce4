"""Messages between brokers, as bytes."""

import pytest

from storage.logs import together
from talweg.errors import CorruptBatch
from talweg.raft import (
    CONFIGURATION,
    NOOP,
    Append,
    AppendReply,
    Configuration,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    Snapshot,
    TimeoutNow,
    VoteReply,
    singly,
)
from talweg.records import encode_values, stamp
from talweg.replication import wire

GROUP = 2**62 + 5
ENDS = {"source": 3, "target": 9}


def records_entry(index: int, term: int) -> Entry:
    frame = stamp(encode_values([b"a", b"bc"], timestamp=5), index=index, term=term, first_offset=40)
    return Entry(index, term, 2, frame)


MESSAGES: list[Message] = [
    RequestVote(**ENDS, term=4, last_index=10, last_term=3),
    RequestVote(**ENDS, term=4, last_index=10, last_term=3, pre=True),
    RequestVote(**ENDS, term=4, last_index=10, last_term=3, transfer=True),
    VoteReply(**ENDS, term=4, granted=True),
    VoteReply(**ENDS, term=4, granted=False, pre=True),
    Append(**ENDS, term=4, prev_index=0, prev_term=0, entries=[], commit=0),
    Append(**ENDS, term=4, prev_index=8, prev_term=3, entries=[], commit=7, recovery_index=9),
    Append(
        **ENDS,
        term=4,
        prev_index=6,
        prev_term=3,
        commit=5,
        entries=[
            Entry(7, 4, NOOP, b""),
            Entry(8, 4, CONFIGURATION, Configuration.of([1, 2], [3]).to_bytes()),
            records_entry(9, 4),
        ],
    ),
    Append(
        **ENDS,
        term=4,
        prev_index=6,
        prev_term=3,
        commit=5,
        entries=[
            *together(records_entry(index, 3) for index in (7, 8)),
            Entry(9, 4, NOOP, b""),
            *together(records_entry(index, 4) for index in (10, 11, 12)),
        ],
    ),
    AppendReply(**ENDS, term=4, index=9),
    AppendReply(**ENDS, term=4, index=9, rejected=True, hint_index=5, hint_term=2),
    AppendReply(**ENDS, term=4, index=9, rejected=True, recovering=True),
    Heartbeat(**ENDS, term=4, commit=8, round=3),
    HeartbeatReply(**ENDS, term=4, round=3),
    HeartbeatReply(**ENDS, term=4, recovering=True),
    InstallSnapshot(**ENDS, term=4, snapshot=Snapshot(9, 3, Configuration.of([1, 2, 3]), b"state")),
    TimeoutNow(**ENDS, term=4),
]


def split(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        length = int.from_bytes(stream[:4], "little")
        found.append(stream[4 : 4 + length])
        assert len(found[-1]) == length
        stream = stream[4 + length :]
    return found


def sent(*messages: Message) -> list[bytes]:
    return split(b"".join(wire.packets([(GROUP, message) for message in messages])))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    (packet,) = sent(message)
    assert list(wire.read_packet(packet, 3, 9)) == [(GROUP, message)]


def test_entries_that_two_brokers_are_sent_together_are_put_together_once() -> None:
    def append(target: int, first: int = 9, count: int = 3, term: int = 4) -> Append:
        entries = [records_entry(index, term) for index in range(first, first + count)]
        ends = {"source": 3, "target": target}
        return Append(**ends, term=term, prev_index=first - 1, prev_term=3, entries=entries, commit=target)

    shared: wire.Shared = {}
    one, other = (wire.packets([(GROUP, append(target))], shared) for target in (1, 2))
    assert one[-1] is other[-1]
    different = [
        (GROUP + 1, append(2)),
        (GROUP, append(2, first=10)),
        (GROUP, append(2, count=2)),
        (GROUP, append(2, term=5)),
    ]
    for group, message in different:
        made = wire.packets([(group, message)], shared)
        assert made[-1] is not one[-1]
        assert made == wire.packets([(group, message)])


def test_heartbeats_of_a_thousand_groups_share_one_packet_and_so_do_their_replies() -> None:
    heartbeats = [(group, Heartbeat(**ENDS, term=1, commit=group)) for group in range(1000)]
    replies = [(group, HeartbeatReply(**ENDS, term=1)) for group in range(1000)]
    packets = split(b"".join(wire.packets([*heartbeats, *replies])))
    assert len(packets) == 2
    assert [pair for packet in packets for pair in wire.read_packet(packet, 3, 9)] == [*heartbeats, *replies]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_packet_cut_short_is_refused_or_means_less_but_never_crashes(message: Message) -> None:
    (packet,) = sent(message)
    for size in range(len(packet)):
        try:
            pairs = list(wire.read_packet(packet[:size], 3, 9))
        except CorruptBatch:
            continue
        # What has no fixed end may lose its end between two parts; the rest must be as it was.
        assert isinstance(message, Append | InstallSnapshot | Heartbeat | HeartbeatReply)
        if isinstance(message, Append):
            ((_, shorter),) = pairs
            assert isinstance(shorter, Append)
            entries = singly(shorter.entries)
            assert entries == singly(message.entries)[: len(entries)]


def test_an_append_with_any_byte_of_an_entry_flipped_is_refused() -> None:
    message = Append(**ENDS, term=4, prev_index=6, prev_term=3, entries=[records_entry(7, 4)], commit=5)
    (packet,) = sent(message)
    start = len(packet) - len(message.entries[0].payload)
    for position in range(start, len(packet)):
        flipped = bytearray(packet)
        flipped[position] ^= 0x10
        with pytest.raises(CorruptBatch):
            list(wire.read_packet(bytes(flipped), 3, 9))


def test_entries_that_do_not_follow_the_place_they_claim_are_refused() -> None:
    message = Append(**ENDS, term=4, prev_index=5, prev_term=3, entries=[records_entry(7, 4)], commit=5)
    (packet,) = sent(message)
    with pytest.raises(CorruptBatch, match="entry 7 is said to follow entry 5"):
        list(wire.read_packet(packet, 3, 9))


@pytest.mark.parametrize(
    ("prev_term", "terms", "term"),
    [
        (3, (5, 3), 5),  # within
        (3, (5, 5, 3, 3), 5),
        (4, (3,), 5),  # against the entry before
        (3, (5,), 4),  # against the leader's own
        (3, (4, 4, 5), 4),
        (5, (), 4),
    ],
)
def test_entries_of_terms_that_go_back_never_reach_the_core(
    prev_term: int, terms: tuple[int, ...], term: int
) -> None:
    entries = [records_entry(index, each) for index, each in enumerate(terms, 7)]
    (packet,) = sent(Append(**ENDS, term=term, prev_index=6, prev_term=prev_term, entries=entries, commit=5))
    with pytest.raises(CorruptBatch, match="terms that go back"):
        list(wire.read_packet(packet, 3, 9))


def test_a_snapshot_of_a_term_that_is_still_to_come_never_reaches_the_core() -> None:
    snapshot = Snapshot(9, 5, Configuration.of([1, 2, 3]), b"state")
    (packet,) = sent(InstallSnapshot(**ENDS, term=4, snapshot=snapshot))
    with pytest.raises(CorruptBatch, match="terms that go back: 5, 4"):
        list(wire.read_packet(packet, 3, 9))


def test_an_unsound_configuration_never_reaches_the_core() -> None:
    entry = Entry(7, 4, CONFIGURATION, b"\x05\x00\x00\x00")
    (packet,) = sent(Append(**ENDS, term=4, prev_index=6, prev_term=3, entries=[entry], commit=5))
    with pytest.raises(CorruptBatch, match="configuration of 5"):
        list(wire.read_packet(packet, 3, 9))


def test_an_unknown_type_and_an_empty_packet_are_refused() -> None:
    for packet in (b"", b"\xff" * 20):
        with pytest.raises(CorruptBatch):
            list(wire.read_packet(packet, 3, 9))


def test_a_greeting_names_the_broker_and_anything_else_is_refused() -> None:
    (packet,) = split(wire.hello(12))
    assert wire.read_hello(packet) == 12
    for stranger in (b"", b"GET / HTTP/1.1", packet[:-1], b"talweg" + packet[6:]):
        with pytest.raises(CorruptBatch):
            wire.read_hello(stranger)
