"""Producers that nobody closed: what they accepted is delivered at exit; in a fork they are of no use."""

import atexit
import os
from typing import Protocol

from talweg.client.delivery import callbacks_lock


class Unclosed(Protocol):
    """What has to be seen to."""

    @property
    def lock(self) -> "Lock":
        """Held by whoever sends."""

    def finish(self) -> None:
        """The interpreter ends."""

    def abandon(self) -> None:
        """This is a fork; the lock is not held."""


class Lock(Protocol):
    """A lock that must not be held by a thread that a fork does not have."""

    def acquire(self) -> object:
        """Take it."""

    def release(self) -> None:
        """Let it go."""


_unclosed: dict[Unclosed, None] = {}  # in the order in which they were made
_held: list[Unclosed] = []  # whose locks are held for a fork


def enlist(unclosed: Unclosed) -> None:
    """See to it, until it is discharged."""
    _unclosed[unclosed] = None


def discharge(unclosed: Unclosed) -> None:
    """It sees to itself."""
    _unclosed.pop(unclosed, None)


@atexit.register
def _finish_all() -> None:
    while _unclosed:
        unclosed = next(iter(_unclosed))
        try:
            unclosed.finish()
        finally:
            discharge(unclosed)


def _before_fork() -> None:
    _held[:] = _unclosed
    for each in _held:
        each.lock.acquire()
    callbacks_lock.acquire()


def _after_in_parent() -> None:
    callbacks_lock.release()
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    forked = list(_held)
    _after_in_parent()
    for each in forked:
        each.abandon()
        discharge(each)


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
