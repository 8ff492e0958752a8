"""`acquire(within=connection)`: a lease as part of a transaction of the user's own.

Both sides step the same coroutines, so threads stand for both. One test does the same in a loop.
"""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, BackendUnavailable, LeaseLost, NotConfigured, NotHeld
from dibs.model import Acquire, Queued
from dibs.session import StoreSession
from dibs.stores.postgres import PostgresStore
from dibs.testing import ManualClock
from tests.pages import blocks
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.once

ADD = "INSERT INTO orders VALUES (42)"


class Database:
    """A database that keeps leases, with a table of the user's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.store = PostgresStore(url, clock=self.clock)
        self._open: list[Any] = []
        self._held: list[Any] = []
        self.client, self.others = self.another(), self.another()
        self.connect(autocommit=True).execute("CREATE TABLE orders (number integer)")

    def another(self, module: Any = dibs.sync) -> Any:
        """One more client, as if of another process."""
        client = module.Client(StoreSession(self.store, clock=self.clock))
        self._open.append(client.session)
        return client

    def connect(self, url: str = "", **options: Any) -> psycopg.Connection[Any]:
        self._open.append(psycopg.connect(url or self.url, **options))
        connection: psycopg.Connection[Any] = self._open[-1]
        return connection

    def acquire(self, lock: Any, **how: Any) -> Any:
        """A lease that is kept until the test ends."""
        self._held.append(lock.acquire(**how))
        return self._held[-1]

    def is_free(self, name: str) -> bool:
        lease = self.others.lock(name).try_acquire()
        return lease is not None and lease.release()

    def orders(self) -> int:
        return len(self.connect().execute("SELECT * FROM orders").fetchall())

    def kill(self, pid: int) -> None:
        self.connect().execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def close(self) -> None:
        for each in reversed(self._open):
            each.close()


@pytest.fixture
def db(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    yield database
    database.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname != "INFO"]


def test_it_stands_when_the_transaction_commits(db: Database) -> None:
    connection = db.connect()
    connection.execute(ADD)
    lease = db.acquire(db.client.lock("a", label="me"), within=connection, note="why")
    lease.ensure(needs="20s")
    connection.commit()
    with pytest.raises(AcquireTimeout) as refused:
        db.others.lock("a").acquire(wait=0)
    [holder] = refused.value.holders
    assert (holder.token, holder.owner[-3:], holder.note) == (lease.token, "/me", "why")
    assert db.orders() == 1
    for _ in range(5):
        db.clock.advance(20)
        assert not lease.lost
    assert lease.release()
    assert db.is_free("a")
    at_once = db.acquire(db.client.lock("b"), wait=0, within=db.connect(autocommit=True))
    assert not db.is_free("b")
    with pytest.raises(AcquireTimeout, match="by this task"):
        db.client.lock("b").acquire(within=db.connect())
    assert at_once.release()


def test_others_learn_soon_that_it_is_busy(db: Database) -> None:
    connection = db.connect()
    lease = db.acquire(db.client.lock("a"), within=connection)
    given_up: list[Any] = []
    db.others.session.keeper.abandon = lambda *about: given_up.append(about)
    with pytest.raises(BackendUnavailable, match=r"^a: a transaction that has not ended keeps"):
        db.others.lock("a").try_acquire()
    assert given_up == [], "it was one try, which left nothing behind"
    assert db.is_free("b"), "and other keys are free"
    db.acquire(db.others.lock("b"), within=db.connect())
    with pytest.raises(BackendUnavailable, match="has not ended"):
        db.client.lock("b").acquire(within=connection)  # nor is there a deadlock
    connection.commit()
    assert not db.is_free("a")
    assert not lease.lost


def test_if_it_rolls_back_it_never_was(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    connection, lock = db.connect(), db.client.lock("a")
    lock.acquire(within=connection)
    connection.rollback()
    gc.collect()  # that lease was dropped, which is no trouble
    assert db.client.session.keeper.flush(5)
    assert warnings_of(caplog) == []
    connection.execute(ADD)
    lease = db.acquire(lock, within=connection)
    connection.rollback()
    assert db.orders() == 0
    again = db.acquire(lock, within=connection)
    assert (lease.lost, again.lost) == (True, False), "done again, it is no nested acquire"
    connection.rollback()
    thief = db.acquire(db.others.lock("a"), wait=0)
    assert thief.token >= lease.token, "the same may be issued again: nothing written stands"
    db.clock.advance(11)
    assert (lease.lost, lease.reason, lease.remaining) == (True, "expired", 0)
    with pytest.raises(LeaseLost, match=r"was lost: the transaction that .* did not commit; anoth"):
        lease.ensure()
    assert not lease.release()
    assert not thief.lost


def test_a_renewal_before_the_commit_is_no_trouble(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else can see the key's row yet, and that doesn't mean that the lease has ended."""
    connection, lock = db.connect(), db.client.lock("a")
    lease = db.acquire(lock, within=connection)
    other = db.acquire(db.client.lock("b"))
    db.clock.advance(11)
    db.clock.advance(6)
    assert not lease.lost
    assert other.remaining > 15, "others are renewed meanwhile"
    assert warnings_of(caplog) == []
    for ask in (lease.renew, lock.status):
        with pytest.raises(BackendUnavailable, match="has not ended"):
            ask()
    connection.commit()
    lease.renew()
    assert [holder.token for holder in lock.status().mine] == [lease.token]
    db.clock.advance(60)
    assert not lease.lost
    late = db.acquire(db.client.lock("late", ttl="5s"), within=connection)
    db.clock.advance(6)
    connection.commit()
    assert late.lost, "the transaction outlasted its ttl"
    assert db.is_free("late")


