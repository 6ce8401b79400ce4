"""What is kept of batches that single messages were taken from, and that it is bounded."""

from talweg.broker.decoded import PLACES_MAX, DecodedBatches
from talweg.records import Batch, Codec, encode_values, stamp

BYTES_MAX = 1 << 20


def batch(first_offset: int, messages: int = 1, message_bytes: int = 100) -> Batch:
    frame = encode_values([b"x" * message_bytes] * messages, timestamp=1, codec=Codec.NONE)
    stamped = stamp(frame, index=1, term=1, first_offset=first_offset)
    return Batch.from_frame(stamped)


def test_what_was_read_is_found_by_group_and_offset() -> None:
    decoded = DecodedBatches()
    first, second = batch(10, 5), batch(15, 2)
    decoded.keep(1, 12, [first, second])
    assert decoded.find(1, 12) is first
    assert decoded.find(1, 14) is first
    assert decoded.find(1, 16) is second
    assert decoded.find(1, 17) is None
    assert decoded.find(2, 12) is None


def test_however_large_and_many_messages_are_only_so_many_bytes_are_kept() -> None:
    decoded = DecodedBatches(BYTES_MAX)
    for group in range(3):
        for offset in range(40):
            decoded.keep(group, offset, [batch(offset, message_bytes=100_000)])
            assert decoded.bytes_ <= BYTES_MAX
            assert decoded.find(group, offset) is not None
    kept = [(g, o) for g in range(3) for o in range(40) if decoded.find(g, o) is not None]
    assert 5 <= len(kept) <= 10
    assert kept == [(2, offset) for offset in range(40 - len(kept), 40)]


def test_small_messages_count_with_what_they_take_beside_their_bytes() -> None:
    decoded = DecodedBatches(BYTES_MAX)
    decoded.keep(0, 0, [batch(offset, message_bytes=1) for offset in range(5000)])
    assert decoded.bytes_ <= BYTES_MAX
    assert sum(decoded.find(0, offset) is not None for offset in range(5000)) <= BYTES_MAX >> 10


def test_one_batch_that_is_larger_than_all_that_may_be_kept_is_kept_alone() -> None:
    decoded = DecodedBatches(BYTES_MAX)
    decoded.keep(0, 0, [batch(0), batch(1, message_bytes=2 * BYTES_MAX)])
    assert decoded.find(0, 0) is None
    assert decoded.find(0, 1) is not None
    decoded.keep(0, 2, [batch(2)])
    assert decoded.find(0, 1) is None
    assert decoded.bytes_ < BYTES_MAX


def test_of_a_batch_of_many_messages_the_next_ones_are_found() -> None:
    decoded = DecodedBatches()
    large = batch(0, 3 * PLACES_MAX, message_bytes=1)
    decoded.keep(0, 500, [large])
    assert decoded.find(0, 499) is None
    assert decoded.find(0, 500 + PLACES_MAX - 1) is large
    assert decoded.find(0, 500 + PLACES_MAX) is None
