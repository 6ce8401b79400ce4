"""The parts of a consumer by themselves: what is read ahead, what is in hand, leaders that are odd."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from client.consuming import numbered
from talweg.client.consumer_settings import ConsumerSettings
from talweg.client.fetching import Fetching
from talweg.client.hand import Hand
from talweg.client.message import Message, Place
from talweg.client.offsets import End, commit_position_or_first
from talweg.client.prefetched import Prefetched
from talweg.client.received import ReceivedBatch, received
from talweg.errors import CorruptBatch, OffsetOutOfRange, Unavailable
from talweg.http import HttpResponse
from talweg.protocol.batches import Commit, OffsetsAnswer
from talweg.protocol.control import TopicMetadata
from talweg.records import Codec, encode_values, stamp

PLACE = ("t", 0)
GROUP = 40  # its incarnation


def frames(*counts: int, first_offset: int = 0) -> bytes:
    """Frames of so many messages each, one behind the other."""
    made = b""
    for index, count in enumerate(counts):
        frame = encode_values(numbered(count, first_offset), timestamp=1)
        made += stamp(frame, index=index + 1, term=1, first_offset=first_offset)
        first_offset += count
    return made


def batches(*counts: int, place: Place = PLACE, first_offset: int = 0) -> list[ReceivedBatch]:
    return received(frames(*counts, first_offset=first_offset), place, first_offset, GROUP)


# What a leader answers


def test_small_frames_are_put_together_and_large_ones_stand_alone() -> None:
    made = batches(1, 2, 1000, 3, 2000, 4000)
    assert [(batch.first_offset, batch.next_offset) for batch in made] == [
        (0, 3),
        (3, 1003),
        (1003, 1006),
        (1006, 3006),
        (3006, 7006),
    ]
    assert [value for batch in made for value in batch.values()] == numbered(7006)


def test_of_few_bytes_that_become_many_the_first_are_received_and_the_rest_is_left_to_be_read() -> None:
    values = [[b"%d " % number + bytes(30 << 20)] for number in range(6)]
    body = b"".join(
        stamp(encode_values(each, timestamp=1, codec=Codec.ZSTD), index=at + 1, term=1, first_offset=at)
        for at, each in enumerate(values)
    )
    assert len(body) < 64 << 10
    first = received(body, PLACE, 0)
    assert [(batch.first_offset, batch.next_offset) for batch in first] == [(n, n + 1) for n in range(4)]
    assert [batch.values() for batch in first] == values[:4]


def test_many_small_frames_are_several_batches() -> None:
    made = batches(*[999] * 25)
    assert [len(batch) for batch in made] == [999 * 11, 999 * 11, 999 * 3]


def test_a_frame_that_begins_before_the_offset_is_cut() -> None:
    (batch,) = received(frames(5, 5), PLACE, 3)
    assert (batch.first_offset, batch.next_offset) == (3, 10)
    assert batch.values() == numbered(7, 3)
    assert [message.offset for message in batch.messages()] == list(range(3, 10))
    assert batch.to_arrow(["offset", "value"]).to_pylist() == [
        {"offset": offset, "value": b"message %d" % offset} for offset in range(3, 10)
    ]


@pytest.mark.parametrize(
    "body",
    [frames(5, first_offset=4), frames(3), frames(5) + frames(5, first_offset=6), frames(5)[:-1], b"x" * 200],
    ids=["later", "earlier", "gap", "cut off", "noise"],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        received(body, PLACE, 3)


def test_a_timestamp_that_no_datetime_can_be_is_told() -> None:
    message = Message("t", 0, 0, 1_700_000_000_000_000_000, None, b"nanoseconds")
    with pytest.raises(ValueError, match="another unit"):
        _ = message.time
    assert msgspec.structs.replace(message, timestamp=-1).time.year == 1969


# What is read ahead


class Ahead:
    """Prefetched, and who was told that there is room."""

    def __init__(self, share_bytes: int = 1 << 20) -> None:
        self.told: list[Place] = []
        self.prefetched = Prefetched(share_bytes, self.told.append)


def test_a_full_shelf_takes_no_more_until_it_is_emptied() -> None:
    made = batches(1000, 1000)
    ahead = Ahead(share_bytes=made[1].raw_bytes + 1)
    ahead.prefetched.open(PLACE, 0, GROUP)
    assert ahead.prefetched.has_room(PLACE)
    ahead.prefetched.put(PLACE, made)
    assert not ahead.prefetched.has_room(PLACE)
    assert ahead.told == []
    assert ahead.prefetched.take() == made[0]
    assert ahead.told == [PLACE]
    assert ahead.prefetched.take() == made[1]
    assert ahead.told == [PLACE]
    assert ahead.prefetched.take() is None


def test_an_error_comes_after_what_was_read_before_it_and_is_tried_again() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(1))
    ahead.prefetched.fail(PLACE, Unavailable("gone"))
    assert ahead.prefetched.take() is not None
    with pytest.raises(Unavailable):
        ahead.prefetched.take()
    assert ahead.told == [PLACE]
    assert ahead.prefetched.take() is None


def test_one_outage_is_told_once_and_what_does_not_pass_by_itself_is_told_for_each() -> None:
    ahead = Ahead()
    places = [("t", number) for number in range(5)]
    for place in places:
        ahead.prefetched.open(place, 0, GROUP)
    for place in places[:3]:
        ahead.prefetched.fail(place, Unavailable(f"{place} is gone"))
    for place in places[3:]:
        ahead.prefetched.fail(place, CorruptBatch(f"{place} is damaged"))
    with pytest.raises(Unavailable):
        ahead.prefetched.take()
    assert ahead.told == places[:3], "all of them are tried again"
    for place in places[3:]:
        with pytest.raises(CorruptBatch, match=str(place[1])):
            ahead.prefetched.take()
    assert ahead.prefetched.take() is None


def test_what_is_read_elsewhere_is_forgotten() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(1000, 1000))
    ahead.prefetched.open(PLACE, 7, GROUP)
    assert ahead.prefetched.take() is None
    assert ahead.prefetched.positions() == {PLACE: 7}


def test_a_jump_counts_when_what_lies_before_it_is_handed_out() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(3))
    ahead.prefetched.jump(PLACE, 10)
    assert ahead.prefetched.positions() == {PLACE: 0}
    assert ahead.prefetched.take() is not None
    assert ahead.prefetched.positions() == {PLACE: 10}


def test_a_batch_is_cut_at_the_end_that_was_named() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(1, 1, 1))
    taken = ahead.prefetched.take({PLACE: End(2, GROUP)})
    assert taken is not None
    assert taken.values() == numbered(2)
    assert ahead.prefetched.take({PLACE: End(2, GROUP)}) is None
    rest = ahead.prefetched.take()
    assert rest is not None
    assert rest.values() == numbered(1, 2)


# What is in hand


def hand_of(*counts: int) -> Hand:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    hand = Hand(ahead.prefetched, None)
    hand.move(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(*counts))
    return hand


def test_a_message_is_finished_when_the_next_is_asked_for() -> None:
    hand = hand_of(3)
    messages = hand.take_messages()
    assert messages is not None
    for expected in ((0, 1), (1, 2), (2, 3)):
        next(messages)
        assert (hand.finished()[PLACE], hand.finished(all_handed_out=True)[PLACE]) == expected
    assert next(messages, None) is None
    assert hand.take_messages() is None
    assert hand.finished() == {PLACE: 3}


def test_a_batch_is_finished_when_the_next_is_asked_for() -> None:
    hand = hand_of(1000, 1000)
    for begun in (0, 1000):
        assert hand.take_batch() is not None
        assert hand.finished() == {PLACE: begun}
        assert hand.finished(all_handed_out=True) == {PLACE: begun + 1000}
    assert hand.take_batch() is None
    assert hand.finished() == {PLACE: 2000}


def test_what_is_put_back_is_the_next_and_a_gap_behind_it_stays_one() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    hand = Hand(ahead.prefetched, None)
    hand.move(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(5))
    ahead.prefetched.jump(PLACE, 100)
    messages = hand.take_messages()
    assert messages is not None
    assert [next(messages).offset for _ in range(2)] == [0, 1]
    hand.put_back(PLACE)
    assert list(messages) == []
    assert ahead.prefetched.positions() == {PLACE: 2}
    assert hand.finished(all_handed_out=True) == {PLACE: 2}
    rest = hand.take_batch()
    assert rest is not None
    assert (rest.first_offset, rest.next_offset) == (2, 5)
    assert ahead.prefetched.positions() == {PLACE: 100}


def test_what_lies_behind_a_gap_does_not_lead_back_to_it() -> None:
    ahead = Ahead()
    ahead.prefetched.open(PLACE, 0, GROUP)
    hand = Hand(ahead.prefetched, None)
    hand.move(PLACE, 0, GROUP)
    ahead.prefetched.put(PLACE, batches(5))
    ahead.prefetched.jump(PLACE, 100)
    messages = hand.take_messages()
    assert messages is not None
    next(messages)
    ahead.prefetched.put(PLACE, batches(7, first_offset=100))
    hand.put_back(PLACE)
    assert [len(batch) for batch in (hand.take_batch(), hand.take_batch()) if batch is not None] == [4, 7]
    assert ahead.prefetched.positions() == {PLACE: 107}


def test_a_hand_that_is_closed_hands_out_nothing_and_counts_what_it_did() -> None:
    for taken in (0, 1, 3):
        hand = hand_of(3, 1000)
        messages = hand.take_messages()
        assert messages is not None
        for _ in range(taken):
            next(messages)
        hand.close()
        assert list(messages) == []
        assert hand.take_messages() is None
        assert hand.take_batch() is None
        assert hand.finished(all_handed_out=True) == {PLACE: taken}


def test_what_was_read_of_a_topic_that_was_made_again_counts_no_more() -> None:
    hand = hand_of(3, 1000)
    assert hand.take_batch() is not None
    hand.move(PLACE, 0, GROUP + 1)
    assert hand.take_batch() is None, "what was read ahead is of the old one"
    assert hand.finished(all_handed_out=True) == {PLACE: 0}


# Leaders that are not what they seem


class OddCluster:
    """Answers as a test says, one answer after another; then it is silent."""

    def __init__(self, answers: Sequence[Callable[[], HttpResponse]], offsets: dict[str, int]) -> None:
        self.answers = list(answers)
        self.offsets = offsets
        self.asked: list[str] = []
        self.looks = 0

    def leader(self, topic: str, partition: int) -> str:
        return "http://leader:1"

    async def topic(self, name: str, *, seconds_max: float) -> TopicMetadata:
        return TopicMetadata(topic=name, incarnation=GROUP, partitions=())

    fresh_topic = topic

    async def look_for_leader(self, topic: str, partition: int) -> None:
        self.looks += 1

    async def ask_server(self, endpoint: str, target: str, answer: type, **_: Any) -> OffsetsAnswer:
        return OffsetsAnswer(offsets={0: self.offsets[target.rpartition("=")[2]]}, elsewhere=[])

    async def ask_leader(self, topic: str, partition: int, method: str, path: str, **_: Any) -> HttpResponse:
        self.asked.append(path.partition("&")[0].rpartition("=")[2])
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)()


def settings(**given: Any) -> ConsumerSettings:
    usual: dict[str, Any] = {
        "topics": ("t",),
        "partitions": {},
        "group": None,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "auto_commit_interval_ms": 1000,
        "max_poll_records": None,
        "fetch_bytes": 1 << 20,
        "fetch_wait_ms": 100,
        "prefetch_bytes": 1 << 20,
        "request_timeout_ms": 1000,
        "api_timeout_ms": 1000,
    }
    return ConsumerSettings(**usual | given)


def refuse() -> HttpResponse:
    raise OffsetOutOfRange("it holds 0 to 2")


def answer(*counts: int, first_offset: int = 0) -> Callable[[], HttpResponse]:
    body = frames(*counts, first_offset=first_offset)
    return lambda: HttpResponse(200, {"talweg-group": "40"}, body)


async def first_batch(
    cluster: OddCluster, offset: int, complaints: list[Exception] | None = None
) -> ReceivedBatch:
    fetching = Fetching(cluster, settings(), decode_in_thread=False, made_again=pytest.fail)  # type: ignore[arg-type]
    news = asyncio.Event()
    fetching.prefetched.notify = news.set
    fetching.open(PLACE, GROUP, offset)
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    batch = fetching.prefetched.take()
                except CorruptBatch as error:
                    assert complaints is not None
                    complaints.append(error)
                    continue
                if batch is not None:
                    return batch
                await news.wait()
                news.clear()
    finally:
        await fetching.close()


def test_a_leader_of_the_past_that_knows_too_little_moves_nobody() -> None:
    cluster = OddCluster([refuse, answer(3, first_offset=5)], {"earliest": 0, "latest": 8})
    batch = asyncio.run(first_batch(cluster, 5))
    assert batch.first_offset == 5
    assert cluster.asked[:2] == ["5", "5"]
    assert cluster.looks == 1


def test_an_offset_that_is_gone_is_put_right() -> None:
    cluster = OddCluster([refuse, answer(3, first_offset=7)], {"earliest": 7, "latest": 10})
    batch = asyncio.run(first_batch(cluster, 5))
    assert batch.first_offset == 7
    assert cluster.asked[:2] == ["5", "7"]


def test_an_answer_that_is_damaged_is_said_and_asked_for_again() -> None:
    cluster = OddCluster([lambda: HttpResponse(200, {}, b"x" * 200), answer(3)], {})

    complaints: list[Exception] = []
    batch = asyncio.run(first_batch(cluster, 0, complaints))
    assert batch.values() == numbered(3)
    assert len(complaints) == 1


class Retaining:
    """A leader whose retention drops more whenever somebody has asked where the log begins."""

    def __init__(self, *starts: int) -> None:
        self.starts = list(starts)
        self.committed: list[int] = []

    async def topic(self, *_: object, **__: object) -> None: ...

    def leader(self, *_: object) -> str:
        return "http://somewhere"

    async def ask_server(self, *_: object, **__: object) -> OffsetsAnswer:
        start = self.starts[0]
        del self.starts[: len(self.starts) > 1]
        return OffsetsAnswer(offsets={0: start}, elsewhere=[])

    async def ask_leader(self, *asked: Any, **__: object) -> None:
        offset = msgspec.json.decode(asked[-1], type=Commit).offset
        assert offset is not None
        if not self.starts[0] <= offset < 20:
            raise OffsetOutOfRange("it holds other ones")
        self.committed.append(offset)


def test_a_position_that_retention_overtakes_again_and_again_is_the_first_that_is_kept() -> None:
    def commit(cluster: Any, offset: int) -> None:
        asyncio.run(commit_position_or_first(cluster, "g", "t", 0, offset, seek=False, seconds_max=5.0))

    for starts, committed in (((0,), 2), ((7,), 7), ((7, 11, 13), 13)):
        cluster = Retaining(*starts)
        commit(cluster, 2)
        assert cluster.committed == [committed]
    with pytest.raises(OffsetOutOfRange):
        commit(Retaining(7), 30)