def test_what_others_hold_is_refused_and_the_transaction_goes_on(db: Database) -> None:
    db.acquire(db.others.lock("a", label="them", note="why"))
    connection = db.connect()
    connection.execute(ADD)
    with pytest.raises(AcquireTimeout, match=r"a is held by .*/them \(why\)") as refused:
        db.client.lock("a").acquire(within=connection)
    assert refused.value.retry_after
    lease = db.acquire(db.client.semaphore("s", 3), units=2, within=connection)
    connection.commit()
    assert db.orders() == 1
    [holder] = db.others.semaphore("s", 3).status().holders
    assert holder.slots == lease.slots == (0, 1)


def test_a_session_that_is_killed_takes_its_lease_along(db: Database) -> None:
    connection = db.connect()
    lease = db.acquire(db.client.lock("a"), within=connection)
    db.kill(connection.info.backend_pid)
    assert db.is_free("a")
    with pytest.raises(BackendUnavailable, match="within= broke"):
        db.client.lock("b").acquire(within=connection)
    db.clock.advance(11)
    assert lease.lost


def test_with_an_old_snapshot_the_loser_of_a_race_gets_a_serialization_error(db: Database) -> None:
    first = db.acquire(db.client.lock("a"))
    connection = db.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute(ADD)
    first.release()
    with pytest.raises(psycopg.errors.SerializationFailure):
        db.client.lock("a").acquire(within=connection)
    connection.rollback()
    lease = db.acquire(db.client.lock("a"), within=connection)
    connection.commit()
    lease.renew()
    # nor can it see who of those that wait is alive, so it passes nobody
    db.acquire(db.client.semaphore("s", 2))
    waiter = Acquire(b"semaphore:s", "w", "somebody", 30.0, 2, 2, queue=True)
    assert isinstance(db.store.blocking_connection().apply([waiter], 10)[0], Queued)
    with pytest.raises(BackendUnavailable, match="READ COMMITTED"):
        db.others.semaphore("s", 2).acquire(within=connection)


def test_entering_it_asks_whether_it_was_committed(db: Database) -> None:
    connection = db.connect()
    rolled_back = db.acquire(db.client.lock("a"), within=connection)
    connection.rollback()
    with pytest.raises(LeaseLost, match="did not commit"), rolled_back:
        pytest.fail("it never was")
    open_still = db.acquire(db.client.lock("b"), within=connection)
    with pytest.raises(NotHeld, match="put the `with` behind it"), open_still:
        pytest.fail("nobody knows yet")
    connection.commit()
    with open_still:
        assert not db.is_free("b")
    assert db.is_free("b")


