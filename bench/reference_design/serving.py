"""How both kinds of process are started and served: alike, and with a thread for each connection."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio.to_thread
import msgspec
import uvicorn
from fastapi import FastAPI

from bench.serving import end_with_standard_input

THREADS: Final = 64  # as many as the benchmark has connections; as it comes there are 40

M = TypeVar("M", bound=msgspec.Struct)


def settings_from_argument(kind: type[M]) -> M:
    """What this process was told, as JSON, in its only argument."""
    return msgspec.json.decode(sys.argv[1], type=kind)


def new_application() -> FastAPI:
    """One that answers nothing yet."""
    return FastAPI(lifespan=_with_threads)


def serve(application: FastAPI, port: int) -> None:
    """Answer until standard input ends."""
    end_with_standard_input()
    uvicorn.run(
        application, port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )


@asynccontextmanager
async def _with_threads(_: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield
