"""Dibs itself, in both worlds, on every store."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import partial

import dibs
import dibs.sync
from benchmarks.contestants.family import family
from benchmarks.contestants.kinds import Async, AsyncRun, Blocking, Contestant, Run
from benchmarks.place import Place

type AsyncOpen = Callable[[Place], AbstractAsyncContextManager[Callable[[str], AsyncRun]]]
type BlockingOpen = Callable[[Place], AbstractContextManager[Callable[[str], Run]]]


def _url(store: str, place: Place) -> str:
    if store == "memory":
        return "memory://bench"
    return place.sqlite_url if store == "sqlite" else place.server_url


def _acquiring(store: str) -> AsyncOpen:
    @asynccontextmanager
    async def open_(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
        async with dibs.connect(_url(store, place)) as client:

            def on(key: str) -> AsyncRun:
                lock = client.lock(key)

                async def run(n: int) -> None:
                    for _ in range(n):
                        lease = await lock.acquire()
                        await lease.release()

                return run

            yield on

    return open_


def _entering(store: str) -> AsyncOpen:
    @asynccontextmanager
    async def open_(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
        async with dibs.connect(_url(store, place)) as client:

            def on(key: str) -> AsyncRun:
                lock = client.lock(key)

                async def run(n: int) -> None:
                    for _ in range(n):
                        async with lock:
                            pass

                return run

            yield on

    return open_


def _blocking(store: str) -> BlockingOpen:
    @contextmanager
    def open_(place: Place) -> Iterator[Callable[[str], Run]]:
        with dibs.sync.connect(_url(store, place)) as client:

            def on(key: str) -> Run:
                lock = client.lock(key)

                def run(n: int) -> None:
                    for _ in range(n):
                        lock.acquire().release()

                return run

            yield on

    return open_


CYCLES: dict[str, Contestant] = {
    name: contestant
    for store in ("memory", "sqlite", "redis", "postgres", "service", "etcd", "kubernetes")
    for name, contestant in {
        **family(store, partial(_url, store)),
        f"dibs {store}": Async(_acquiring(store)),
        f"dibs {store}, async with": Async(_entering(store)),
        f"dibs {store}, sync": Blocking(_blocking(store)),
        f"dibs {store}, uvloop": Async(_acquiring(store), uvloop=True),
    }.items()
}
