"""`talweg topic` and `talweg tail` on a real cluster."""

import base64
import time

import pytest

from cli.shell import Shell
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cli-commands")


def test_a_topic_is_created_listed_described_and_deleted(talweg: Shell) -> None:
    made = talweg("topic", "create", "made-1", "--partitions", 2, "--json").json
    assert made == {"topic": "made-1", "partitions": 2, "created": True}
    assert "made-1" in talweg("topic", "list").lines
    assert "made-1" in talweg("topic", "list", "--json").json["topics"]
    talweg("topic", "produce", "made-1", "a", "b", "-p", 1)
    described = talweg("topic", "describe", "made-1", "--json").json
    assert [part["partition"] for part in described["partitions"]] == [0, 1]
    assert [part["next_offset"] for part in described["partitions"]] == [0, 2]
    table = talweg("topic", "describe", "made-1").lines
    assert table[0].split() == ["partition", "leader", "replicas", "start", "end", "messages"]
    assert table[2].split()[-3:] == ["0", "2", "2"]
    assert talweg("topic", "delete", "made-1", "--yes", "--json").json == {"topic": "made-1", "deleted": True}
    assert "made-1" not in talweg("topic", "list").lines


def test_a_topic_with_settings_of_its_own(talweg: Shell) -> None:
    options = ("--partitions", 1, "--replication", 1, "--retention-hours", 0.5, "--retention-bytes", 100_000)
    made = talweg("topic", "create", "made-2", *options)
    assert made.out == "topic made-2 created with 1 partition\n"
    assert len(talweg("topic", "describe", "made-2", "--json").json["partitions"][0]["replicas"]) == 1


def test_a_topic_that_is_there_is_created_only_for_those_who_do_not_mind(talweg: Shell, topic: str) -> None:
    assert topic in talweg.refuses("topic", "create", topic, code=1)
    told = talweg("topic", "create", topic, "--exists-ok", "--json").json
    assert told == {"topic": topic, "partitions": 3, "created": False}


def test_deleting_wants_a_yes(talweg: Shell, topic: str) -> None:
    assert "--yes" in talweg.refuses("topic", "delete", topic, code=2)
    assert topic in talweg("topic", "list").lines


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "describe", "absent"),
        ("topic", "delete", "absent", "--yes"),
        ("topic", "produce", "absent", "x"),
        ("topic", "consume", "absent"),
        ("topic", "consume", "absent", "--group", "g"),
        ("tail", "absent"),
        ("export", "absent", "-"),
        ("consumer", "list", "--topic", "absent"),
        ("consumer", "describe", "absent"),
        ("consumer", "describe", "12345"),
        ("consumer", "seek", "absent", "absent", "start"),
        ("broker", "activate", "999"),
        ("broker", "deactivate", "999"),
        ("broker", "remove", "999", "--yes"),
    ],
)
def test_what_is_not_there_has_an_exit_code_of_its_own(talweg: Shell, arguments: tuple[str, ...]) -> None:
    assert "there is no" in talweg.refuses(*arguments, code=3) or "no broker" in talweg.refuses(
        *arguments, code=3
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "create", "no/good"), "name"),
        (("topic", "consume", "{topic}", "soon"), "'soon' is not an offset"),
        (("topic", "consume", "{topic}", "9:1"), "ends before it begins"),
        (("topic", "consume", "{topic}", "--jsno"), "no such option: --jsno"),
        (("topic", "consume", "{topic}", "-z"), "no such option: -z"),
        (("topic", "consume", "{topic}", "5", "--group", "g"), "--group"),
        (("topic", "produce", "{topic}", "x", "--header", "nothing"), "NAME=VALUE"),
        (("consumer", "seek", "g", "{topic}", "1:2"), "a single place"),
        (("consumer", "seek", "g", "{topic}", "99", "--create"), "offset 99"),
        (("import", "a.doc", "{topic}"), "--format"),
        (("topic", "list", "--servers", "ftp://x"), "servers"),
        (("broker", "--port", "5", "list"), "--port"),
        (("topic", "describe", "\udcff"), r"\xff: names are UTF-8"),  # so Python has a byte that is none
        (("topic", "create", "\udcff"), "names are UTF-8"),
        (("topic", "consume", "{topic}", "--group", "\udcff"), "names are UTF-8"),
        (("consumer", "seek", "\udcff", "{topic}", "start", "--create"), "names are UTF-8"),
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(
    talweg: Shell, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    words = [word.format(topic=topic) for word in arguments]
    assert said in talweg.refuses(*words, code=2)


def test_keys_and_headers_are_sent_as_they_were_given(talweg: Shell, topic: str) -> None:
    talweg("topic", "produce", topic, "\udcff", "--key", "\udcfe", "--header", "h=\udcfd")
    (message,) = talweg("topic", "consume", topic, "--json").objects
    assert (message["value_base64"], message["key_base64"]) == ("/w==", "/g==")
    assert message["headers_base64"] == [["h", "/Q=="]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "lits"),
        ("topic", "list", "--jsno"),
        ("tail",),
        ("topic", "create", "x", "--partitions", "0"),
        ("topic", "create", "x", "--retention-hours", "inf"),
        ("topic", "create", "x", "--retention-hours", "nan"),
    ],
)
def test_wrong_options_are_refused_by_the_command_line_itself(
    talweg: Shell, arguments: tuple[str, ...]
) -> None:
    assert "Usage" in talweg(*arguments, code=2).err


