"""Locks on PostgreSQL by others, as their manuals show them, and the bare statements beneath."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from benchmarks.contestants.kinds import (
    Async,
    AsyncRun,
    Blocking,
    Contestant,
    Run,
    blocking_cycles,
    cycles,
)
from benchmarks.place import Place

TABLE = """CREATE TABLE IF NOT EXISTS bare (key text PRIMARY KEY, id text, expires float8)
    WITH (fillfactor = 50)"""
TAKE = """INSERT INTO bare VALUES (%s, %s, extract(epoch FROM clock_timestamp()) + 30)
    ON CONFLICT (key) DO UPDATE SET id = excluded.id, expires = excluded.expires
    WHERE bare.expires < extract(epoch FROM clock_timestamp()) RETURNING id"""
GIVE = "UPDATE bare SET expires = 0 WHERE key = %s AND id = %s"


@asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    """A prepared conditional upsert and an update on one connection, one after the other: the limit of
    what does not batch.
    """
    import psycopg

    async with await psycopg.AsyncConnection.connect(place.server_url, autocommit=True) as db:
        await db.execute(TABLE)
        cursor, one_at_a_time = db.cursor(), asyncio.Lock()

        async def say(statement: str, *values: str) -> None:
            async with one_at_a_time:
                await cursor.execute(statement.encode(), values, prepare=True)

        def on(key: str) -> AsyncRun:
            async def run(n: int) -> None:
                for _ in range(n):
                    await say(TAKE, key, "mine")
                    await say(GIVE, key, "mine")

            return run

        yield on


@contextmanager
def _advisory(place: Place) -> Iterator[Callable[[str], Run]]:
    """Session advisory locks: no lease, no token, and not through a transaction pooler."""
    import psycopg

    with psycopg.connect(place.server_url, autocommit=True) as db:
        cursor = db.cursor()

        def on(key: str) -> Run:
            def run(n: int) -> None:
                for _ in range(n):
                    cursor.execute(
                        b"SELECT pg_try_advisory_lock(hashtext(%s))", (key,), prepare=True
                    )
                    cursor.execute(b"SELECT pg_advisory_unlock(hashtext(%s))", (key,), prepare=True)

            return run

        yield on


@asynccontextmanager
async def _grelmicro(place: Place) -> AsyncIterator[Callable[[str], AsyncRun]]:
    from grelmicro.coordination import Lock
    from grelmicro.coordination.postgres import PostgresLockAdapter
    from grelmicro.providers.postgres import PostgresProvider

    async with (
        PostgresProvider(place.server_url) as provider,
        PostgresLockAdapter(provider=provider) as backend,
    ):
        yield lambda key: cycles(Lock(key, backend=backend))


@contextmanager
def _tooz(place: Place) -> Iterator[Callable[[str], Run]]:
    from tooz import coordination

    coordinator: Any = coordination.get_coordinator(place.server_url, b"benchmark")
    coordinator.start(start_heart=False)
    yield lambda key: blocking_cycles(coordinator.get_lock(key.encode()))
    coordinator.stop()


CYCLES: dict[str, Contestant] = {
    "bare Postgres pair": Async(_bare),
    "advisory lock, sync": Blocking(_advisory),
    "grelmicro postgres": Async(_grelmicro),
    "tooz postgres, sync": Blocking(_tooz),
}
