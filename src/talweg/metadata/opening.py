"""A metadata store by its URL. What a store needs beyond SQLAlchemy is imported only when it is asked for."""

from typing import Final

from talweg.errors import InvalidSetting
from talweg.metadata.sql import SqlMetadata
from talweg.metadata.store import MetadataStore

_EXPECTED: Final = (
    "expected sqlite:///PATH, postgresql+psycopg://…, mysql+pymysql://…, redis://… or redis+cluster://…"
)
_SQL: Final = ("sqlite", "postgresql", "mysql", "mariadb")
_REDIS: Final = ("redis", "rediss")


def open_metadata(url: str) -> MetadataStore:
    """Connect to a store and prepare it if it is new (blocking).

    Raises InvalidSetting for a URL that cannot work, MetadataUnavailable when nobody answers (try again),
    and NewerFormat for what a newer Talweg has written.
    """
    scheme, separator, _ = url.partition("://")
    family = scheme.partition("+")[0]
    if not separator or family not in (*_SQL, *_REDIS):
        raise InvalidSetting(f"a metadata URL that begins with {scheme[:20]!r}; {_EXPECTED}")
    if family in _SQL:
        return SqlMetadata(url)
    try:
        # Only here, because Redis's driver is an extra.
        from talweg.metadata.redis import RedisMetadata  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidSetting("the driver for Redis is not installed: pip install talweg[redis]") from error
    return RedisMetadata(url)
