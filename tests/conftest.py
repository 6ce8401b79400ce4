"""What every test shares: the real servers, the `--record` flag, and how Hypothesis looks for trouble."""

import signal

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["servers", "shared_clusters", "spark_session"]

# In the background a shell lets nobody hear Ctrl-C, which whatever is started here would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, so that a red build can be repeated; `--hypothesis-profile=search` throws
# fresh dice. A deadline would measure the machine's mood, and a slow fixture is ours to judge.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "search", parent=settings.get_profile("house"), derandomize=False, max_examples=2_000
)
settings.load_profile("house")

# Tests of code alone, on virtual time where time matters: what fails there once is wrong. All others run real
# servers on a machine that may stand still for seconds. Those get a second chance, and say that they took it.
EXACT = frozenset({"house", "raft", "records", "simulation"})
EXACT_FILES = frozenset(
    {
        "broker/test_sweeping.py",
        "client/test_publishing.py",
        "storage/test_crashes.py",
        "storage/test_journal.py",
        "storage/test_model.py",
        "storage/test_torn_and_damaged.py",
        "replication/test_decisions.py",
        "replication/test_proposals.py",
        "replication/test_retention.py",
        "replication/test_staging.py",
        "replication/test_state.py",
        "replication/test_wire.py",
        "replication/test_writer.py",
        "spark/test_shares.py",
    }
)

# Fixtures that are whole clusters, of a module or a directory: on two workers they would be started twice.
OF_MODULE = frozenset({"module_cluster", "standing"})
OF_DIRECTORY = frozenset({"directory_cluster"})


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a cluster stay together; the longest row of tests, those over Spark, begins first."""

    def begins_later(item: pytest.Item) -> bool:
        place = f"{item.path.parent.name}/{item.path.name}"
        if item.path.parent.name not in EXACT and place not in EXACT_FILES:
            item.add_marker(pytest.mark.flaky(reruns=1))
        group = item.get_closest_marker("xdist_group")
        used = getattr(item, "fixturenames", ())
        if group is None and OF_DIRECTORY.intersection(used):
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
        elif group is None and OF_MODULE.intersection(used):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        return group is None or not group.args[0].startswith("spark")

    items.sort(key=begins_later)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed at first, in full: it passed the second time, and is to be mended all the same."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("=", f"FAILED AT FIRST: {report.nodeid}", yellow=True, bold=True)
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"--- {title} ---\n{text[-4000:]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="write what scenarios print now as their expected output"
    )


@pytest.fixture(scope="session")
def recording(pytestconfig: pytest.Config) -> bool:
    """Whether scenarios are to be recorded instead of compared."""
    return bool(pytestconfig.getoption("--record"))
