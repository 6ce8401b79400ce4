"""One server in this process: from its start to its clean stop, with its log on standard error.

It prints one line when it is ready: its endpoint. The first SIGINT, SIGTERM or SIGHUP stops it cleanly,
the second ends it at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import uvloop

from talweg.cli.complaints import EXIT_FAILED, complain, told
from talweg.config import ProcessSettings
from talweg.errors import TalwegError, Unavailable

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAUSE_SECONDS: Final = 0.2  # before the second attempt to start; doubles with each
_PAUSE_SECONDS_MAX: Final = 5.0
_ORPHAN_SECONDS_MAX: Final = 10.0  # for a server to stop whose parent is gone

_log = logging.getLogger("talweg.cli")


class RunnableServer(Protocol):
    """What a broker and a manager have in common for whoever runs them."""

    @property
    def endpoint(self) -> str:
        """Its URL, once it has started."""

    async def start(self) -> None:
        """Serve. One that raises leaves nothing behind; Unavailable says that trying again may help."""

    async def stop(self) -> None:
        """Stop cleanly."""


def run_server(
    name: str, make: Callable[[], RunnableServer], settings: ProcessSettings, *, attached: bool = False
) -> None:
    """Run a server until it is told to stop. Ends the process; `attached` also when standard input ends."""
    log_to_stderr(settings.log_level)
    if attached:
        threading.Thread(target=_stop_when_input_ends, name="attached", daemon=True).start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_run(name, make))
    except (TalwegError, OSError) as error:
        code = complain(error)
    sys.exit(code)


def log_to_stderr(level: str) -> None:
    """Lines with time (UTC) and level."""
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


async def _run(name: str, make: Callable[[], RunnableServer]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _on_signal, number, stop)
    server = await _start(make, stop)
    if server is None:
        return 0
    code = 0
    try:
        print(f"talweg {name} ready at {server.endpoint}", flush=True)  # noqa: T201 - for whoever waits for it
        code = await _until_it_ends(server, stop)
    finally:
        await server.stop()
    _log.info("stopped")
    return code


async def _start(make: Callable[[], RunnableServer], stop: asyncio.Event) -> RunnableServer | None:
    """A server that has started; None if it was told to stop before. Waits for what is not there yet."""
    stopping = asyncio.ensure_future(stop.wait())
    pause = _PAUSE_SECONDS
    try:
        while not stopping.done():
            server = make()
            starting = asyncio.ensure_future(server.start())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()  # means nothing to one that is done
            await asyncio.wait({starting})
            if starting.cancelled():
                break
            error = starting.exception()
            if error is None:
                return server
            if not isinstance(error, Unavailable):
                raise error
            _log.warning("cannot start yet: %s; trying again in %.1f s", told(error), pause)
            await asyncio.wait({stopping}, timeout=pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        return None
    finally:
        stopping.cancel()


async def _until_it_ends(server: RunnableServer, stop: asyncio.Event) -> int:
    """Until it is told to stop (0), or cannot go on."""
    stopping = asyncio.ensure_future(stop.wait())
    failed: asyncio.Future[Any] | None = getattr(server, "failed", None)
    ends: set[asyncio.Future[Any]] = {stopping} if failed is None else {stopping, failed}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed is None or not failed.done() or stop.is_set():
        return 0
    reason = failed.exception() or failed.result()
    _log.error("cannot go on: %s", told(reason) if isinstance(reason, TalwegError | OSError) else reason)
    return EXIT_FAILED


def _on_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():
        _log.warning("%s again: ending at once", number.name)
        os._exit(128 + number)
    _log.info("%s: stopping", number.name)
    stop.set()


def _stop_when_input_ends() -> None:
    """Whoever started us holds the other end of a pipe, and lets go of it when it dies, however it dies."""
    with contextlib.suppress(OSError):  # no standard input at all is one that has ended
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_SECONDS_MAX)
    os._exit(EXIT_FAILED)
