"""From a setting to the stores that it names."""

import resource
from urllib.parse import unquote, urlsplit

from talweg.errors import InvalidSetting
from talweg.storage.contract import LogStores
from talweg.storage.files import RealFiles
from talweg.storage.memory import MemoryStores
from talweg.storage.segments import SegmentStores
from talweg.storage.state_file import STATE_NAME

_EXPECTED = (
    "expected a directory, segments:///directory, memory://, sqlite:///file, "
    "postgresql+psycopg://user@host/database or mysql+pymysql://user@host/database"
)
_OPEN_FILES_LEAST, _OPEN_FILES_MOST = 64, 16_384
_JOURNAL_BYTES = 8 << 20  # of each of its two files
_SQL_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb")


def open_stores(url: str, *, durable: bool = True) -> LogStores:
    """The stores at a URL or, without a scheme, in a directory. Raises InvalidSetting, StorageError.

    Segment files that are not `durable` wait for the disk with votes alone; databases have settings of their
    own.
    """
    if "://" not in url:
        return _segments(url, url, durable)
    scheme = url.partition("://")[0]
    if scheme.partition("+")[0] in _SQL_SCHEMES:
        # Only who wants a database needs its library.
        from talweg.storage.sql import SqlStores  # noqa: PLC0415

        return SqlStores(url)
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment:
        raise InvalidSetting(f"storage {url!r}: {_EXPECTED}")
    if scheme == "segments":
        return _segments(unquote(parts.path), url, durable)
    if scheme == "memory" and parts.path in ("", "/"):
        return MemoryStores()
    raise InvalidSetting(f"storage {url!r}: {_EXPECTED}")


def _segments(path: str, url: str, durable: bool) -> SegmentStores:
    # Where nothing is synced, a journal would only write everything twice.
    return SegmentStores(
        _files(path, url, durable),
        open_files_max=_open_files_max(),
        journal_bytes=_JOURNAL_BYTES if durable else 0,
    )


def _open_files_max() -> int:
    # Two files of each group that is written to are wanted at hand; sockets need the other half.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(soft // 2, _OPEN_FILES_LEAST), _OPEN_FILES_MOST)


def _files(path: str, url: str, durable: bool) -> RealFiles:
    if not path or "\0" in path:
        raise InvalidSetting(f"storage {url!r}: {_EXPECTED}")
    try:
        # Whoever forgets a vote gives it twice: then there are two leaders, whatever may be lost. It changes
        # only with elections, so to wait for it costs next to nothing.
        files = RealFiles(path, durable=durable, synced=(STATE_NAME,))
        files.lock()
    except OSError as error:
        raise InvalidSetting(f"storage {url!r}: the directory cannot be used: {error}") from error
    return files
