"""What every test shares: the real servers, the `--record` flag, and how Hypothesis looks for trouble."""

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["servers"]

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="write what scenarios print now as their expected output"
    )


@pytest.fixture(scope="session")
def recording(pytestconfig: pytest.Config) -> bool:
    """Whether scenarios are to be recorded instead of compared."""
    return bool(pytestconfig.getoption("--record"))
