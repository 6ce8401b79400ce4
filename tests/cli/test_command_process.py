"""The `talweg` command as a process: pipes that close, Ctrl-C, terminals, what it loads, completion."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.shell import Shell
from cli.talweg_command import TALWEG, clean_environment, run, running
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cli-commands")

SECONDS_MAX = 60.0


@pytest.fixture
def filled(talweg: Shell, topic: str) -> str:
    """More than a pipe holds."""
    talweg("import", "-", topic, "-p", 0, stdin=b"".join(b"%d %080d\n" % (n, n) for n in range(20_000)))
    return topic


def read_a_line_and_close(cluster: LocalCluster, *arguments: str) -> None:
    """It has to end by itself, and well."""
    command = subprocess.Popen(
        [*TALWEG, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(TALWEG_URL=cluster.url),
    )
    assert command.stdout is not None
    assert command.stderr is not None
    try:
        assert command.stdout.readline()
        command.stdout.close()
        assert command.wait(SECONDS_MAX) == 0
        assert command.stderr.read() == b""
    finally:
        command.kill()
        command.wait()
        command.stderr.close()


@pytest.mark.parametrize("options", [[], ["--follow"], ["--json"]])
def test_reading_stops_quietly_when_the_pipe_closes(
    cluster: LocalCluster, filled: str, options: list[str]
) -> None:
    read_a_line_and_close(cluster, "topic", "consume", filled, *options)


def test_a_group_has_not_read_what_could_not_be_written(
    talweg: Shell, filled: str, cluster: LocalCluster
) -> None:
    """What is printed at once is more than a pipe holds, and nobody takes it out: it was not printed."""
    command = subprocess.Popen(
        [*TALWEG, "topic", "consume", filled, "--group", "g"],
        stdout=subprocess.PIPE,
        bufsize=0,
        env=clean_environment(TALWEG_URL=cluster.url),
    )
    assert command.stdout is not None
    assert command.stdout.read(1) == b"0"
    command.stdout.close()
    assert command.wait(SECONDS_MAX) == 0
    assert "no group g" in talweg.refuses("consumer", "describe", "g", "--topic", filled, code=3)
    assert talweg("topic", "consume", filled, "--group", "g", "--limit", 1).lines[0].startswith("0 ")


FOLLOWERS = [("tail", "-f"), ("topic", "consume", "-f"), ("topic", "consume", "-f", "-g", "g")]


@pytest.mark.parametrize("command", FOLLOWERS)
def test_following_a_quiet_topic_stops_when_the_pipe_closes(
    talweg: Shell, topic: str, cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    """As in `talweg tail -f topic | head -1`: nothing comes that could not be written."""
    talweg("topic", "produce", topic, "the only one")
    read_a_line_and_close(cluster, *command, topic)


@pytest.mark.parametrize("command", FOLLOWERS)
def test_following_shows_what_comes_until_it_is_interrupted(
    talweg: Shell, topic: str, cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    talweg("topic", "produce", topic, "before")
    with running(*command, topic, environment={"TALWEG_URL": cluster.url}) as follower:
        follower.wait_for_line("before")
        talweg("topic", "produce", topic, "-p", 2, "behind")
        follower.wait_for_line("behind")
        follower.send(signal.SIGINT)
        assert follower.wait() == 130
        assert follower.out == ["before", "behind"]
        assert follower.err == []


def test_following_goes_on_when_a_leader_is_killed(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    talweg("topic", "produce", topic, "-p", 0, "before")
    with running("tail", "-f", topic, environment={"TALWEG_URL": cluster.url}) as follower:
        follower.wait_for_line("before")
        cluster.kill_leader(topic, 0)
        talweg("topic", "produce", topic, "-p", 0, "behind")
        follower.wait_for_line("behind")
        assert follower.out == ["before", "behind"]


def test_messages_are_sent_as_they_are_typed(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    with running("topic", "produce", topic, "--json", environment={"TALWEG_URL": cluster.url}) as producer:
        assert producer.process.stdin is not None
        producer.process.stdin.write("typed\n")
        producer.process.stdin.flush()
        deadline = time.monotonic() + SECONDS_MAX
        while talweg("topic", "consume", topic).lines != ["typed"]:
            assert time.monotonic() < deadline
        producer.process.stdin.close()
        assert producer.wait() == 0
        assert len(producer.out) == 1


@pytest.mark.parametrize("command", [("import", "-"), ("topic", "produce")])
def test_what_trickles_in_is_sent_and_counted_when_it_is_interrupted(
    talweg: Shell, topic: str, cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    with running(*command, topic, environment={"TALWEG_URL": cluster.url}) as sender:
        assert sender.process.stdin is not None
        expected: set[str] = set()
        for text in ("1\n", "2\n3\n4"):  # the end of the last line does not come
            sender.process.stdin.write(text)
            sender.process.stdin.flush()
            expected |= set(text.split("\n")[:-1])
            deadline = time.monotonic() + SECONDS_MAX
            while set(talweg("topic", "consume", topic).lines) != expected:
                assert time.monotonic() < deadline
        sender.send(signal.SIGINT)
        assert sender.wait() == 130
        assert sender.err == ["talweg: interrupted; at least 3 messages were sent"]


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1), ("what?\n", 1)]
)
def test_on_a_terminal_one_is_asked(
    talweg: Shell, topic: str, cluster: LocalCluster, typed: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    try:
        command = subprocess.Popen(
            [*TALWEG, "topic", "delete", topic],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(TALWEG_URL=cluster.url),
        )
        os.write(ours, typed.encode())
        _, err = command.communicate(timeout=SECONDS_MAX)
    finally:
        os.close(theirs)
        os.close(ours)
    assert command.returncode == code
    assert f"Delete topic {topic} with 0 messages?".encode() in err
    assert (topic in talweg("topic", "list").lines) == (code == 1)


def test_an_interrupt_is_no_answer(talweg: Shell, topic: str, cluster: LocalCluster) -> None:
    ours, theirs = pty.openpty()
    try:
        command = subprocess.Popen(
            [*TALWEG, "topic", "delete", topic],
            stdin=theirs,
            stderr=subprocess.PIPE,
            env=clean_environment(TALWEG_URL=cluster.url),
        )
        assert command.stderr is not None
        with command.stderr:
            assert command.stderr.read(len("Delete topic")) == b"Delete topic"
            command.send_signal(signal.SIGINT)
            assert command.wait(SECONDS_MAX) == 130
    finally:
        os.close(theirs)
        os.close(ours)
    assert topic in talweg("topic", "list").lines


@pytest.mark.parametrize(
    ("environment", "styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_and_for_those_who_want_them(
    cluster: LocalCluster, environment: dict[str, str], styled: bool
) -> None:
    ours, theirs = pty.openpty()
    try:
        for command in ("doctor", "status"):
            subprocess.run(
                [*TALWEG, command],
                stdout=theirs,
                env=clean_environment(**{"TALWEG_URL": cluster.url, "TERM": "xterm"} | environment),
                timeout=SECONDS_MAX,
                check=True,
            )
            assert (b"\x1b[" in os.read(ours, 1 << 16)) == styled
    finally:
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(cluster: LocalCluster, topic: str, closed: str) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *TALWEG, "topic", "describe", topic],
        capture_output=True,
        env=clean_environment(TALWEG_URL=cluster.url),
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_an_encoding_lacks_is_shown_escaped() -> None:
    # So narrow that help shortens what stands in its table, with a character that is not in ASCII.
    ended = run("pipeline", "run", "--help", environment={"PYTHONIOENCODING": "ascii", "COLUMNS": "60"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"\u2026" in ended.stdout
    assert "Show this" in ended.stdout


def test_a_progress_bar_is_for_terminals(topic: str, cluster: LocalCluster, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("x\n" * 50_000)
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [*TALWEG, "import", str(source), topic],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=clean_environment(TALWEG_URL=cluster.url, TERM="xterm"),
            timeout=SECONDS_MAX,
            check=True,
        )
        assert b"sending" in os.read(ours, 1 << 16)
    finally:
        os.close(theirs)
        os.close(ours)
    quiet = run("import", str(source), topic, environment={"TALWEG_URL": cluster.url})
    assert (quiet.returncode, quiet.stderr) == (0, "")


LOADED = """
import sys
from talweg.cli.main import main
try:
    main()
