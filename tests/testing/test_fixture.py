"""The fixtures for pytest, in a session of pytest of their own, as a user has them."""

import textwrap
import time
from pathlib import Path

import pytest

from talweg.testing import QUICK, LocalCluster
from testing.sessions import CONFTEST, Session

pytestmark = pytest.mark.xdist_group("testing")

START_SECONDS_MAX = 3.0


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_every_test_has_a_whole_cluster_whatever_the_one_before_did_to_it(session: Session) -> None:
    session.write(
        "test_user.py",
        """
        import os

        seen = []

        def check(cluster):
            seen.append(cluster.directory)
            assert set(cluster.statuses().values()) == {"active"}
            assert len(cluster.statuses()) == 3
            assert os.environ["TALWEG_URL"] == cluster.url
            with cluster.ask() as manager:
                assert not manager.get("/v1/metadata")["topics"]
                manager.post("/topics", name="logs", partitions=2)
            cluster.wait_for_leader("logs", 0)

        def test_kills(talweg_cluster):
            check(talweg_cluster)
            killed = talweg_cluster.kill_leader("logs")
            assert not talweg_cluster.processes[killed].running
            assert talweg_cluster.wait_for_leader("logs", 0, other_than=killed) != killed

        def test_pauses(talweg_cluster):
            check(talweg_cluster)
            talweg_cluster.pause("broker-1")
            talweg_cluster.pause("primary")

        def test_kills_the_primary(talweg_cluster):
            check(talweg_cluster)
            talweg_cluster.kill("primary", "broker-2")

        def test_deactivates(talweg_cluster):
            check(talweg_cluster)
            with talweg_cluster.ask() as manager:
                manager.post("/admin/broker/deactivate", broker_id=talweg_cluster.number("broker-3"))

        def test_restarts(talweg_cluster):
            check(talweg_cluster)
            talweg_cluster.restart("broker-1")

        def test_has_a_topic(talweg_cluster, talweg_topic):
            with talweg_cluster.ask() as manager:
                assert manager.get("/topics")["topics"] == [talweg_topic]
                number = manager.post("/producer/register", topic=talweg_topic)["producer_id"]
                manager.post("/producer/produce", topic=talweg_topic, producer_id=number, message="hello")

        def test_they_shared_a_cluster():
            assert len(set(seen)) == 1
        """,
    )
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout


def test_a_cluster_that_cannot_be_put_right_is_replaced(session: Session) -> None:
    session.write(
        "test_user.py",
        """
        import shutil

        directories = []

        def test_spoils(talweg_cluster):
            directories.append(talweg_cluster.directory)
            talweg_cluster.kill("broker-1")
            data = talweg_cluster.directory / "broker-1"
            shutil.rmtree(data)
            data.write_text("not a directory")

        def test_goes_on(talweg_cluster):
            assert talweg_cluster.directory not in directories
            assert not directories[0].exists()
            assert len(talweg_cluster.statuses()) == 3
        """,
    )
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_its_arguments_may_be_overridden_and_nothing_is_left_running(session: Session) -> None:
    session.write(
        "conftest.py",
        CONFTEST
        + textwrap.dedent(
            """
            import pytest

            @pytest.fixture(scope="session")
            def talweg_cluster_arguments():
                return {"brokers": 1, "readers": 1}
            """
        ),
    )
    session.write(
        "test_user.py",
        """
        from pathlib import Path

        def test_it(talweg_cluster):
            assert talweg_cluster.brokers == ("broker-1",)
            assert talweg_cluster.servers.count("http://") == 2
            pids = [str(process.pid) for process in talweg_cluster.processes.values()]
            Path("pids").write_text(" ".join([str(talweg_cluster.directory), *pids]))
        """,
    )
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    directory, *pids = (session.directory / "pids").read_text().split()
    assert len(pids) == 3
    assert not Path(directory).exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_session_without_a_cluster_starts_none_and_loads_next_to_nothing(session: Session) -> None:
    session.write(
        "test_user.py",
        """
        import sys

        def test_it(talweg_cluster_keeper):
            loaded = {name for name in sys.modules if name.startswith("talweg.")}
            ours = {"talweg.testing", "talweg.testing.fixture", "talweg.testing.quick"}
            assert loaded <= ours | {"talweg.errors", "talweg.version"}
            assert "pyarrow" not in sys.modules
        """,
    )
    ended = session.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_cluster_of_three_brokers_is_ready_in_three_seconds() -> None:
    taken = []
    for _ in range(3):
        began = time.monotonic()
        with LocalCluster(brokers=3, readers=0, settings=QUICK) as cluster:
            seconds = time.monotonic() - began
            # On a machine that is busy with other tests, servers stand in line for a processor.
            in_line = max(seconds_in_line(process.pid) for process in cluster.processes.values())
            taken.append((seconds, seconds - in_line))
            assert set(cluster.statuses().values()) == {"active"}
        if min(taken[-1]) < START_SECONDS_MAX:
            return
    pytest.fail(f"never ready in {START_SECONDS_MAX} s, nor without standing in line: {taken}")


def seconds_in_line(pid: int | None) -> float:
    """How long a process could have run, and was not let."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_topic_fits_a_cluster_of_few_brokers(brokers: int) -> None:
    with LocalCluster(brokers=brokers, readers=0, settings=QUICK) as cluster:
        with cluster.ask() as manager:
            manager.post("/topics", name="logs")
            (topic,) = manager.get("/v1/metadata")["topics"]
        assert {len(part["replicas"]) for part in topic["partitions"]} == {brokers}
        cluster.wait_for_leader("logs", 0)
