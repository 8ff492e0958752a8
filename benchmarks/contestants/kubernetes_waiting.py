"""Who hands one key on through Kubernetes, and one PUT to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.contestants.grabbing import Grab, grabbing
from benchmarks.contestants.kubernetes_peers import api_server, grelmicro_backend
from benchmarks.place import Place


@asynccontextmanager
async def put(place: Place) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """One PUT of a Lease that has to be of a known version."""
    yield api_server(place)("one-put")


@asynccontextmanager
async def grelmicro(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    from grelmicro.coordination import Lock

    async with grelmicro_backend(place) as backend:
        yield lambda number: grabbing(Lock("baton", backend=backend))