finally:
    print("loaded:", *(name for name in sys.modules if name.count(".") < 2), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"talweg.client", "talweg.http", "talweg.records", "uvloop"}),
        (["topic", "--help"], {"talweg.client", "talweg.http", "talweg.records", "uvloop"}),
        (["topic", "list"], set()),
    ],
)
def test_a_command_loads_no_more_than_it_needs(
    cluster: LocalCluster, arguments: list[str], unwanted: set[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(TALWEG_URL=cluster.url),
        timeout=SECONDS_MAX,
        check=True,
    )
    loaded = set(ended.stderr.split("loaded:")[1].split())
    servers = {"talweg.broker", "talweg.manager", "talweg.storage", "talweg.raft", "sqlalchemy", "uvicorn"}
    assert not loaded & (unwanted | servers | {"pyspark", "nicegui", "pandas"})
    if unwanted:
        assert not loaded & {"pyarrow", "numpy"}


def complete(cluster_url: str, words: str) -> list[str]:
    ended = run(
        environment={
            "TALWEG_URL": cluster_url,
            "_TALWEG_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_shells_complete_topics_brokers_and_commands(cluster: LocalCluster, topic: str) -> None:
    assert topic in complete(cluster.url, f"talweg topic describe {topic[:3]}")
    assert topic in complete(cluster.url, f"talweg consumer list --topic {topic[:3]}")
    assert complete(cluster.url, "talweg topic cons") == ["consume"]
    assert complete(cluster.url, "talweg broker activate ") == ["0", "1", "2"]


def test_a_shell_does_not_wait_for_a_cluster_that_is_silent(cluster: LocalCluster) -> None:
    cluster.pause("primary")
    assert complete(cluster.url, "talweg topic describe ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_printed(shell: str) -> None:
    shown = run(
        "--show-completion",
        shell,
        environment={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert shown.returncode == 0
    assert "_TALWEG_COMPLETE" in shown.stdout


def test_a_broker_still_starts_by_its_flags_alone(tmp_path: Path) -> None:
    flags = ("--port", "0", "--peer-port", "0", "--data", str(tmp_path), "--managers", "http://127.0.0.1:1")
    with running("broker", *flags) as broker:
        broker.wait_for_line("talweg broker ready at http://")
        broker.send(signal.SIGTERM)
        assert broker.wait() == 0
