"""The metadata store, asked in threads: its calls block, and a manager does not."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

from talweg.errors import InvalidSetting, MetadataUnavailable
from talweg.metadata import MetadataStore, open_metadata

T = TypeVar("T")

_THREADS: Final = 4
_LAST_CALLS_SECONDS: Final = 1.0  # that calls under way have when the manager stops
_LOOK_SECONDS: Final = 0.01
_SQLITE: Final = "sqlite:///"


class StoreCalls:
    """Opens the store when it is first needed, and again at the next call if that failed."""

    def __init__(
        self, url: str, *, seconds_max: float, open_store: Callable[[str], MetadataStore] = open_metadata
    ) -> None:
        self._url = url
        self._open_store = open_store
        self._seconds_max = seconds_max
        self._store: MetadataStore | None = None
        self._opening = threading.Lock()
        self._under_way: set[object] = set()  # calls that a thread is making; changed by threads
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="talweg-metadata")
        # The lease has a thread of its own: it must not wait behind calls that hang.
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix="talweg-lease")

    async def call(self, ask: Callable[[MetadataStore], T]) -> T:
        """What the store answers. Raises what it raises, and MetadataUnavailable if it takes too long;
        then a change may or may not happen."""
        return await self._run(self._threads, ask, self._seconds_max)

    async def call_for_lease(self, ask: Callable[[MetadataStore], T], *, seconds_max: float) -> T:
        """The same for the lease, which has less time."""
        return await self._run(self._lease_thread, ask, min(seconds_max, self._seconds_max))

    async def _run(
        self, threads: ThreadPoolExecutor, ask: Callable[[MetadataStore], T], seconds_max: float
    ) -> T:
        try:
            async with asyncio.timeout(seconds_max):
                return await asyncio.get_running_loop().run_in_executor(threads, self._ask, ask)
        except TimeoutError:
            raise MetadataUnavailable("the metadata store did not answer in time") from None

    def _ask(self, ask: Callable[[MetadataStore], T]) -> T:
        this = object()
        self._under_way.add(this)
        try:
            return self._ask_opened(ask)
        finally:
            self._under_way.discard(this)

    def _ask_opened(self, ask: Callable[[MetadataStore], T]) -> T:
        with self._opening:
            if self._store is None:
                if self._url.startswith(_SQLITE):
                    path = unquote(self._url.removeprefix(_SQLITE).partition("?")[0])
                    _make_directory(Path(path).parent)
                self._store = self._open_store(self._url)
        return ask(self._store)

    async def close(self) -> None:
        """Let go of it. Calls under way have a moment to end; those that hang are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._lease_thread.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _LAST_CALLS_SECONDS
        # A connection that is in use when the store is closed would never be closed itself.
        while self._under_way and time.monotonic() < deadline:  # noqa: ASYNC110 - threads have no event of ours
            await asyncio.sleep(_LOOK_SECONDS)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"the directory {directory} cannot be made: {error.strerror}") from error
