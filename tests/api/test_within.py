"""`acquire(within=connection)`: a lease as part of a transaction of the user's own."""

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, BackendUnavailable, LeaseLost, NotConfigured, NotHeld
from dibs.model import Acquire, Queued
from dibs.stores.postgres import PostgresStore
from dibs.stores.registry import BUILTIN
from tests.locks.worlds import World, in_both_worlds
from tests.pages import blocks
from tests.servers.postgres import PostgresServer

ADD = "INSERT INTO orders VALUES (42)"


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


@in_a_database
async def test_it_stands_when_the_transaction_commits(world: World, database: Database) -> None:
    get, others = world.get, database.another()
    connection = await database.connect()
    await get(connection.execute(ADD))
    lock = world.client.lock("a", label="me")
    lease = await database.acquire(lock, within=connection, note="why")
    lease.ensure(needs="20s")
    await get(connection.commit())
    with pytest.raises(AcquireTimeout) as refused:
        await database.acquire(others.lock("a"), wait=0)
    [holder] = refused.value.holders
    assert (holder.token, holder.owner[-3:], holder.note) == (lease.token, "/me", "why")
    assert database.orders() == 1
    for _ in range(5):
        world.clock.advance(20)
        assert not lease.lost
    assert await get(lease.release())
    assert await database.is_free("a")


@in_a_database
async def test_others_learn_soon_that_it_is_busy(world: World, database: Database) -> None:
    get, others = world.get, database.another()
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    given_up: list[Any] = []
    others.session.keeper.abandon = lambda *about: given_up.append(about)
    with pytest.raises(BackendUnavailable, match=r"^a: a transaction that has not ended keeps"):
        await get(others.lock("a").try_acquire())
    assert given_up == [], "it was one try, which left nothing behind"
    assert await database.is_free("b"), "and other keys are free"
    await get(connection.commit())
    assert not await database.is_free("a")
    assert not lease.lost


@pytest.mark.parametrize("auto_renew", [True, False])
@in_a_database
async def test_if_it_rolls_back_it_never_was(
    world: World, database: Database, auto_renew: bool
) -> None:
    get, others = world.get, database.another()
    connection = await database.connect()
    await get(connection.execute(ADD))
    lock = world.client.lock("a", auto_renew=auto_renew)
    lease = await database.acquire(lock, within=connection)
    await get(connection.rollback())
    assert database.orders() == 0
    again = await database.acquire(lock, within=connection)
    assert (lease.lost, again.lost) == (True, False), "done again, it is no nested acquire"
    await get(connection.rollback())
    thief = await database.acquire(others.lock("a"), wait=0)
    assert thief.token >= lease.token, "the same may be issued again: nothing written stands"
    world.clock.advance(11)
    assert (lease.lost, lease.reason, lease.remaining) == (True, "expired", 0)
    with pytest.raises(LeaseLost, match=r"was lost: the transaction that .* did not commit; anoth"):
        lease.ensure()
    assert not await get(lease.release())
    assert not thief.lost


