"""What a server was asked and what it answered, counted by call. Counting costs an addition or two."""

from typing import Final

UNMATCHED: Final = ("", "")
"""Method and path of what leads to no call."""


class CallTraffic:
    """Of one call, since the server was started."""

    __slots__ = ("answers", "bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.answers = [0, 0, 0, 0, 0, 0]  # by the first digit of the status
        self.bytes_in = 0  # of bodies that were read whole
        self.bytes_out = 0  # of the bodies of answers


class Traffic:
    """What a server was asked and has answered, by call: as many as it declares, whatever is asked of it."""

    def __init__(self) -> None:
        self.by_call: dict[tuple[str, str], CallTraffic] = {UNMATCHED: CallTraffic()}
        self.under_way = 0  # requests

    @property
    def unmatched(self) -> CallTraffic:
        """Of requests that lead to no call."""
        return self.by_call[UNMATCHED]

    def of(self, method: str, path: str) -> CallTraffic:
        """Of a call, by its method and its path as it is declared."""
        return self.by_call.setdefault((method, path), CallTraffic())
