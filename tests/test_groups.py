"""Tests that share a cluster or a Spark session stay on one worker: pytest-xdist keeps their groups."""

import pytest


@pytest.mark.xdist_group("kept")
def test_groups_are_kept(request: pytest.FixtureRequest) -> None:
    """Where they are not, nothing else fails; but everything that is shared is started on every worker."""
    if getattr(request.config.option, "loadgroup", False):  # set in workers
        assert request.node.nodeid.endswith("@kept"), "see pytest in pyproject.toml"