def test_a_partition_that_is_not_there(talweg: Shell, topic: str) -> None:
    for words in (("consume", topic), ("produce", topic, "x")):
        assert "no partition 7, only 0 to 2" in talweg.refuses("topic", *words, "-p", 7, code=3)


def test_a_cluster_that_cannot_be_reached_has_an_exit_code_of_its_own(talweg: Shell) -> None:
    for words in (
        ("topic", "list"),
        ("topic", "produce", "t", "x"),
        ("topic", "consume", "t"),
        ("broker", "list"),
    ):
        said = talweg.refuses(*words, "--servers", "127.0.0.1:1", "--timeout", "0.3", code=4)
        assert "http://127.0.0.1:1" in said


def test_messages_come_out_as_they_went_in(talweg: Shell, topic: str) -> None:
    sent = talweg(
        "topic", "produce", topic, "one", "two", "-p", 1, "-k", "k", "-H", "a=1", "-H", "b=", "--json"
    )
    assert [(each["partition"], each["offset"]) for each in sent.objects] == [(1, 0), (1, 1)]
    assert talweg("topic", "consume", topic).lines == ["one", "two"]
    first = talweg("topic", "consume", topic, "--json", "-n", 1).objects
    assert len(first) == 1
    timestamp = first[0].pop("timestamp")
    assert abs(timestamp / 1e6 - time.time()) < 60
    headers = [["a", "1"], ["b", ""]]
    assert first == [
        {"topic": topic, "partition": 1, "offset": 0, "key": "k", "value": "one", "headers": headers}
    ]
    verbose = talweg("topic", "consume", topic, "-v", "-n", 1).out.rstrip("\n").split("\t")
    assert [verbose[i] for i in (0, 1, 3, 4, 5)] == ["1", "0", "k", "a=1,b=", "one"]


def test_the_lines_of_standard_input_are_messages(talweg: Shell, topic: str) -> None:
    ended = talweg("topic", "produce", topic, "-p", 0, stdin=b"first\r\n\nlast")
    assert ended.out == f"3 messages sent to {topic}\n"
    assert talweg("topic", "consume", topic).out == "first\n\nlast\n"


def test_a_message_is_one_line_whatever_is_in_it(talweg: Shell, topic: str) -> None:
    values = [b"caf\xc3\xa9", b"\xff\x00", b"two\x1b[31mred", b"a\tb"]
    talweg("topic", "produce", topic, "-p", 0, stdin=b"\n".join(values))
    talweg("topic", "produce", topic, "-p", 0, "three\nlines\r")
    shown = ["café", r"\xff\x00", r"two\x1b[31mred", "a\tb", r"three\nlines\r"]
    assert talweg("topic", "consume", topic).out.split("\n")[:-1] == shown
    coded = talweg("topic", "consume", topic, "--format", "base64").lines
    assert [base64.b64decode(line) for line in coded] == [*values, b"three\nlines\r"]
    objects = talweg("topic", "consume", topic, "--json").objects
    assert base64.b64decode(objects[1]["value_base64"]) == b"\xff\x00"
    assert objects[4]["value"] == "three\nlines\r"


