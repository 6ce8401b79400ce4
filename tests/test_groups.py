"""What tests/conftest.py does with tests: those that share a cluster or a Spark session stay on one worker,
and those that run real servers get a second chance."""

from pathlib import Path

import pytest

from conftest import EXACT_FILES


@pytest.mark.xdist_group("kept")
def test_groups_are_kept(request: pytest.FixtureRequest) -> None:
    """Where they are not, nothing else fails; but everything that is shared is started on every worker."""
    if getattr(request.config.option, "loadgroup", False):  # set in workers
        assert request.node.nodeid.endswith("@kept"), "see pytest in pyproject.toml"


def test_what_is_not_pure_gets_a_second_chance(request: pytest.FixtureRequest) -> None:
    chance = request.node.get_closest_marker("flaky")
    assert chance is not None
    assert chance.kwargs == {"reruns": 1}


def test_files_without_a_second_chance_exist() -> None:
    tests = Path(__file__).parent
    assert [name for name in EXACT_FILES if not (tests / name).exists()] == []
