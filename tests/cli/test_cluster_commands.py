"""`talweg status`, `broker`, `consumer`, `bench` and `doctor` on a real cluster."""

import pytest

from cli.shell import Shell
from strangers import web_server
from talweg.cli.complaints import Failed
from talweg.cli.consumer_meant import change_each
from talweg.errors import NoQuorum
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cli-commands")


@pytest.fixture
def nine(talweg: Shell, topic: str) -> str:
    """A topic with nine messages in its first partition."""
    talweg("topic", "produce", topic, "-p", 0, stdin="\n".join(map(str, range(9))))
    return topic


def test_a_group_is_listed_described_and_moved(talweg: Shell, nine: str) -> None:
    read = ("topic", "consume", nine, "--group", "movers", "-p", 0)
    talweg(*read, "-n", 4)
    listed = [
        each for each in talweg("consumer", "list", "--json").json["consumers"] if each["topic"] == nine
    ]
    assert [(each["group"], each["lag"]) for each in listed] == [("movers", 5)]
    row = next(line for line in talweg("consumer", "list").lines if line.split()[1] == nine)
    assert row.split() == ["movers", nine, "group", "-", "-", "5", "-"]
    assert talweg("consumer", "describe", "movers", "--topic", nine).lines[1].split() == [
        *(nine, "0", "4", "0", "9", "5", "-")
    ]
    for where, position, rest in [("2", 2, range(2, 9)), ("-3", 6, range(6, 9)), ("end", 9, range(0))]:
        moved = talweg("consumer", "seek", "movers", nine, where, "-p", 0, "--json").json
        assert moved == {"consumer": "movers", "topic": nine, "positions": {"0": position}}
        assert talweg(*read).lines == list(map(str, rest))
    assert talweg("consumer", "seek", "movers", nine, "@2020-01-01").lines[1:] == [
        "        0         0",
        "        1         0",
        "        2         0",
    ]


def test_a_group_that_nobody_knows_is_moved_only_for_those_who_say_so(talweg: Shell, nine: str) -> None:
    assert "no group tpyo" in talweg.refuses("consumer", "seek", "tpyo", nine, "start", code=3)
    talweg("consumer", "seek", "fresh", nine, "end", "--create")
    assert talweg("topic", "consume", nine, "--group", "fresh").lines == []


def test_a_registered_consumer_is_moved_by_its_number(
    talweg: Shell, nine: str, cluster: LocalCluster
) -> None:
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=nine)["consumer_id"]
        assert manager.get("/consumer/consume", topic=nine, consumer_id=number)["message"] == "0"
        talweg("consumer", "seek", number, nine, "-1")
        assert manager.get("/consumer/consume", topic=nine, consumer_id=number)["message"] == "8"
    described = talweg("consumer", "describe", number, "--json").json["consumers"][0]
    assert (described["consumer_id"], described["status"], described["lag"]) == (number, "active", 0)


def test_a_group_whose_name_is_a_number_is_not_taken_for_a_registered_consumer(
    talweg: Shell, nine: str, cluster: LocalCluster
) -> None:
    talweg("topic", "consume", nine, "--group", "123456", "-n", 4)
    assert talweg("consumer", "seek", "123456", nine, "8", "-p", 0, "--json").json["positions"] == {"0": 8}
    assert talweg("topic", "consume", nine, "--group", "123456").lines == ["8"]
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=nine)["consumer_id"]
    talweg("topic", "consume", nine, "--group", number, "-n", 4)
    told = talweg.refuses("consumer", "seek", number, nine, "start", code=2)
    assert f"{number} is a group and a registered consumer" in told


def positions(talweg: Shell, group: str, topic: str) -> dict[int, int]:
    (described,) = talweg("consumer", "describe", group, "--topic", topic, "--json").json["consumers"]
    return {part["partition"]: part["position"] for part in described["partitions"]}


