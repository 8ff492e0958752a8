"""The lock service as anything that speaks HTTP uses it, and the framework below it that answers a constant.

Each task has a connection of its own, kept alive, and sends two requests a cycle.
"""

import asyncio
import json
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.contestants.kinds import Async, AsyncRun, Contestant, Program
from benchmarks.place import Place
from dibs.stores.http.aio import AsyncHttpLink, dial
from dibs.stores.http.url import HttpSettings, read_url


def request(settings: HttpSettings, method: str, path: str, length: int = 0) -> bytes:
    """What is sent, with the key; a body of `length` bytes has to follow."""
    key = settings.find_key()
    login = f"authorization: Bearer {key.secret}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: {settings.authority}\r\n{login}"
    return f"{head}content-length: {length}\r\n\r\n".encode()


def _pairs(settings: HttpSettings) -> Callable[[str], AsyncRun]:
    """Acquire and release by the locks' own routes."""

    def on(key: str) -> AsyncRun:
        name = f"plain/{key}".encode()  # others warm up at the same time, on the same service
        path = f"/v1/locks/base64:{urlsafe_b64encode(name).decode().rstrip('=')}"
        acquire = request(settings, "POST", f"{path}?client-id=bench&ttl=30")
        before, after = request(settings, "DELETE", f"{path}?id=*").split(b"*")
        link: AsyncHttpLink | None = None

        async def run(n: int) -> None:
            nonlocal link
            if link is None:
                link = await dial(settings)
            for _ in range(n):
                held = await link.ask(acquire)
                assert held.status in (200, 201), held
                lease = json.loads(held.body)["id"].encode()
                freed = await link.ask(before + lease + after)
                assert freed.status in (200, 204), freed

        return run

    return on


@asynccontextmanager
async def _service(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    yield _pairs(read_url(place.server_url))


@asynccontextmanager
async def _constant(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.constant_app"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    port = int(await asyncio.to_thread(server.stdout.readline))
    try:
        yield _pairs(read_url(f"http://127.0.0.1:{port}"))
    finally:
        await asyncio.to_thread(server.communicate)


def _rust(place: Place, tasks: int, seconds: float) -> list[str | Path]:
    """The Rust SDK. Each task has a lock; all share connections."""
    from tests.sdk.cargo import built

    worker = built("bench_worker", release=True)
    return [worker, place.server_url, str(tasks), str(seconds)]


CYCLES: dict[str, Contestant] = {
    "plain HTTP to the service": Async(_service),
    "bare framework pair": Async(_constant),
    "Rust SDK": Program(_rust),
}
