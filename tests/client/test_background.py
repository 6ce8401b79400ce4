"""The thread behind clients that block."""

import asyncio
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from talweg.client import background as background_module
from talweg.client import exits
from talweg.client.background import Background
from talweg.client.delivery import callbacks_lock
from talweg.errors import Unavailable


def test_what_is_begun_when_it_is_closed_is_refused() -> None:
    background = Background("test")
    assert background.run(asyncio.sleep(0, "done")) == "done"
    waiting = background.begin(asyncio.sleep(60))
    background.close()
    background.close()
    assert waiting.cancelled()
    with pytest.raises(Unavailable, match="closed"):
        background.run(asyncio.sleep(0))


def test_closing_while_others_begin_leaves_nobody_waiting() -> None:
    for _ in range(50):
        background = Background("test")
        ended = threading.Event()

        def begin(background: Background = background, ended: threading.Event = ended) -> None:
            try:
                while True:
                    background.run(asyncio.sleep(0))
            except BaseException:  # noqa: BLE001 - cancelled, or refused
                ended.set()

        threading.Thread(target=begin, daemon=True).start()
        background.close()
        assert ended.wait(10)


def test_a_fork_has_no_thread() -> None:
    background = Background("test")
    child = os.fork()
    if child == 0:
        try:
            background.run(asyncio.sleep(0))
        except Unavailable as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    background.close()
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_fork_waits_for_no_lock_of_a_thread_that_it_does_not_have() -> None:
    assert exits  # with producers, it is loaded, and sees to the lock of their deliveries
    background = Background("test")
    begun, forking, forked = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with background._lock:
            with callbacks_lock:
                begun.set()
                forking.wait()
                time.sleep(0.1)  # the fork has begun, or waits for us
            forked.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    begun.wait()
    forking.set()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if callbacks_lock.acquire(timeout=10):
                signal.alarm(10)  # ends it if one of these waits
                background.close()
                background.run(asyncio.sleep(0))
        except Unavailable:
            code = 7
        finally:
            os._exit(code)
    forked.set()
    holding.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    background.close()


def test_what_is_being_done_when_it_is_closed_is_refused() -> None:
    background = Background("test")
    begun = threading.Event()
    told: list[BaseException] = []

    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    def wait() -> None:
        try:
            background.run(work())
        except Unavailable as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(10)
    background.close()
    waiting.join(10)
    assert "closed meanwhile" in str(told[0])


def test_what_takes_too_long_is_cancelled() -> None:
    background = Background("test")
    work = Work()
    with pytest.raises(TimeoutError):
        background.run(work.do(), 0.01)
    background.run(others_are_done())
    assert work.ended == work.begun
    background.close()


class Work:
    """Takes for ever; knows whether it was begun, and whether it was ended."""

    def __init__(self) -> None:
        self.begun = self.ended = False

    async def do(self) -> None:
        self.begun = True
        try:
            await asyncio.sleep(60)
        finally:
            self.ended = True


async def others_are_done() -> None:
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.001)


class Interrupt:
    """Raises KeyboardInterrupt in this thread, at its n-th step through the code that submits and waits."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != background_module.__file__:
            return None
        if event == "exception":  # time is up: what it does about that is another matter
            self.left = 0
        # Inside `run` each line; elsewhere before and after each call. (Not each line: Python itself lets no
        # interrupt in between taking a lock and the block that gives it back.)
        if event in ("call", "return") or (event == "line" and frame.f_code.co_name == "run"):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_step_leaves_nothing_running() -> None:
    background = Background("test")
    step = 0
    while True:
        step += 1
        work = Work()
        coroutine = work.do()
        interrupt = Interrupt(step)
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            background.run(coroutine, 0.2)
        except KeyboardInterrupt:
            pass
        except TimeoutError:  # it came as far as that, and nothing came between
            break
        finally:
            sys.settrace(before)
        background.run(others_are_done())
        assert work.ended == work.begun
        coroutine.close()  # if it was never given away
    assert step > 10
    background.close()
