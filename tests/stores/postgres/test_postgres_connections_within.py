"""Commands that are part of a transaction of the user's own."""

import asyncio
import time
from typing import Any

import psycopg
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Failed, Granted, Inspect, Refused, Release, Released, Status
from dibs.runtime.port import step
from dibs.stores.postgres import PostgresStore
from tests.stores.postgres.connections_help import KEY, Room, acquire, say


@pytest.fixture
def store(postgres_url: str) -> PostgresStore:
    store = PostgresStore(postgres_url)
    store.migrate()
    return store


def test_a_lease_of_a_transaction_stands_when_it_commits(
    store: PostgresStore, postgres_url: str
) -> None:
    async def body(room: Room) -> None:
        other = await room.connect()
        with psycopg.connect(postgres_url) as connection:
            connection.execute("CREATE TABLE orders (number integer)")
            connection.commit()
            within = store.within(connection)
            connection.execute("INSERT INTO orders VALUES (1)")
            granted = await say(within, acquire("a"))
            assert isinstance(granted, Granted)
            busy, free = await other.apply([acquire("b"), acquire("b", b"lock:free")])
            assert isinstance(busy, Failed)
            assert busy.reason == "busy"
            assert isinstance(free, Granted), "and nobody else is held up"
            connection.commit()
            refused = await say(other, acquire("b"))
            assert isinstance(refused, Refused)
            assert [holder.token for holder in refused.holders] == [granted.token]
            assert await say(within, Release(KEY, "a")) == Released()
            connection.commit()
            assert isinstance(await say(other, acquire("b")), Granted)

    Room("blocking", postgres_url).run(body)


def test_a_busy_key_is_told_soon(store: PostgresStore, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        other = await room.connect()
        with psycopg.connect(postgres_url) as connection:
            await say(store.within(connection), acquire("a"))
            began = time.monotonic()
            assert isinstance(await say(other, acquire("b")), Failed)
            assert time.monotonic() - began < 1.5
            connection.rollback()

    Room("blocking", postgres_url).run(body)


def test_a_lease_that_rolls_back_never_was(store: PostgresStore, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        other = await room.connect()
        with psycopg.connect(postgres_url) as connection:
            assert isinstance(await say(store.within(connection), acquire("a")), Granted)
            connection.rollback()
        status = await say(other, Inspect(KEY))
        assert isinstance(status, Status)
        assert status.holders == ()

    Room("blocking", postgres_url).run(body)


def test_in_a_loop_likewise(store: PostgresStore, postgres_url: str) -> None:
    async def body(room: Room) -> None:
        other = await room.connect()
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            within = store.within(connection)
            async with connection.transaction():
                assert isinstance(await say(within, acquire("a")), Granted)
                busy = await say(other, acquire("b"))
                assert isinstance(busy, Failed)
            assert isinstance(await say(other, acquire("b")), Refused)

    Room("async", postgres_url).run(body)


def test_the_users_own_settings_don_t_matter(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(
        postgres_url, row_factory=psycopg.rows.dict_row, options="-c search_path=nowhere"
    ) as connection:
        (granted,) = step(store.within(connection).apply([acquire("a", note="é%s$1")]))
        assert isinstance(granted, Granted)


def test_a_failed_transaction_says_so(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        with pytest.raises(BackendUnavailable, match="25P02"):
            step(store.within(connection).apply([acquire("a")]))
        connection.rollback()
        connection.close()
        with pytest.raises(BackendUnavailable, match="broke"):
            step(store.within(connection).apply([acquire("a")]))


def test_a_users_transaction_grants_nobody_else(store: PostgresStore, postgres_url: str) -> None:
    """A hold has expired, and the next waiter would hear of its grant after the commit only."""

    async def body(room: Room) -> None:
        waiter: Any = await room.connect()
        await say(waiter, acquire("a", ttl=0.2))
        await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
        await asyncio.sleep(0.3)
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            refused = await say(store.within(connection), acquire("c"))
            assert isinstance(refused, Refused), "it passes no queue"
            assert refused.holders == ()
            await connection.commit()
        assert list(await waiter.notifications(0.1)) == []
        assert isinstance(await say(waiter, acquire("b", queue=True)), Granted)

    Room("async", postgres_url).run(body)