def fill(talweg: Shell, topic: str) -> str:
    talweg("topic", "produce", topic, "-p", 0, stdin="\n".join(map(str, range(20))))
    return topic


@pytest.fixture
def twenty(talweg: Shell, topic: str) -> str:
    """A topic with twenty messages in its first partition."""
    return fill(talweg, topic)


@pytest.fixture(scope="module")
def twenty_to_read(directory_cluster: LocalCluster) -> str:
    """The same, for those who leave it as it is."""
    talweg = Shell(directory_cluster.url)
    talweg("topic", "create", "twenty", "--partitions", 3)
    return fill(talweg, "twenty")


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ("start", range(20)),
        ("end", range(0)),
        ("15", range(15, 20)),
        ("-3", range(17, 20)),
        ("-100", range(20)),
        ("-0", range(0)),
        ("5:8", range(5, 8)),
        (":2", range(2)),
        ("18:", range(18, 20)),
        ("-5:-3", range(15, 17)),
        ("5:5", range(0)),
        ("50", range(0)),
        ("10:5000", range(10, 20)),
        ("@2020-01-01", range(20)),
        ("@2100-01-01", range(0)),
        ("@2020-01-01:@2100-01-01", range(20)),
        ("@2020-01-01T10:00:@2021-01-01", range(0)),
    ],
)
@pytest.mark.parametrize("of_one", [True, False])
def test_offsets_as_people_write_them(
    talweg: Shell, twenty_to_read: str, offsets: str, expected: range, of_one: bool
) -> None:
    partition = ("-p", "0") if of_one else ()
    assert talweg("topic", "consume", twenty_to_read, offsets, *partition).lines == list(map(str, expected))


def test_a_limit_ends_the_reading(talweg: Shell, twenty: str) -> None:
    assert talweg("topic", "consume", twenty, "3", "-n", 2, "-f").lines == ["3", "4"]


def test_the_last_messages_of_all_partitions_come_in_the_order_of_their_time(
    talweg: Shell, topic: str
) -> None:
    for number in range(6):
        talweg("topic", "produce", topic, "-p", number % 3, f"m{number}")
    assert talweg("tail", topic, "-n", 4).lines == ["m2", "m3", "m4", "m5"]
    assert talweg("topic", "consume", topic, "-4").lines == ["m2", "m3", "m4", "m5"]
    assert talweg("tail", topic, "-n", 2, "--json").objects[1]["value"] == "m5"
    assert talweg("tail", topic, "-n", 0).lines == []
    assert talweg("tail", topic, "-p", 1).lines == ["m1", "m4"]


def test_a_group_goes_on_where_it_was(talweg: Shell, twenty: str) -> None:
    read = ("topic", "consume", twenty, "--group", "readers")
    assert talweg(*read, "-n", 5).lines == list(map(str, range(5)))
    assert talweg(*read, "-n", 3).lines == ["5", "6", "7"]
    assert talweg(*read).lines == list(map(str, range(8, 20)))
    assert talweg(*read).lines == []


def test_reading_goes_on_when_a_leader_is_killed(talweg: Shell, twenty: str, cluster: LocalCluster) -> None:
    cluster.kill_leader(twenty, 0)
    assert talweg("topic", "consume", twenty).lines == list(map(str, range(20)))
    talweg("topic", "produce", twenty, "-p", 0, "more")
    assert talweg("tail", twenty, "-n", 1).lines == ["more"]


def test_a_topic_is_made_by_sending_only_for_those_who_say_so(talweg: Shell) -> None:
    assert "--create" in talweg.refuses("topic", "produce", "unmade", "x", code=3)
    talweg("topic", "produce", "unmade", "x", "--create")
    assert talweg("topic", "consume", "unmade").lines == ["x"]
