"""What the tests of `within=` share: both worlds, a real database, and time that is moved by hand."""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import wraps
from typing import Any

import psycopg
import pytest

from dibs.stores.postgres import PostgresStore
from tests.locks.worlds import World


class Database:
    """A database that keeps leases, with a table of somebody's own."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        with self.admin() as connection:
            connection.execute("CREATE TABLE orders (number integer)")
        world.store = PostgresStore(url, clock=world.clock)
        world.client = world.another()
        self._open: list[Any] = [world.client]
        self._held: list[Any] = []

    async def connect(self, url: str | None = None, **options: Any) -> Any:
        """A connection of the user's own, of this world."""
        kind: Any = psycopg.AsyncConnection if self.world.is_async else psycopg.Connection
        connection = await self.world.get(kind.connect(url or self.url, **options))
        self._open.append(connection)
        return connection

    def another(self) -> Any:
        """Another client, as if of another process."""
        client = self.world.another()
        self._open.append(client)
        return client

    async def acquire(self, lock: Any, **how: Any) -> Any:
        """A lease that is looked after until the test ends, unless it releases it."""
        lease = await self.world.get(lock.acquire(**how))
        self._held.append(lease)
        return lease

    async def is_free(self, name: str) -> bool:
        """Somebody else can have the lock at once."""
        lease = await self.world.get(self.another().lock(name).try_acquire())
        return lease is not None and bool(await self.world.get(lease.release()))

    async def close(self) -> None:
        for each in reversed(self._open):
            await self.world.get(each.close())
        self._held.clear()

    def admin(self) -> psycopg.Connection[Any]:
        """To look and to disturb."""
        return psycopg.connect(self.url, autocommit=True)

    def orders(self) -> int:
        """How many rows others see."""
        with self.admin() as connection:
            return len(connection.execute("SELECT * FROM orders").fetchall())


def in_a_database(body: Callable[..., Awaitable[None]]) -> Any:
    """Make two tests of a coroutine function that takes a `World` and a `Database`."""

    @pytest.mark.parametrize("world_name", ["async", "sync"])
    @wraps(body)
    def test(world_name: str, postgres_url: str, **fixtures: Any) -> None:
        world = World(world_name)
        world.run(closing(world, postgres_url, fixtures))

    async def closing(world: World, url: str, fixtures: dict[str, Any]) -> None:
        database = Database(world, url)
        try:
            await body(world, database, **fixtures)
        finally:
            await database.close()

    own = [*inspect.signature(body).parameters.values()][2:]
    names = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in ("world_name", "postgres_url")
    ]
    test.__signature__ = inspect.Signature([*own, *names])
    return test


@contextmanager
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Nobody is warned of anything."""
    caplog.clear()
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
