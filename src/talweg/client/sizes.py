"""Numbers of bytes as people write them: 65536, 64 KiB, 10GB."""

from typing import Final

from talweg.config.kinds import size
from talweg.errors import BadRequest

_SIZE: Final = size("1", "1000000 TiB")


def read_size(text: str) -> int:
    """How many bytes were meant, one at least; raises BadRequest."""
    try:
        return int(_SIZE.read(text))
    except ValueError:
        raise BadRequest(f"{text!r} is no size: expected one such as 65536, 64KiB, 500MB or 10GB") from None