@in_a_database
async def test_a_renewal_before_the_commit_is_no_trouble(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a", ttl="30s"), within=connection)
    other = await database.acquire(
        world.client.lock("b", ttl="30s"),
    )
    with quiet(caplog):
        world.clock.advance(11)
        world.clock.advance(6)
        assert not lease.lost
        assert other.remaining > 15, "others are renewed meanwhile"
        await world.get(connection.commit())
        world.clock.advance(4)
        assert lease.remaining > 20
    world.clock.advance(60)
    assert not lease.lost


@in_a_database
async def test_nor_is_a_renewal_of_a_key_that_never_was_before(
    world: World, database: Database
) -> None:
    """Nobody else can see the key's row yet, and that doesn't mean that the lease has ended."""
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    world.clock.advance(11)
    assert not lease.lost
    with pytest.raises(BackendUnavailable, match="has not ended"):
        await world.get(lease.renew())
    with pytest.raises(BackendUnavailable, match="has not ended"):
        await world.get(world.client.lock("a").status())
    await world.get(connection.commit())
    await world.get(lease.renew())
    assert [h.token for h in (await world.get(world.client.lock("a").status())).mine] == [
        lease.token
    ]


@in_a_database
async def test_a_transaction_that_outlasts_the_ttl_loses_it(
    world: World, database: Database
) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a", ttl="5s"), within=connection)
    world.clock.advance(6)
    assert lease.lost
    await world.get(connection.commit())
    assert await database.is_free("a")
    assert lease.lost


@in_a_database
async def test_what_others_hold_is_refused_and_the_transaction_goes_on(
    world: World, database: Database
) -> None:
    get, others = world.get, database.another()
    theirs = await database.acquire(
        others.lock("a", label="them", note="why"),
    )
    connection = await database.connect()
    await get(connection.execute(ADD))
    with pytest.raises(AcquireTimeout, match=r"a is held by .*/them \(why\)") as refused:
        await database.acquire(world.client.lock("a"), within=connection)
    assert refused.value.retry_after
    semaphore = world.client.semaphore("s", 3)
    lease = await database.acquire(semaphore, units=2, within=connection)
    assert lease.slots == (0, 1)
    await get(connection.commit())
    assert database.orders() == 1
    [holder] = (await get(others.semaphore("s", 3).status())).holders
    assert holder.slots == lease.slots
    assert not theirs.lost


@in_a_database
async def test_two_transactions_never_wait_for_each_other(world: World, database: Database) -> None:
    """Each has what the other wants: that would be a deadlock if anybody waited."""
    get, lock, another = world.get, world.client.lock, database.another()
    one, other = await database.connect(), await database.connect()
    leases = [
        await database.acquire(lock("a"), within=one),
        await database.acquire(another.lock("b"), within=other),
    ]
    for wanted, connection in ((lock("b"), one), (another.lock("a"), other)):
        with pytest.raises(BackendUnavailable, match="has not ended"):
            await database.acquire(wanted, within=connection)
    await get(one.commit())
    await get(other.commit())
    for lease in leases:
        await get(lease.renew())


@in_a_database
async def test_the_token_guards_in_the_same_transaction(world: World, database: Database) -> None:
    get = world.get
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    guard = "SELECT dibs.guard('a', %s)"
    await get(connection.execute(guard, [lease.token]))
    await get(connection.execute(ADD))
    await get(connection.commit())
    with pytest.raises(psycopg.Error, match="no longer yours"):
        await get(connection.execute(guard, [lease.token - 1]))


@in_a_database
async def test_a_session_that_is_killed_takes_its_lease_along(
    world: World, database: Database
) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    with database.admin() as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
    assert await database.is_free("a")
    with pytest.raises(BackendUnavailable, match="within= broke"):
        await database.acquire(world.client.lock("b"), within=connection)
    world.clock.advance(11)
    assert lease.lost


@in_a_database
async def test_without_a_transaction_it_stands_at_once(world: World, database: Database) -> None:
    connection = await database.connect(autocommit=True)
    lease = await database.acquire(world.client.lock("a"), wait=0, within=connection)
    assert not await database.is_free("a")
    with pytest.raises(AcquireTimeout, match="by this task"):
        await database.acquire(world.client.lock("a"), within=connection)
    assert await world.get(lease.release())


@in_a_database
async def test_a_lease_whose_transaction_failed_may_be_dropped(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    await world.get(connection.rollback())
    with quiet(caplog):
        del lease
        gc.collect()
        assert world.client.session.keeper.flush(5)


@in_a_database
async def test_serialization_failures_are_raised_as_the_drivers(
    world: World, database: Database
) -> None:
    get, lock = world.get, world.client.lock
    lease = await database.acquire(
        lock("a"),
    )
    connection = await database.connect()
    await get(connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ))
    await get(connection.execute(ADD))
    await get(lease.release())
    with pytest.raises(psycopg.errors.SerializationFailure):
        await database.acquire(lock("a"), within=connection)
    await get(connection.rollback())
    lease = await database.acquire(lock("a"), within=connection)
    await get(connection.commit())
    await get(lease.renew())


@in_a_database
async def test_entering_it_asks_whether_it_was_committed(world: World, database: Database) -> None:
    connection = await database.connect()
    rolled_back = await database.acquire(world.client.lock("a"), within=connection)
    await world.get(connection.rollback())
    with pytest.raises(LeaseLost, match="did not commit"):
        await world.enter(rolled_back)
    open_still = await database.acquire(world.client.lock("b"), within=connection)
    with pytest.raises(NotHeld, match="put the `with` behind it"):
        await world.enter(open_still)
    await world.get(connection.commit())
    await world.enter(open_still)
    await world.leave(open_still)
    assert await database.is_free("b")


@in_a_database
async def test_a_busy_key_is_told_in_time_for_short_leases(
    world: World, database: Database
) -> None:
    connection = await database.connect()
    await database.acquire(database.another().lock("a", ttl="1m"), within=connection)
    client = world.module.connect(database.url)
    for ttl in ("2s", "3s", "30s"):
        with pytest.raises(BackendUnavailable, match="a transaction that has not ended"):
            await world.get(client.lock("a", ttl=ttl).acquire(wait=0))
    await world.get(client.close())


@in_a_database
async def test_others_who_wait_are_not_passed_at_an_old_snapshot(
    world: World, database: Database
) -> None:
    """Such a transaction can't see who of them is alive."""
    semaphore = world.client.semaphore("s", 2)
    await database.acquire(semaphore)
    others = database.another()
    waiter = Acquire(b"semaphore:s", "w", "somebody", 30.0, 2, 2, queue=True)
    assert isinstance(others.session.store.blocking_connection().apply([waiter], 10)[0], Queued)
    connection = await database.connect()
    await world.get(connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ))
    with pytest.raises(BackendUnavailable, match="READ COMMITTED"):
        await database.acquire(database.another().semaphore("s", 2), within=connection)


async def until_it_asks(url: str, pid: int) -> None:
    """Return once that session is in the middle of a command of ours, which looks on for a while."""
    asks = """SELECT FROM pg_stat_activity
        WHERE pid = %s AND state = 'active' AND query LIKE '%%dibs.apply%%'"""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        async with asyncio.timeout(10):
            while (await (await admin.execute(asks, [pid])).fetchone()) is None:
                await asyncio.sleep(0.002)


