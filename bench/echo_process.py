"""The bare handler that Talweg is compared with: Starlette on uvicorn, and all it does is echo the body.

Run as `python -m bench.echo_process PORT`.
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.serving import end_with_standard_input


async def echo(request: Request) -> Response:
    """The body, as it came."""
    return Response(await request.body(), media_type="application/json")


application = Starlette(routes=[Route("/producer/produce", echo, methods=["POST"])])

if __name__ == "__main__":
    end_with_standard_input()
    uvicorn.run(
        application,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
