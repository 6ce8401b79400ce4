"""Settings of a cluster that is quick to notice what is done to it, for tests."""

from typing import Final

_BOTH: Final = {"--heartbeat": "200ms", "--request-timeout": "3s"}

QUICK: Final[dict[str, dict[str, str]]] = {
    "broker": _BOTH | {"--tick": "50ms"},
    "manager": _BOTH | {"--lease": "1s", "--health": "200ms"},
}
"""Settings for `LocalCluster` with elections of some 0.5 s, so that tests need not wait.

They are not shorter because a busy machine would elect for ever. Servers wait for each other's answers no
longer than it takes to find out that one stands still.
"""
