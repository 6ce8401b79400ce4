"""`talweg import` and `talweg export` on a real cluster: every format, there and back, and what is wrong."""

import json
import os
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.shell import Shell
from talweg.cli.complaints import Failed
from talweg.cli.files import Source
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cli-commands")

MANY = 100_000


def test_many_lines_go_in_and_come_out_in_every_format(talweg: Shell, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "in.log"
    source.write_text("".join(f"{number} a line of some log\n" for number in range(MANY)))
    told = talweg("import", source, topic, "-p", 1, "--json").json
    assert (told["messages"], told["bytes"], told["sent"]) == (MANY, source.stat().st_size, True)
    for name in ("out.txt", "out.jsonl", "out.parquet"):
        out = tmp_path / name
        assert talweg("export", topic, out, "--json").json["messages"] == MANY
        again = f"{topic}-{out.suffix[1:]}"
        talweg("topic", "create", again, "--partitions", 1)
        assert f"{MANY} messages" in talweg("import", out, again).out
        back = tmp_path / f"back{out.suffix}.txt"
        talweg("export", again, back)
        assert back.read_bytes() == source.read_bytes()
        assert not list(tmp_path.glob(".*"))


ODD = [
    {"value": "plain"},
    {"value": None},
    {"value_base64": "/wA="},
    {"key": "k", "value": "two\nlines", "headers": [["a", "1"], ["a", None]]},
    {"timestamp": "2026-01-31T12:00:00Z", "key_base64": "/w==", "value": ""},
    {"timestamp": 5, "value": "early", "headers_base64": [["h", "/w=="]]},
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_everything_a_message_has_goes_in_and_comes_out(
    talweg: Shell, topic: str, tmp_path: Path, suffix: str
) -> None:
    source, between, out = (tmp_path / name for name in ("in.ndjson", f"between.{suffix}", "out.json"))
    source.write_text("\n".join(map(json.dumps, ODD)) + "\n\n")
    talweg("import", source, topic, "-p", 0)
    talweg("export", topic, between)
    talweg("import", between, topic, "-p", 1)
    talweg("export", topic, out, "-p", 1)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each.pop("offset") for each in found] == list(range(len(ODD)))
    assert {(each.pop("topic"), each.pop("partition")) for each in found} == {(topic, 1)}
    times = [each.pop("timestamp") for each in found]
    assert times[4:] == [1769860800000000, 5]
    assert found == [{name: field for name, field in each.items() if name != "timestamp"} for each in ODD]


def test_keys_decide_where_messages_go(talweg: Shell, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"key": f"k{n % 7}", "value": str(n)}) + "\n" for n in range(200)))
    talweg("import", source, topic)
    found = talweg("topic", "consume", topic, "--json").objects
    assert len(found) == 200
    places: dict[str, set[int]] = {}
    for each in found:
        places.setdefault(each["key"], set()).add(each["partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(set().union(*places.values())) > 1


def test_standard_input_and_output_will_do(talweg: Shell, topic: str) -> None:
    talweg("import", "-", topic, "-p", 0, stdin=b"a\nb\n\xff\n")
    talweg("import", "-", topic, "-p", 0, "--format", "json", stdin=b'{"value":"c"}')
    assert talweg("export", topic, "-", "--format", "json", "3").objects[0]["value"] == "c"
    assert talweg("export", topic, "-", ":2").out == "a\nb\n"


def test_a_pipe_with_a_name_is_read_once_and_sent(talweg: Shell, topic: str) -> None:
    """As of a shell's <(command): what was read to be checked would be gone."""
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    assert talweg("import", f"/dev/fd/{reading}", topic, "--json").json["messages"] == 2
    assert talweg("topic", "consume", topic).lines == ["one", "two"]
    assert "sought" in talweg.refuses("import", f"/dev/fd/{reading}", topic, "--format", "parquet", code=2)
    os.close(reading)


def test_lines_of_any_length_come_through_a_pipe_whole(tmp_path: Path) -> None:
    lines = [b"x" * 70_000, b"", b"\r", b"y" * 3, b"z" * 65_536]
    reading, writing = os.pipe()
    writer = Thread(target=lambda: [os.write(writing, b"\n".join(lines)), os.close(writing)])
    writer.start()
    pieces = list(Source(f"/dev/fd/{reading}", "lines", 1 << 20).pieces())
    writer.join()
    os.close(reading)
    assert b"".join(b"".join(piece.table.column("value").to_pylist()) for piece in pieces) == b"".join(
        [*lines[:2], *lines[3:]]
    )
    assert sum(map(len, pieces)) == 5
    assert sum(piece.raw_bytes for piece in pieces) == len(b"\n".join(lines))


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_that_is_too_long_for_a_pipe_is_told_when_that_is_known(ended: bool) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"short\n" + b"x" * 2_000 + (b"\n" if ended else b""))
    pieces = Source(f"/dev/fd/{reading}", "lines", 1_000).pieces()
    found = [next(pieces)]
    with pytest.raises(Failed, match="line 2: longer than 1000 bytes"):
        found.extend(pieces)
    assert sum(map(len, found)) == 1
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_range_of_a_topic_is_exported(talweg: Shell, topic: str, tmp_path: Path) -> None:
    talweg("topic", "produce", topic, "-p", 2, *map(str, range(9)))
    talweg("export", topic, tmp_path / "a.txt", "-3", "-p", 2)
    talweg("export", topic, tmp_path / "b.txt", "2:4")
    assert (tmp_path / "a.txt").read_text() == "6\n7\n8\n"
    assert (tmp_path / "b.txt").read_text() == "2\n3\n"


GOOD = '{"value":"x"}\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", GOOD * 3 + "not json\n" + GOOD, "line 4: JSON is malformed"),
        ("a.jsonl", GOOD + '{"value": 1}\n', "line 2: Expected `str | null`"),
        ("a.jsonl", GOOD + '{"valeu": "x"}\n', "line 2: Object contains unknown field `valeu`"),
        ("a.jsonl", '{"key": "x"}\n', "line 1: neither value nor value_base64"),
        ("a.jsonl", '{"value": "x", "value_base64": ""}\n', "line 1: both value and value_base64"),
        ("a.jsonl", '{"value_base64": "?"}\n', "line 1: Invalid base64"),
        ("a.jsonl", GOOD * 10_001 + '{"value": "x", "timestamp": "noon"}\n', "line 10002: Invalid RFC3339"),
        ("a.jsonl", '[{"value": "x"}]\n', "line 1: Expected `object`, got `array`"),
        ("a.log", "x\n" + "y" * (8_388_609) + "\n", "line 2: longer than 8388608 bytes"),
        ("a.parquet", "PAR1", "not a Parquet file"),
    ],
)
def test_a_wrong_file_is_told_by_its_line_and_nothing_is_sent(
    talweg: Shell, topic: str, tmp_path: Path, *, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    told = talweg.refuses("import", tmp_path / name, topic, code=1)
    assert said in told
    assert "nothing was sent" in told
    assert talweg("topic", "consume", topic).lines == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"text": ["a"]}, "no column `value`, which is what messages are made of (there: text)"),
        ({"value": [1]}, "column value is of type int64, expected text or binary"),
        ({"value": ["a"], "timestamp": ["now"]}, "column timestamp is of type string"),
        ({"value": ["a"], "headers": ["h"]}, "column headers is of type string"),
    ],
)
def test_parquet_of_another_shape_is_told_by_its_column(
    talweg: Shell, topic: str, tmp_path: Path, columns: dict[str, list[object]], said: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert said in talweg.refuses("import", tmp_path / "a.parquet", topic, code=1)


def test_of_standard_input_what_came_before_the_wrong_line_is_sent(talweg: Shell, topic: str) -> None:
    told = talweg.refuses("import", "-", topic, "--format", "json", code=1, stdin=GOOD * 3 + "no\n" + GOOD)
    assert "standard input: line 4" in told
    assert "3 messages were sent" in told
    assert len(talweg("topic", "consume", topic).lines) == 3


def test_a_file_can_be_checked_without_sending_it(talweg: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD * 2)
    told = talweg("import", tmp_path / "a.jsonl", "unmade-yet", "--check", "--json").json
    assert (told["messages"], told["sent"]) == (2, False)
    assert "unmade-yet" not in talweg("topic", "list").lines


def test_files_that_cannot_be_read_or_written(talweg: Shell, topic: str, tmp_path: Path) -> None:
    talweg("topic", "produce", topic, "x")
    assert "No such file" in talweg.refuses("import", tmp_path / "absent.txt", topic, code=1)
    assert "No such file" in talweg.refuses("export", topic, tmp_path / "absent" / "a.txt", code=1)
    (tmp_path / "there.txt").write_text("mine\n")
    assert "--force" in talweg.refuses("export", topic, tmp_path / "there.txt", code=1)
    assert (tmp_path / "there.txt").read_text() == "mine\n"
    talweg("export", topic, tmp_path / "there.txt", "--force")
    assert (tmp_path / "there.txt").read_text() == "x\n"


def test_an_overwritten_file_keeps_its_mode_and_the_link_to_it(
    talweg: Shell, topic: str, tmp_path: Path
) -> None:
    talweg("topic", "produce", topic, "x")
    file, link = tmp_path / "mine.txt", tmp_path / "link.txt"
    file.write_text("mine\n")
    file.chmod(0o600)
    link.symlink_to(file)
    talweg("export", topic, link, "--force")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("x\n", 0o600)


def test_a_pipe_with_a_name_is_written_to_and_stays_one(talweg: Shell, topic: str, tmp_path: Path) -> None:
    talweg("topic", "produce", topic, "x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    talweg("export", topic, pipe, "--force")
    assert pipe.is_fifo()
    assert os.read(reading, 100) == b"x\n"
    os.close(reading)


def test_a_message_that_is_no_line_is_told_by_its_place_and_no_file_is_left(
    talweg: Shell, topic: str, tmp_path: Path
) -> None:
    talweg("topic", "produce", topic, "-p", 1, "fine", "two\nlines")
    told = talweg.refuses("export", topic, tmp_path / "a.txt", code=1)
    assert "offset 1 of partition 1 holds a line break" in told
    assert "--format json" in told
    assert list(tmp_path.iterdir()) == []


def test_a_topic_to_import_into_is_made_only_for_those_who_say_so(talweg: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    assert "--create" in talweg.refuses("import", tmp_path / "a.txt", "unmade-2", code=3)
    talweg("import", tmp_path / "a.txt", "unmade-2", "--create")
    assert talweg("topic", "consume", "unmade-2").lines == ["x"]


def test_an_import_that_nobody_takes_says_how_much_was_sent(
    talweg: Shell, topic: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 100)
    cluster.wait_for_leader(topic, 0)
    cluster.kill(*cluster.brokers)
    told = talweg.refuses("import", tmp_path / "a.txt", topic, "--timeout", 1, code=4)
    assert "0 messages were sent" in told
