"""Behind a pooler: nothing can be pushed there, and no session is ours."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.model import Granted, Inspect, Release, Released
from dibs.stores.postgres import PostgresStore
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.database import Traced, admin, say, wire_of
from tests.stores.sides import KEY, Side, acquire, both_sides


@pytest.fixture
def pooled(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """A database through a pooler that changes server connections with every transaction."""
    with PgBouncer(tmp_path / "pooler", postgres_server, pool_size=3) as pooler:
        yield pooler.url_of(postgres_url)


@pytest.fixture
def by_session(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """A database through a pooler that lends a server connection for a session."""
    with PgBouncer(tmp_path / "pooler", postgres_server, pool_mode="session") as pooler:
        yield pooler.url_of(postgres_url)


@both_sides
async def test_behind_a_transaction_pooler_nobody_listens(
    side: Side, pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(pooled)
    with caplog.at_level(logging.WARNING, "dibs"):
        for _ in range(2):
            connection = await side.open(store)
            assert connection.inbox == ""
            assert list(await connection.notifications(0.01)) == []
            if side.mode == "blocking":
                connection.wake()
                assert list(await connection.notifications(30)) == []
    assert len([line for line in caplog.messages if "transaction pooler" in line]) == 1


@both_sides
async def test_commands_work_whatever_server_connection_they_get(side: Side, pooled: str) -> None:
    store = PostgresStore(pooled)
    backends = [await side.open(store) for _ in range(5)]
    keys = [b"lock:%d" % number for number in range(15)]
    for number, key in enumerate(keys):
        backend, other = backends[number % 5], backends[(number + 3) % 5]
        assert isinstance(await say(backend, acquire("a", key)), Granted)
        assert await say(other, Release(key, "a")) == Released()
    with Traced(wire_of(backends[0])) as seen:
        await say(backends[0], acquire("b"))
    assert (seen.sent("Sync"), seen.sent("Parse")) == (1, 1), "one round trip here, too"


@both_sides
async def test_sessions_of_others_are_left_as_they_are(side: Side, pooled: str) -> None:
    await say(await side.open(pooled), acquire("a"))
    await side.close()
    with admin(pooled) as connection:
        for _ in range(6):
            shown = connection.execute(
                "SELECT current_setting('statement_timeout'), current_setting('jit'),"
                " (SELECT count(*) FROM pg_listening_channels()),"
                " (SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'dibs%')"
            ).fetchone()
            assert shown == ("0", "on", 0, 0)


def test_waiters_behind_a_pooler_are_served_in_turn(pooled: str) -> None:
    """Both worlds wait for one key, by asking."""
    order: list[str] = []

    async def wait(client: dibs.Client, name: str) -> None:
        async with client.lock("x", ttl=10):
            order.append(name)
            await asyncio.sleep(0.05)

    async def body() -> None:
        async with dibs.connect(pooled) as client:
            lease = await client.lock("x", ttl=10).acquire()
            tasks = []
            for name in "abc":
                tasks.append(asyncio.create_task(wait(client, name)))
                while (await client.status("x")).waiting < len(tasks):
                    await asyncio.sleep(0.01)
            thread = threading.Thread(target=in_thread)
            thread.start()
            while (await client.status("x")).waiting < 4:
                await asyncio.sleep(0.01)
            await lease.release()
            await asyncio.gather(*tasks)
            await asyncio.to_thread(thread.join)

    def in_thread() -> None:
        with dibs.sync.connect(pooled) as client, client.lock("x", ttl=10):
            order.append("thread")

    asyncio.run(asyncio.wait_for(body(), 30))
    assert order == ["a", "b", "c", "thread"]


@both_sides
async def test_a_session_pooler_lets_pushes_through(side: Side, by_session: str) -> None:
    waiter, holder = await side.open(by_session), await side.open(by_session, listen=False)
    assert waiter.inbox != ""
    await say(holder, acquire("a"))
    await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
    await say(holder, Release(KEY, "a"))
    pushes = await waiter.notifications(10)
    assert [push.event for push in pushes] == ["granted"]


@both_sides
async def test_a_pooler_may_be_named_in_the_url(
    side: Side, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await side.open(f"{postgres_url}?pooler=yes")
    assert connection.inbox == ""
    with Traced(wire_of(connection)) as seen:
        await say(connection, Inspect(KEY))
    assert (seen.sent("Sync"), seen.sent("Parse")) == (1, 1)
    assert caplog.messages == []