def test_a_command_for_several_partitions_changes_none_if_one_of_them_cannot_be(
    talweg: Shell, nine: str
) -> None:
    seek = ("consumer", "seek", "movers", nine)
    talweg(*seek, "end", "--create")
    before = positions(talweg, "movers", nine)
    assert before == {0: 9, 1: 0, 2: 0}
    assert "nothing was changed" in talweg.refuses(*seek, "5", code=2), "two of them are empty"
    assert "no partition 3" in talweg.refuses(*seek, "start", "-p", 0, "-p", 3, code=3)
    assert positions(talweg, "movers", nine) == before
    for command in (("hold", "movers", nine, "1GB"), ("release", "movers", nine)):
        assert "no partition 7" in talweg.refuses("consumer", *command, "-p", 0, "-p", 7, code=3)
    (described,) = talweg("consumer", "describe", "movers", "--topic", nine, "--json").json["consumers"]
    assert [part["keep_bytes"] for part in described["partitions"]] == [None] * 3


def test_a_registered_consumer_of_one_partition_is_moved_in_no_other(
    talweg: Shell, nine: str, cluster: LocalCluster
) -> None:
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=nine, partition=1)["consumer_id"]
    told = talweg.refuses("consumer", "hold", number, nine, "1GB", "-p", 0, code=3)
    assert f"consumer {number} does not read partition 0 of topic {nine}, only 1" in told
    assert talweg("consumer", "seek", number, nine, "start", "--json").json["positions"] == {"1": 0}


def test_a_command_that_fails_half_way_says_how_far_it_came() -> None:
    done = []

    def change(number: int) -> None:
        if number == 2:
            raise NoQuorum("no majority")
        done.append(number)

    with pytest.raises(
        Failed, match="no majority; it was done for partition 0, 1, perhaps for 2, and for no"
    ):
        change_each([0, 1, 2, 3], change)
    assert done == [0, 1]