async def test_cancelled_in_the_middle_it_leaves_nothing(postgres_url: str) -> None:
    async with (
        dibs.connect(postgres_url) as client,
        dibs.connect(postgres_url) as another,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(postgres_url) as blocker,
    ):
        kept = await another.lock("a").acquire(within=blocker)
        trying = asyncio.ensure_future(client.lock("a", label="x").acquire(within=connection))
        await until_it_asks(postgres_url, connection.info.backend_pid)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        await blocker.rollback()
        async with client.lock("a").acquire(wait=5):
            assert (await client.lock("a").status()).waiting == 0
        await kept.release()


# ---- connections that won't do ------------------------------------------------------------------------


@in_a_database
async def test_another_database_is_refused(
    world: World, database: Database, postgres_server: PostgresServer
) -> None:
    url = postgres_server.new_database()
    try:
        elsewhere = await database.connect(url)
        with pytest.raises(NotConfigured, match=r"leads to another database \(t_.*127\.0\.0\.1"):
            await database.acquire(world.client.lock("a"), within=elsewhere)
        await world.get(elsewhere.execute("SELECT 1"))
        await world.get(elsewhere.close())
    finally:
        postgres_server.drop_database(url)
    name = database.url.replace("127.0.0.1", "localhost")
    connection = await database.connect(name, options="-c timezone=Asia/Tokyo -c search_path=x")
    lease = await database.acquire(world.client.lock("a"), within=connection)
    assert not lease.lost


@in_a_database
async def test_a_connection_of_the_other_side_is_refused(world: World, database: Database) -> None:
    lock = world.client.lock("a")
    if world.is_async:
        with database.admin() as blocking, pytest.raises(TypeError, match="would stop the event"):
            await lock.acquire(within=blocking)
    else:
        async_one: Any = object.__new__(psycopg.AsyncConnection)
        with pytest.raises(TypeError, match=r"its event loop's: give a blocking one"):
            lock.acquire(within=async_one)


@in_a_database
async def test_what_is_no_connection_and_what_would_wait_is_refused(
    world: World, database: Database
) -> None:
    get, lock = world.get, world.client.lock("a")
    with pytest.raises(
        TypeError, match=r"within= is a builtins\.str: give the connection of psycopg"
    ):
        await database.acquire(lock, within=database.url)
    connection = await database.connect()
    for wait in (5, None, "1s"):
        with pytest.raises(ValueError, match=r"within= is one try"):
            await database.acquire(lock, within=connection, wait=wait)
    await get(connection.execute("SET TRANSACTION READ ONLY"))
    with pytest.raises(BackendUnavailable, match="within= only reads"):
        await database.acquire(lock, within=connection)
    with pytest.raises(BackendUnavailable, match="has failed already"):
        await database.acquire(lock, within=connection)
    await get(connection.rollback())
    lease = await database.acquire(lock, within=connection)
    assert not lease.lost


@pytest.mark.parametrize("scheme", sorted(BUILTIN.keys() - {"postgresql"}))
@in_both_worlds
async def test_no_other_store_can_join_a_transaction(world: World, scheme: str) -> None:
    places = {"sqlite": "/nowhere", "memory": "", "kubernetes": "", "temporal": "", "redis": ""}
    client = world.module.connect(f"{scheme}://{places.get(scheme, 'localhost')}")
    with pytest.raises(NotConfigured, match=rf"^{scheme}://.* can't be .* postgresql:// can"):
        await world.get(client.lock("a").acquire(within=object()))


def test_the_page_shows_what_works(postgres_url: str) -> None:
    [example] = blocks("postgres.md")
    address = "postgresql://app@db.example.org/shop"
    assert address in example
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders AS SELECT 42 AS id, 'new' AS state")

        def pack(order: int) -> None:
            [row] = connection.execute("SELECT state FROM orders WHERE id = %s", [order])
            assert row == ("packing",)
            with dibs.sync.connect(postgres_url) as others:
                assert others.lock("order:42").locked()

        exec(example.replace(address, postgres_url), {"pack": pack})
        assert connection.execute("SELECT state FROM orders").fetchall() == [("packed",)]
        with pytest.raises(psycopg.Error, match="no longer yours"):
            connection.execute("SELECT dibs.guard('order:42', 1)")
    with dibs.sync.connect(postgres_url) as others:
        assert not others.lock("order:42").locked()


@pytest.mark.slow
def test_a_crash_forgets_no_lease_of_a_lax_session(tmp_path: Path) -> None:
    """A commit in memory would be written after ten seconds, and is lost before."""
    with PostgresServer(tmp_path, options={"wal_writer_delay": "10s"}) as server:
        with dibs.sync.connect(server.url) as client:
            lock = client.lock("a", ttl="1m")
            with psycopg.connect(server.url, options="-c synchronous_commit=off") as connection:
                lease = lock.acquire(within=connection)
            server.kill()
            server.start()
            with dibs.sync.connect(server.url) as another:
                assert another.lock("a").try_acquire() is None
            lease.renew()
            lease.release()
