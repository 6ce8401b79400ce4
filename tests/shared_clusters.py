"""Clusters that many tests share: started for the first that wants one, ended when no more of them follow.

To start one takes longer than most tests do; to have it stand idle costs a tenth of a processor and more,
which the tests of other directories would lack.
"""

from collections.abc import Callable, Iterator

import pytest

from talweg.testing.cluster import LocalCluster

_SHARED = pytest.StashKey[LocalCluster]()


def shared_cluster(request: pytest.FixtureRequest, make: Callable[[], LocalCluster]) -> LocalCluster:
    """The cluster of the tests that share one with this; what they did to it is still so."""
    stash = request.config.stash
    if _SHARED not in stash:
        made = make()
        made.start()
        stash[_SHARED] = made
    return stash[_SHARED]


def share(item: pytest.Item, other: pytest.Item) -> bool:
    """Whether two tests share a cluster: they are of one directory, or of one group of pytest-xdist."""
    groups = [each.get_closest_marker("xdist_group") for each in (item, other)]
    of_one_group = groups[0] is not None and groups[1] is not None and groups[0].args == groups[1].args
    return of_one_group or item.path.parent == other.path.parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The next test is none of those: nobody needs the cluster any more."""
    try:
        return (yield)
    finally:
        if _SHARED in item.config.stash and (nextitem is None or not share(item, nextitem)):
            item.config.stash[_SHARED].close()
            del item.config.stash[_SHARED]
