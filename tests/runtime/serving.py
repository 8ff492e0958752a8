"""Applications that count their requests under a lock: `app` for ASGI, `wsgi` for WSGI.

Importing it makes a client of the store in $LEASES, uses it in both worlds, and takes the lock `master`:
with `--preload` that is the master's doing, before it forks its workers.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dibs
import dibs.sync

COUNTER = Path(os.environ["COUNTER"])
client = dibs.sync.connect(os.environ["LEASES"])
tasks = dibs.Client(client.session)
counter, counter_of_tasks = client.lock("counter", ttl=5), tasks.lock("counter", ttl=5)


async def use_it() -> None:
    async with tasks.lock("warm") as lease:
        await lease.renew()


master = None
if os.environ.get("MASTER"):
    asyncio.run(use_it())
    master = client.lock("master", ttl=1).acquire()


def served(lease: "dibs.Lease | dibs.sync.Lease") -> bytes:
    """Count, and tell who did it; reading and writing are apart, so only the lock keeps it right."""
    COUNTER.write_text(str(int(COUNTER.read_text()) + 1))
    lost = None if master is None else master.lost
    answer = {"pid": os.getpid(), "owner": lease.owner, "token": lease.token, "master_lost": lost}
    return json.dumps(answer).encode()


async def app(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    while scope["type"] == "lifespan":
        message = (await receive())["type"]
        if message == "lifespan.shutdown":
            await tasks.close()
        await send({"type": f"{message}.complete"})
        if message == "lifespan.shutdown":
            return
    async with counter_of_tasks as lease:
        body = served(lease)
        await asyncio.sleep(0)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
    with counter as lease:
        body = served(lease)
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
