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
from tests.stores.postgres.connections_help import (
    KEY,
    Mode,
    Room,
    Traced,
    acquire,
    admin,
    both,
    say,
    wire_of,
)


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


@both
def test_behind_a_transaction_pooler_nobody_listens(
    mode: Mode, pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(room: Room) -> None:
        for _ in range(2):
            backend = await room.connect()
            assert backend.inbox == ""
            assert list(await backend.notifications(0.01)) == []
            if mode == "blocking":
                backend.wake()
                assert list(await backend.notifications(30)) == []

    with caplog.at_level(logging.WARNING, "dibs"):
        Room(mode, pooled).run(body)
    assert len([line for line in caplog.messages if "transaction pooler" in line]) == 1


@both
def test_commands_work_whatever_server_connection_they_get(mode: Mode, pooled: str) -> None:
    async def body(room: Room) -> None:
        backends = [await room.connect() for _ in range(8)]
        keys = [b"lock:%d" % number for number in range(40)]
        for number, key in enumerate(keys):
            backend, other = backends[number % 8], backends[(number + 3) % 8]
            assert isinstance(await say(backend, acquire("a", key)), Granted)
            assert await say(other, Release(key, "a")) == Released()
        with Traced(wire_of(backends[0])) as seen:
            await say(backends[0], acquire("b"))
        assert (seen.sent("Sync"), seen.sent("Parse")) == (1, 1), "one round trip here, too"

    Room(mode, pooled).run(body)


@both
def test_strangers_sessions_are_left_as_they_are(mode: Mode, pooled: str) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect()
        await say(backend, acquire("a"))

    Room(mode, pooled).run(body)
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


@both
def test_a_session_pooler_lets_pushes_through(mode: Mode, by_session: str) -> None:
    async def body(room: Room) -> None:
        waiter, holder = await room.connect(), await room.connect(listen=False)
        assert waiter.inbox != ""
        await say(holder, acquire("a"))
        await say(waiter, acquire("b", queue=True, inbox=waiter.inbox))
        await say(holder, Release(KEY, "a"))
        pushes = await waiter.notifications(10)
        assert [push.event for push in pushes] == ["granted"]

    Room(mode, by_session).run(body)


@both
def test_whoever_knows_of_the_pooler_may_say_so(
    mode: Mode, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(room: Room) -> None:
        backend = await room.connect(url=f"{postgres_url}?pooler=yes")
        assert backend.inbox == ""
        with Traced(wire_of(backend)) as seen:
            await say(backend, Inspect(KEY))
        assert (seen.sent("Sync"), seen.sent("Parse")) == (1, 1)

    Room(mode, postgres_url).run(body)
    assert caplog.messages == []


def test_the_store_is_not_asked_to_push_where_it_cannot(pooled: str) -> None:
    """The word is in the capabilities of the scheme; what came of it is in the log."""
    assert "notifies" in PostgresStore(pooled).capabilities.names()