def test_a_busy_key_is_told_in_time_for_short_leases(db: Database) -> None:
    db.acquire(db.others.lock("a", ttl="1m"), within=db.connect())
    with dibs.sync.connect(db.url) as client:
        for ttl in ("2s", "3s", "30s"):
            with pytest.raises(BackendUnavailable, match="a transaction that has not ended"):
                client.lock("a", ttl=ttl).acquire(wait=0)


async def test_in_a_loop_likewise(db: Database) -> None:
    """It stands after a commit, never was after a rollback, and a cancelled try leaves nothing."""
    client = db.another(dibs)
    async with await psycopg.AsyncConnection.connect(db.url) as connection:
        stands = await client.lock("a").acquire(within=connection)
        await connection.commit()
        assert not await asyncio.to_thread(db.is_free, "a")
        async with stands:
            rolled_back = await client.lock("b").acquire(within=connection)
            await connection.rollback()
        with pytest.raises(LeaseLost, match="did not commit"):
            async with rolled_back:
                pytest.fail("it never was")
        blocker = db.connect()
        await asyncio.to_thread(db.acquire, db.others.lock("a"), within=blocker)
        trying = asyncio.ensure_future(client.lock("a").acquire(within=connection))
        await until_it_asks(db.url, connection.info.backend_pid)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        blocker.rollback()
        await connection.rollback()
        async with client.lock("a").acquire(wait=5):
            assert (await client.lock("a").status()).waiting == 0
    await client.close()


async def until_it_asks(url: str, pid: int) -> None:
    """Return once that session is in the middle of a command of ours, which looks on for a while."""
    asks = """SELECT FROM pg_stat_activity
        WHERE pid = %s AND state = 'active' AND query LIKE '%%dibs.apply%%'"""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        async with asyncio.timeout(10):
            while (await (await admin.execute(asks, [pid])).fetchone()) is None:
                await asyncio.sleep(0.002)


def test_another_database_is_refused(db: Database, postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    try:
        elsewhere = db.connect(url)
        with pytest.raises(NotConfigured, match=r"leads to another database \(t_.*127\.0\.0\.1"):
            db.client.lock("a").acquire(within=elsewhere)
        elsewhere.execute("SELECT 1")
        elsewhere.close()
    finally:
        postgres_server.drop_database(url)
    name = db.url.replace("127.0.0.1", "localhost")
    connection = db.connect(name, options="-c timezone=Asia/Tokyo -c search_path=x")
    assert not db.acquire(db.client.lock("a"), within=connection).lost


async def test_a_connection_of_the_other_side_is_refused(db: Database) -> None:
    with pytest.raises(TypeError, match="would stop the event"):
        await db.another(dibs).lock("a").acquire(within=db.connect())
    async_one: Any = object.__new__(psycopg.AsyncConnection)
    with pytest.raises(TypeError, match=r"its event loop's: give a blocking one"):
        await asyncio.to_thread(db.client.lock("a").acquire, within=async_one)


def test_what_is_no_connection_and_what_would_wait_is_refused(db: Database) -> None:
    lock, connection = db.client.lock("a"), db.connect()
    with pytest.raises(TypeError, match=r"within= is a builtins\.str: give the connection of psy"):
        lock.acquire(within=db.url)
    for wait in (5, None):
        with pytest.raises(ValueError, match=r"within= is one try"):
            lock.acquire(within=connection, wait=wait)
    connection.execute("SET TRANSACTION READ ONLY")
    with pytest.raises(BackendUnavailable, match="within= only reads"):
        lock.acquire(within=connection)
    with pytest.raises(BackendUnavailable, match="has failed already"):
        lock.acquire(within=connection)
    connection.rollback()
    assert not db.acquire(lock, within=connection).lost
    with pytest.raises(NotConfigured, match=r"^memory://.* can't be .* postgresql:// can"):
        dibs.sync.connect("memory://").lock("a").acquire(within=connection)


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