def test_the_status_shows_everything(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    cluster.wait_for_leader(topic, 2)
    seen = talweg("status", "--json").json
    assert {each["role"] for each in seen["managers"]} == {"primary", "read-only"}
    assert [each["status"] for each in seen["brokers"]] == ["active"] * 3
    assert topic in [each["topic"] for each in seen["topics"]]
    table = talweg("status").out
    assert all(cluster.endpoint(name) in table for name in cluster.processes)


def test_brokers_are_listed_deactivated_and_activated(talweg: Shell, cluster: LocalCluster) -> None:
    listed = talweg("broker", "list", "--json").json["brokers"]
    assert {each["endpoint"] for each in listed} == {cluster.endpoint(name) for name in cluster.brokers}
    number = cluster.number("broker-1")
    assert talweg("broker", "deactivate", number, "--json").json["broker_id"] == number
    assert cluster.statuses()["broker-1"] == "deactivated"
    found = next(
        each for each in talweg("doctor", "--json").json["findings"] if "deactivated" in each["what"]
    )
    assert found["level"] == "warning"
    assert f"talweg broker activate {number}" in found["remedy"]
    talweg("broker", "activate", number)
    assert cluster.statuses()["broker-1"] == "active"


def test_a_broker_is_added_again_under_its_number(talweg: Shell, cluster: LocalCluster) -> None:
    endpoint = cluster.endpoint("broker-2")
    assert talweg("broker", "add", endpoint).out == f"broker {cluster.number('broker-2')} is {endpoint}\n"


def test_what_is_no_broker_is_not_added(talweg: Shell, cluster: LocalCluster) -> None:
    assert talweg.refuses("broker", "add", cluster.url, "--timeout", 2, code=2)


def test_removing_a_broker_wants_a_yes_and_somewhere_to_move(
    talweg: Shell, topic: str, cluster: LocalCluster
) -> None:
    number = cluster.number("broker-3")
    assert "--yes" in talweg.refuses("broker", "remove", number, code=2)
    assert talweg.refuses("broker", "remove", number, "--yes", "--timeout", 1, code=1)
    assert cluster.statuses()["broker-3"] == "active"


def test_the_bench_measures_and_leaves_nothing_behind(talweg: Shell) -> None:
    before = talweg("topic", "list").lines
    figures = talweg("bench", "-n", 5_000, "--size", 50, "--partitions", 2, "--json").json
    assert (figures["messages"], figures["message_bytes"], figures["partitions"]) == (5_000, 50, 2)
    for name in (
        "produced_per_second",
        "batches_per_second",
        "messages_per_second",
        "median_ms",
        "slowest_ms",
    ):
        assert figures[name] > 0
    assert "messages/s" in talweg("bench", "-n", 1_000).out
    assert talweg("topic", "list").lines == before


def test_a_healthy_cluster_has_nothing_wrong(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    cluster.wait_for_leader(topic, 2)
    seen = talweg("doctor", "--json").json
    assert seen["wrong"] == 0
    assert {"clocks", "versions", "partitions", "open files"} <= {
        each["subject"] for each in seen["findings"]
    }
    assert talweg("doctor").lines[-1].startswith("0 wrong, ")


def test_a_dead_broker_and_its_partitions_are_found(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    number = cluster.number(cluster.kill_leader(topic))
    cluster.wait_for_status(next(n for n in cluster.brokers if not cluster.processes[n].running), "inactive")
    findings = talweg("doctor", "--json", code=1).json["findings"]
    found = {each["subject"]: each for each in findings if each["level"] != "fine"}
    assert "inactive" in found[f"broker {number}"]["what"]
    assert f"talweg broker remove {number}" in found[f"broker {number}"]["remedy"]
    assert any(subject.startswith(f"{topic}, partition") for subject in found)
    told = talweg("doctor", code=1).out
    assert told.count("of 3 replicas are there: one more failure may stop it") == 1, "the same is said once"
    assert talweg("status", "--json", code=1).json["healthy"] is False
    assert "talweg doctor" in talweg("status", code=1).out


def test_what_nobody_can_say_is_not_told_as_nothing(talweg: Shell, nine: str, cluster: LocalCluster) -> None:
    talweg("topic", "consume", nine, "--group", "readers", "-n", 4)
    cluster.kill("broker-1", "broker-2")
    short = ("--timeout", 3)
    listed = talweg("consumer", "list", "--topic", nine, *short, "--json", code=4)
    assert listed.json == {"consumers": [], "unasked": {nine: [0, 1, 2]}}
    assert f"nobody could be asked who reads {nine} 0, {nine} 1, {nine} 2" in listed.err
    assert "who reads" in talweg.refuses("consumer", "list", *short, code=4)
    for command in (
        ("describe", "readers"),
        ("seek", "readers", nine, "start"),
        ("release", "readers", nine),
    ):
        told = talweg.refuses("consumer", *command, *short, code=4)
        assert "whether there is a group readers is not known" in told
    described = talweg("topic", "describe", nine, *short, code=4)
    assert [row.split()[-3:] for row in described.lines[1:]] == [["-", "-", "-"]] * 3
    assert f"what partition 0, 1, 2 of topic {nine} holds" in described.err
    for name in ("broker-1", "broker-2"):
        cluster.wait_for_status(name, "inactive")
    shown = talweg("status", "--json", code=1).json
    assert {(nine, number) for number in range(3)} <= {
        (each["topic"], each["partition"]) for each in shown["leaderless"]
    }
    assert [line.split()[-1] for line in talweg("status", code=1).lines if " inactive " in line] == ["-", "-"]
    unknown = {each["subject"]: each["what"] for each in talweg("doctor", "--json", code=1).json["findings"]}
    assert "who reads partition 0, 1, 2" in unknown[f"consumers, topic {nine}"]
    assert f"{nine}, partition 0" in unknown, "the doctor goes on"


def test_a_registered_consumer_shows_no_lag_that_is_not_known(
    talweg: Shell, nine: str, cluster: LocalCluster
) -> None:
    with cluster.ask() as manager:
        number = manager.post("/consumer/register", topic=nine)["consumer_id"]
    cluster.kill(*cluster.brokers)
    listed = talweg("consumer", "list", "--topic", nine, "--timeout", 3, "--json", code=4).json
    (consumer,) = listed["consumers"]
    assert (consumer["consumer_id"], consumer["lag"], consumer["partitions"]) == (number, None, [])
    table = talweg("consumer", "describe", number, "--topic", nine, "--timeout", 3, code=4)
    assert len(table.lines) == 1


def test_a_cluster_that_does_not_answer_is_a_finding(talweg: Shell) -> None:
    seen = talweg("doctor", "--servers", "127.0.0.1:1", "--timeout", 0.5, "--json", code=1).json
    wrong = [each for each in seen["findings"] if each["level"] == "wrong"]
    assert [each["subject"] for each in wrong] == ["http://127.0.0.1:1"]
    assert "--servers" in wrong[0]["remedy"]


def test_an_address_that_is_no_manager_s_leads_to_one_or_is_said(
    talweg: Shell, topic: str, cluster: LocalCluster
) -> None:
    assert topic in talweg("topic", "list", "--servers", cluster.endpoint("broker-1")).lines
    with web_server() as stranger:
        assert topic in talweg("topic", "list", "--servers", f"{stranger},{cluster.url}").lines
        told = talweg.refuses("topic", "list", "--servers", stranger, code=2)
        assert f"http://{stranger} is no server of Talweg" in told


def test_a_cluster_without_its_primary_is_found(talweg: Shell, cluster: LocalCluster) -> None:
    cluster.kill("primary")
    reader = cluster.endpoint("reader-1")
    findings = talweg(
        "doctor", "--servers", f"{cluster.url},{reader}", "--timeout", 2, "--json", code=1
    ).json["findings"]
    found = {each["subject"]: each["level"] for each in findings}
    assert found["primary"] == "wrong"
    assert found[cluster.url] == "warning"
    assert found[reader] == "fine"


def test_retention_is_held_back_for_a_group_and_released(talweg: Shell, nine: str) -> None:
    talweg("topic", "consume", nine, "--group", "slow", "-p", 0, "-n", 4)
    held = talweg("consumer", "hold", "slow", nine, "1.5GB", "--json").json
    assert held == {"consumer": "slow", "topic": nine, "keep_bytes": 1_500_000_000, "partitions": [0, 1, 2]}
    talweg("consumer", "hold", "slow", nine, "64KiB", "-p", 1)
    (described,) = talweg("consumer", "describe", "slow", "--json").json["consumers"]
    assert [(part["position"], part["keep_bytes"]) for part in described["partitions"]] == [
        *((4, 1_500_000_000), (0, 65_536), (0, 1_500_000_000))
    ]
    assert described["overtaken"] is False
    assert "holds" in {each["subject"] for each in talweg("doctor", "--json").json["findings"]}
    assert talweg("consumer", "describe", "slow").lines[1].endswith("  1.5 GB")
    assert talweg("consumer", "release", "slow", nine, "-p", 0, "-p", 1).lines[1].split() == ["0", "-"]
    row = next(line for line in talweg("consumer", "list").lines if line.split()[1] == nine)
    assert row.split()[-2:] == ["1.5", "GB"]
    assert talweg("consumer", "release", "slow", nine, "--json").json["partitions"] == [0, 1, 2]
    assert talweg("consumer", "describe", "slow").lines[1].split()[-1] == "-"


def test_a_group_is_deleted_if_somebody_says_so(talweg: Shell, nine: str) -> None:
    talweg("topic", "consume", nine, "--group", "old", "-n", 9)
    assert "--yes" in talweg.refuses("consumer", "delete", "old", nine, code=2)
    assert "no group tpyo" in talweg.refuses("consumer", "delete", "tpyo", nine, "--yes", code=3)
    deleted = talweg("consumer", "delete", "old", nine, "-p", 1, "-p", 0, "--yes", "--json").json
    assert deleted == {"consumer": "old", "topic": nine, "partitions": [0, 1], "deleted": True}
    (left,) = talweg("consumer", "describe", "old", "--json").json["consumers"]
    assert [part["partition"] for part in left["partitions"]] == [2]
    assert talweg("consumer", "delete", "old", nine, "--yes").lines[1].split() == ["0", "-"]
    assert "no group old" in talweg.refuses("consumer", "describe", "old", code=3)
    assert talweg("topic", "consume", nine, "--group", "old").lines == list(map(str, range(9)))


def test_a_hold_that_cannot_be_is_refused(talweg: Shell, nine: str) -> None:
    assert "no group tpyo" in talweg.refuses("consumer", "hold", "tpyo", nine, "1GB", code=3)
    assert "no group tpyo" in talweg.refuses("consumer", "release", "tpyo", nine, code=3)
    assert "no consumer 4711" in talweg.refuses("consumer", "hold", 4711, nine, "1GB", code=3)
    assert "'much' is no size" in talweg.refuses("consumer", "hold", "new", nine, "much", "--create", code=2)
    assert "'0' is no size" in talweg.refuses("consumer", "hold", "new", nine, "0", "--create", code=2)
    assert talweg("consumer", "hold", "new", nine, "1GB", "--create").lines[1].split() == ["0", "1.0", "GB"]
    assert talweg("topic", "consume", nine, "--group", "new").lines == list(map(str, range(9)))
