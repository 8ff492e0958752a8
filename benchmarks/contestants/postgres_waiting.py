"""Who hands one key on through PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from benchmarks.contestants.grabbing import BlockingGrab, Grab, grabbing
from benchmarks.place import Place


@contextmanager
def advisory(place: Place) -> Iterator[Callable[[int], BlockingGrab]]:
    """`pg_advisory_lock` waits inside the server: a connection for each waiter, no lease, no token."""
    import psycopg

    with ExitStack() as connections:

        def grab_for(number: int) -> BlockingGrab:
            db = connections.enter_context(psycopg.connect(place.server_url, autocommit=True))
            cursor = db.cursor()

            def release() -> None:
                cursor.execute(b"SELECT pg_advisory_unlock(1)", prepare=True)

            def grab() -> Callable[[], object]:
                cursor.execute(b"SELECT pg_advisory_lock(1)", prepare=True)
                return release

            return grab

        yield grab_for


@asynccontextmanager
async def grelmicro(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    from grelmicro.sync import Lock
    from grelmicro.sync.postgres import PostgresSyncBackend

    async with PostgresSyncBackend(place.server_url) as backend:
        yield lambda number: grabbing(Lock("baton", backend=backend))
