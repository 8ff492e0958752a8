"""Who hands one key on through etcd, and one write to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.contestants.etcd_peers import TTL, aetcd_client, etcd_client, gateway, name
from benchmarks.contestants.grabbing import Grab, Release
from benchmarks.place import Place


@asynccontextmanager
async def put(place: Place) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """One transaction by the JSON gateway: compare a revision, write a value."""
    yield gateway(place)("one-write")


@asynccontextmanager
async def aetcd(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    async with aetcd_client(place) as client:

        async def grab() -> Release:
            lock = client.lock(name(place, "baton").encode(), ttl=TTL)
            await lock.acquire(timeout=None)
            release: Release = lock.release
            return release

        yield lambda number: grab


@asynccontextmanager
async def etcd_client_py(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    lock_of = etcd_client(place)

    async def grab() -> Release:
        lock = lock_of("baton")
        await lock.__aenter__()

        async def release() -> None:
            await lock.__aexit__(None, None, None)

        return release

    yield lambda number: grab
