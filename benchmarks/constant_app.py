"""The bare framework: what answers two requests with a constant, as a process of its own.

`python -m benchmarks.constant_app` prints its port, and ends when its input does.
"""

import asyncio
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dibs.server.main import new_loop

HELD = b'{"id":"an-id-of-24-characters..","sequencer":1763721600000000}'
OK = b'"OK"'


async def _acquire(request: Request) -> Response:
    return Response(HELD, media_type="application/json")


async def _release(request: Request) -> Response:
    return Response(OK, media_type="application/json")


APP = Starlette(
    routes=[
        Route("/v1/locks/{name}", _acquire, methods=["POST"]),
        Route("/v1/locks/{name}", _release, methods=["DELETE"]),
    ]
)


async def main() -> None:
    config = uvicorn.Config(APP, port=0, http="httptools", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:  # as `dibs serve`
        runner.run(main())
