"""Who hands one key on through PostgreSQL, and the least that a durable hand-off through it can cost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

from benchmarks.contestants.grabbing import BlockingGrab, Grab, Release, grabbing
from benchmarks.place import Place

BARE = """
    CREATE TABLE IF NOT EXISTS baton (one int PRIMARY KEY, holder text) WITH (fillfactor = 50);
    INSERT INTO baton VALUES (1, '') ON CONFLICT DO NOTHING;
    CREATE TABLE IF NOT EXISTS baton_queue (n bigserial PRIMARY KEY, waiter text);
    CREATE OR REPLACE FUNCTION take_baton(waiter text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE baton SET holder = CASE holder WHEN '' THEN waiter ELSE holder END WHERE one = 1;
        IF (SELECT holder FROM baton WHERE one = 1) = waiter THEN
            RETURN true;
        END IF;
        INSERT INTO baton_queue (waiter) VALUES (take_baton.waiter);
        RETURN false;
    END $$;
    CREATE OR REPLACE FUNCTION give_baton() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        heir baton_queue;
    BEGIN
        PERFORM FROM baton WHERE one = 1 FOR UPDATE;
        SELECT * INTO heir FROM baton_queue ORDER BY n LIMIT 1;
        DELETE FROM baton_queue WHERE n = heir.n;
        UPDATE baton SET holder = coalesce(heir.waiter, '') WHERE one = 1;
        IF heir.waiter <> '' THEN
            PERFORM pg_notify(split_part(heir.waiter, '/', 1), heir.waiter);
        END IF;
    END $$"""


@asynccontextmanager
async def direct(place: Place) -> AsyncIterator[Callable[[int], Grab]]:
    """Functions that queue, grant the next and notify it: durable, as any commit, and no more."""
    import psycopg

    loop = asyncio.get_running_loop()
    waiting: dict[str, asyncio.Future[None]] = {}
    one_at_a_time = asyncio.Lock()
    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(place.server_url, autocommit=True) as db,
        await connect(place.server_url, autocommit=True) as ears,
    ):
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(1)")
            await db.execute(BARE)
        await ears.execute(f"LISTEN p{place.process}".encode())
        cursor, heard = db.cursor(), ears.pgconn

        def hear() -> None:
            heard.consume_input()
            while (note := heard.notifies()) is not None:
                waiting.pop(note.extra.decode()).set_result(None)

        async def say(statement: bytes, *values: str) -> Any:
            async with one_at_a_time:
                await cursor.execute(statement, values, prepare=True)
                return await cursor.fetchone()

        async def release() -> None:
            await say(b"SELECT give_baton()")

        def grab_for(number: int) -> Grab:
            me = f"p{place.process}/{number}"

            async def grab() -> Release:
                turn = waiting[me] = loop.create_future()
                if (await say(b"SELECT take_baton(%s)", me))[0]:
                    waiting.pop(me)
                else:
                    await turn
                return release

            return grab

        loop.add_reader(heard.socket, hear)
        yield grab_for
        loop.remove_reader(heard.socket)


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
    from grelmicro.coordination import Lock
    from grelmicro.coordination.postgres import PostgresLockAdapter
    from grelmicro.providers.postgres import PostgresProvider

    async with (
        PostgresProvider(place.server_url) as provider,
        PostgresLockAdapter(provider=provider) as backend,
    ):
        yield lambda number: grabbing(Lock("baton", backend=backend))
