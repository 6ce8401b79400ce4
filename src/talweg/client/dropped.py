"""Clients that were not closed, and that nobody can close any more: that is said, and they end by themselves.

Called by `__del__`, in any thread and at any moment. So what is to be done is only begun here, where it can
wait and be waited for: in a thread of its own, or in the client's event loop.
"""

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from talweg.client.background import Background
from talweg.errors import TalwegError

Work = Callable[[], Coroutine[Any, Any, None]]

EXIT_SECONDS_MAX: Final = 10.0  # to deliver what is left

_ending: Final[set[asyncio.Task[None]]] = set()  # event loops do not keep their tasks


def end_in_thread(client: object, name: str, background: Background, work: Work) -> None:
    """Of a client that blocks: the thread behind it would live on. It ends when the work is done."""
    if not sys.is_finalizing():
        threading.Thread(target=_end, args=(background, work), name="talweg end").start()
        _complain(client, name)


def _end(background: Background, work: Work) -> None:
    with suppress(TalwegError):
        background.run(work())
    background.close()


def end_in_loop(
    client: object,
    name: str,
    loop: asyncio.AbstractEventLoop,
    work: Work,
    after: Callable[[], None] = lambda: None,  # called when it is done, or cannot be any more
) -> bool:
    """Of a client in an event loop: its tasks would go on, and its connections stay. False: the loop is gone.
    Not for a fork of the process that it was made in: the loop is that one's."""
    if sys.is_finalizing() or loop.is_closed():
        return False
    if asyncio._get_running_loop() is loop:
        _begin(
            loop, work, after
        )  # at once: the loop may be about to end, and what has begun is ended in order
    else:
        try:
            loop.call_soon_threadsafe(_begin, loop, work, after)
        except RuntimeError:  # it was closed at this very moment
            return False
    _complain(client, name)
    return True


def _begin(loop: asyncio.AbstractEventLoop, work: Work, after: Callable[[], None]) -> None:
    task = loop.create_task(work())
    _ending.add(task)
    task.add_done_callback(partial(_ended, after))


def _ended(after: Callable[[], None], task: asyncio.Task[None]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # looked at: there is nobody to be told
    after()


def _complain(client: object, name: str) -> None:
    warnings.warn(f"{name} was not closed", ResourceWarning, source=client, stacklevel=3)
