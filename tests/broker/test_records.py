"""The batch API over HTTP, in all its media types."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broker.primary import QUICK, Brokers, wait_until
from records.samples import empties
from schema_check import check_schema
from talweg.broker.calls_records import INLINE_BYTES_MAX, REQUEST_RAW_BYTES_MAX, is_small
from talweg.errors import (
    BadRequest,
    BatchTooLarge,
    BodyTooLarge,
    CorruptBatch,
    DamagedLog,
    GroupNotFound,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    TopicReplaced,
    UnsupportedMedia,
)
from talweg.http import HttpResponse
from talweg.protocol.batches import ARROW, FRAMES, NDJSON, OffsetsAnswer, PositionAnswer, Produced
from talweg.protocol.transactions import STAGE_MIN
from talweg.records import MESSAGES_MAX, Batch, Codec, Kind, encode_frame, encode_values, frames

WATERMARK = "talweg-high-watermark"
RECORDS = "/v1/topics/lines/partitions/0/records"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class Asking:
    """Requests to the leader."""

    def __init__(self, brokers: Brokers, number: int) -> None:
        self.brokers = brokers
        self.endpoint = brokers.running[number].endpoint

    async def post(self, body: bytes, media_type: str = FRAMES, **headers: str) -> Produced:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.brokers.client.request(
            self.endpoint, "POST", RECORDS, body, media_type=media_type, headers=named, seconds_max=5.0
        )
        return msgspec.json.decode(response.body, type=Produced)

    async def get(self, query: str, accept: str = FRAMES) -> HttpResponse:
        return await self.brokers.client.request(
            self.endpoint, "GET", f"{RECORDS}?{query}", headers={"accept": accept}, seconds_max=10.0
        )


def batch(*values: bytes, producer_id: int = -1, sequence: int = -1) -> bytes:
    return encode_values(
        values, timestamp=1_000, codec=Codec.NONE, producer_id=producer_id, sequence=sequence
    )


async def all_values(asking: "Asking") -> list[bytes | None]:
    # What the followers have on disk is committed, though the leader's own disk may be behind: one read may
    # then give less than there is.
    found: list[bytes | None] = []
    while True:
        got = await asking.get(f"offset={len(found)}")
        found += values_in(got.body)
        if len(found) == int({name.lower(): each for name, each in got.headers.items()}[WATERMARK]):
            return found


def values_in(body: bytes) -> list[bytes | None]:
    return [
        value for _, frame in frames(body, bytes_max=1 << 20) for value in Batch.from_frame(frame).values()
    ]


def test_frames_go_in_and_come_out_as_frames_arrow_and_json(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            asking = Asking(brokers, await brokers.topic())
            produced = await asking.post(batch(b"a", b"b") + batch(b"c"))
            assert (produced.offset, produced.count) == (0, 3)
            assert await all_values(asking) == [b"a", b"b", b"c"]
            got = await asking.get("offset=0")
            headers = {name.lower(): value for name, value in got.headers.items()}
            assert headers["talweg-high-watermark"] == "3"
            assert headers["talweg-start-offset"] == "0"
            raft = brokers.running[await brokers.leader()].hosting.partitions[10].group.replica.raft
            await wait_until(lambda: raft.stable_index == raft.log.last_index)  # its own disk too has it all
            table = pa.ipc.open_stream((await asking.get("offset=1", ARROW)).body).read_all()
            assert table["value"].to_pylist() == [b"b", b"c"]
            assert table["offset"].to_pylist() == [1, 2]
            lines = (await asking.get("offset=2", NDJSON)).body.splitlines()
            assert [msgspec.json.decode(line)["value"] for line in lines] == ["c"]

    run(test())


def test_arrow_and_json_go_in(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            asking = Asking(brokers, await brokers.topic())
            sink = pa.BufferOutputStream()
            table = pa.table({"value": pa.array([b"x", b"y"], pa.binary())})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            assert (await asking.post(sink.getvalue().to_pybytes(), ARROW)).offset == 0
            assert (await asking.post(b'{"value":"z"}\n', NDJSON)).offset == 2
            assert await all_values(asking) == [b"x", b"y", b"z"]

    run(test())


def test_a_retry_writes_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            asking = Asking(brokers, await brokers.topic())
            headers = {"Talweg_Producer_Id": "7", "Talweg_Producer_Epoch": "0", "Talweg_Sequence": "0"}
            first = await asking.post(b'{"value":"a"}\n', NDJSON, **headers)
            assert await asking.post(b'{"value":"a"}\n', NDJSON, **headers) == first
            with pytest.raises(OutOfSequence):
                await asking.post(b'{"value":"c"}\n', NDJSON, **headers | {"Talweg_Sequence": "2"})
            assert await all_values(asking) == [b"a"]

    run(test())


def test_a_read_at_the_end_waits_for_the_first_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            asking = Asking(brokers, await brokers.topic())
            assert (await asking.get("offset=0")).body == b""
            reading = asyncio.create_task(asking.get("offset=0&wait_ms=8000"))
            group = brokers.running[await brokers.leader()].hosting.partitions[10].group
            await wait_until(lambda: bool(group._readers))
            await asking.post(batch(b"a"))
            assert values_in((await reading).body) == [b"a"]

    run(test())


@pytest.mark.parametrize(
    ("body", "media_type", "error"),
    [
        (b"", FRAMES, CorruptBatch),
        (b"nonsense", FRAMES, CorruptBatch),
        (batch(b"a")[:-1], FRAMES, CorruptBatch),
        (encode_frame(Kind.POSITIONS, b"\x90"), FRAMES, CorruptBatch),
        (encode_frame(Kind.RECORDS, b"no columns at all", count=3), FRAMES, CorruptBatch),
        (b"nonsense", ARROW, CorruptBatch),
        (b"{", NDJSON, CorruptBatch),
        (b"{}", "application/json", UnsupportedMedia),
        (bytes(2 << 20), FRAMES, BodyTooLarge),
    ],
)
def test_what_is_no_batch_is_refused_and_leaves_nothing(
    tmp_path: Path, body: bytes, media_type: str, error: type[Exception]
) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, body_bytes_max=1 << 20)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Asking(brokers, await brokers.topic())
            with pytest.raises(error):
                await asking.post(body, media_type)
            assert (await asking.get("offset=0")).body == b""

    run(test())


def test_a_batch_of_too_many_messages_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            sink = pa.BufferOutputStream()
            table = pa.table({"value": pa.nulls(MESSAGES_MAX + 1, pa.binary())})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            bodies = [(empties(MESSAGES_MAX + 1), FRAMES), (sink.getvalue().to_pybytes(), ARROW)]
            for body, media_type in bodies:
                with pytest.raises(BatchTooLarge, match=r"at most 1048576 .* in several batches"):
                    await asking.post(body, media_type)
            assert (await asking.post(empties(MESSAGES_MAX))).count == MESSAGES_MAX

    run(test())


def test_a_request_that_would_take_minutes_to_decompress_is_refused_before_that(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            bomb = empties(MESSAGES_MAX)
            body = bomb * (REQUEST_RAW_BYTES_MAX // (4 * MESSAGES_MAX) + 1)
            assert len(body) < 1 << 20
            with pytest.raises(BatchTooLarge, match="in several requests"):
                await asking.post(body)
            assert (await asking.get("offset=0")).body == b""

    run(test())


def test_what_is_small_only_until_it_is_decompressed_gets_a_thread() -> None:
    assert is_small(FRAMES, batch(b"a") * 100)
    assert is_small(NDJSON, b'{"value":"a"}')
    bomb = empties(MESSAGES_MAX)
    for media_type, body in (
        (FRAMES, bytes(INLINE_BYTES_MAX + 1)),
        (FRAMES, bomb),
        (FRAMES, batch(b"a") + bomb),
        (NDJSON, b" " * (INLINE_BYTES_MAX + 1)),
        (ARROW, b""),
    ):
        assert not is_small(media_type, body)
    with pytest.raises(CorruptBatch):
        is_small(FRAMES, b"nonsense")


def test_few_stored_bytes_that_become_many_are_answered_in_parts(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, fetch_bytes_max=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Asking(brokers, await brokers.topic())
            values = [b"%d " % number + bytes(10_000) for number in range(30)]
            body = b"".join(encode_values(values[i : i + 10], timestamp=1) for i in (0, 10, 20))
            assert len(body) < 20_000
            await asking.post(body)
            for accept in (ARROW, NDJSON):
                found: list[bytes] = []
                while len(found) < 30:
                    part = (await asking.get(f"offset={len(found)}", accept)).body
                    if accept == ARROW:
                        got = pa.ipc.open_stream(part).read_all()["value"].to_pylist()
                    else:
                        got = [msgspec.json.decode(line)["value"].encode() for line in part.splitlines()]
                    assert len(got) == 1 or (got and len(part) <= 64 << 10)
                    found += got
                assert found == values

    run(test())


def test_who_does_not_lead_names_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path) as brokers:
            leader = await brokers.topic()
            asking = Asking(brokers, (leader + 1) % 3)
            with pytest.raises(NotLeader) as refused:
                await asking.post(batch(b"a"))
            assert refused.value.leader == leader
            assert refused.value.endpoint == brokers.running[leader].endpoint

    run(test())


def test_a_leader_of_the_past_names_no_offsets(tmp_path: Path) -> None:
    async def another_was_elected() -> None:
        raise NotLeader("it leads no more, as it heard when it asked the others")

    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            await asking.post(batch(b"a"))
            group = brokers.running[0].hosting.partitions[10].group
            group.confirm_leadership = another_was_elected  # type: ignore[method-assign]
            for at in ("earliest", "latest", "1000"):
                path = f"/v1/topics/lines/offsets?at={at}"
                answer = await brokers.client.call(
                    asking.endpoint, "GET", path, OffsetsAnswer, seconds_max=5.0
                )
                assert (answer.offsets, answer.elsewhere) == ({}, [0]), at

    run(test())


def test_offsets_and_positions(tmp_path: Path) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, 1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            await asking.post(
                encode_values([b"a", b"b"], timestamps=[1_000, 1_400], timestamp=0)
                + encode_values([b"c"], timestamp=2_000)
            )

            async def offsets(at: str) -> dict[int, int]:
                answer = await brokers.client.call(
                    asking.endpoint,
                    "GET",
                    f"/v1/topics/lines/offsets?at={at}",
                    OffsetsAnswer,
                    seconds_max=5.0,
                )
                assert answer.incarnations == {0: 10}
                return answer.offsets

            assert await offsets("earliest") == {0: 0}
            assert await offsets("latest") == {0: 3}
            # The first message that is not older, wherever in its batch it is.
            for moment, expected in (("999", 0), ("1000", 0), ("1001", 1), ("1500", 2), ("2001", 3)):
                assert await offsets(moment) == {0: expected}
            path = "/v1/topics/lines/partitions/0/positions"

            async def commit(body: bytes) -> None:
                await brokers.client.request(
                    asking.endpoint, "POST", path, body, media_type="application/json", seconds_max=5.0
                )

            async def position(query: str) -> int | None:
                answer = await brokers.client.call(
                    asking.endpoint, "GET", f"{path}?{query}", PositionAnswer, seconds_max=5.0
                )
                return answer.position

            assert await position("consumer=spark") is None
            await commit(b'{"consumer":"spark","offset":2}')
            await commit(b'{"consumer":"spark","offset":1}')
            assert await position("consumer=spark") == 2
            await commit(b'{"consumer":"spark","offset":1,"seek":true}')
            assert await position("consumer=spark") == 1
            with pytest.raises(OffsetOutOfRange):
                await commit(b'{"consumer":"spark","offset":4}')
            with pytest.raises(BadRequest):
                await commit(b'{"consumer":"#1","offset":1}')
            with pytest.raises(BadRequest):
                await commit(b'{"offset":1}')
            # Offsets of another topic that had the name before, or is about to have it.
            await commit(b'{"consumer":"spark","offset":3,"incarnation":10}')
            assert await position("consumer=spark&incarnation=10") == 3
            with pytest.raises(TopicReplaced):
                await commit(b'{"consumer":"spark","offset":1,"seek":true,"incarnation":9}')
            with pytest.raises(TopicReplaced):
                await position("consumer=spark&incarnation=9")
            with pytest.raises(TopicReplaced):
                await brokers.client.request(
                    asking.endpoint, "DELETE", f"{path}?consumer=spark&incarnation=9", seconds_max=5.0
                )
            with pytest.raises(GroupNotFound):
                await commit(b'{"consumer":"spark","offset":1,"seek":true,"incarnation":11}')
            assert await position("consumer=spark") == 3
            with pytest.raises(GroupNotFound):
                await brokers.client.request(
                    asking.endpoint, "GET", "/v1/topics/other/offsets", seconds_max=5.0
                )

    run(test())


def test_the_schema_is_true(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, wait_seconds_max=0.1)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Asking(brokers, await brokers.topic())
            await brokers.topic("__transactions", group=20)
            known: dict[str, str | int] = {"topic": "lines", "partition": 0, "group": 10, "stage": STAGE_MIN}
            await asyncio.to_thread(check_schema, asking.endpoint, examples=15, parameters=known)

    run(test())


def test_retention_waits_for_a_consumer_that_asked_for_it_up_to_a_size(tmp_path: Path) -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, snapshot_bytes=64 << 10)
        async with Brokers(tmp_path, 1, settings) as brokers:
            asking = Asking(brokers, await brokers.topic(retention_bytes=0))
            replica = brokers.running[0].hosting.partitions[10].group.replica

            async def commit(body: bytes) -> None:
                path = "/v1/topics/lines/partitions/0/positions"
                await brokers.client.request(
                    asking.endpoint, "POST", path, body, media_type="application/json", seconds_max=5.0
                )

            await commit(b'{"consumer":"spark","offset":0,"keep_bytes":1000000}')
            for _ in range(4):
                await asking.post(batch(b"x" * 90_000))
                await asyncio.sleep(0.2)  # looks of retention
            assert replica.start_offset == 0
            await commit(b'{"consumer":"spark","offset":2}')
            await asking.post(batch(b"x" * 90_000))
            await wait_until(lambda: replica.start_offset == 2)
            for _ in range(15):  # more than it asked for
                await asking.post(batch(b"x" * 90_000))
            await wait_until(lambda: replica.start_offset > 2)
            await commit(b'{"consumer":"spark","offset":20,"keep_bytes":0}')
            await asking.post(batch(b"x" * 90_000))
            await wait_until(lambda: replica.start_offset > 18)

    run(test())


def rot(directory: Path, value: bytes) -> None:
    """Change one bit in the header of the frame that holds it."""
    files = [each for each in directory.rglob("*") if each.is_file()]
    (segment,) = [each for each in files if value in each.read_bytes()]
    content = bytearray(segment.read_bytes())
    content[content.index(value) - 80] ^= 1
    segment.write_bytes(content)


def test_a_log_that_rotted_says_so_in_words_that_the_call_declares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with Brokers(tmp_path, count=1) as brokers:
            asking = Asking(brokers, await brokers.topic())
            await asking.post(batch(b"a" * 1000))
            await asking.post(batch(b"b" * 1000))
            assert len(await all_values(asking)) == 2
            rot(tmp_path, b"a" * 1000)
            with pytest.raises(DamagedLog):
                await asking.get("offset=0")

    run(test())
    assert "does not declare" not in caplog.text
