"""`lease.release(within=connection)`: given up by the commit of a transaction, in both worlds."""

import gc
from typing import Any

import psycopg
import pytest

from dibs import BackendUnavailable, NotConfigured, NotHeld
from tests.faces.within_help import Database, in_a_database, quiet
from tests.primitives.worlds import World, in_both_worlds

ADD = "INSERT INTO orders VALUES (42)"


@in_a_database
async def test_it_is_given_up_by_the_commit(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    get, connection = world.get, await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    await get(connection.execute(ADD))
    with quiet(caplog):
        assert await get(lease.release(within=connection))
        with pytest.raises(BackendUnavailable, match="has not ended"):
            await database.is_free("a")
        with pytest.raises(NotHeld, match=r"^the lease on a was given up in a transaction: should"):
            lease.ensure()
        assert (lease.lost, lease.remaining) == (False, 0.0)
        await get(connection.commit())
        assert database.orders() == 1
        assert await database.is_free("a")
        world.clock.advance(11)
        assert not lease.lost
        with pytest.raises(NotHeld, match="the lease on a was released"):
            lease.ensure()
        assert not await get(lease.release())


@in_a_database
async def test_after_a_rollback_it_can_be_taken_up_again(world: World, database: Database) -> None:
    get, connection = world.get, await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    await get(lease.release(within=connection))
    with pytest.raises(BackendUnavailable, match="has not ended"):
        await get(lease.renew())
    await get(connection.rollback())
    with pytest.raises(NotHeld):
        lease.ensure()
    world.clock.advance(1)
    await get(lease.renew())
    lease.ensure(needs="20s")
    assert not await database.is_free("a")
    assert await get(lease.release())
    assert await database.is_free("a")


@in_a_database
async def test_or_is_taken_up_by_the_next_renewal(world: World, database: Database) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    await world.get(lease.release(within=connection))
    await world.get(connection.rollback())
    world.clock.advance(11)
    lease.ensure(needs="20s")
    for _ in range(5):
        world.clock.advance(20)
    assert not lease.lost
    assert not await database.is_free("a")


@in_a_database
async def test_a_transaction_may_be_done_again(world: World, database: Database) -> None:
    """With its release, until it commits; within one transaction the second finds nothing."""
    get, connection = world.get, await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    for attempt in range(3):
        await get(connection.execute(ADD))
        assert await get(lease.release(within=connection))
        assert not await get(lease.release(within=connection))
        await get(connection.commit() if attempt == 2 else connection.rollback())
    assert database.orders() == 1
    assert await database.is_free("a")


@in_a_database
async def test_what_one_transaction_acquires_another_gives_up(
    world: World, database: Database
) -> None:
    get, connection = world.get, await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    await get(connection.commit())
    await world.enter(lease)
    assert await get(lease.release(within=connection))
    await get(connection.commit())
    assert await database.is_free("a")
    await world.leave(lease)
    assert not lease.lost


@in_a_database
async def test_acquired_and_given_up_in_one_transaction(world: World, database: Database) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"), within=connection)
    assert await world.get(lease.release(within=connection))
    await world.get(connection.commit())
    assert await database.is_free("a")


@in_a_database
async def test_the_end_of_a_block_gives_it_up_though_its_transaction_failed(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await database.connect()
    manager = world.client.lock("a")
    lease = await world.enter(manager)
    await world.get(lease.release(within=connection))
    await world.get(connection.rollback())
    with quiet(caplog):
        await world.leave(manager, ValueError("its transaction failed"))
        assert world.client.hub.keeper.flush(5)
    assert await database.is_free("a")


@in_a_database
async def test_a_block_may_end_before_the_transaction(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await database.connect()
    manager = world.client.lock("a")
    lease = await world.enter(manager)
    with quiet(caplog):
        await world.get(lease.release(within=connection))
        await world.leave(manager)
        await world.get(connection.commit())
    assert await database.is_free("a")
    assert not lease.lost


@in_a_database
async def test_one_that_is_dropped_then_is_given_up_in_silence(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await database.connect()
    lease = await world.get(world.client.lock("a").acquire())
    await world.get(lease.release(within=connection))
    await world.get(connection.rollback())
    with quiet(caplog):
        del lease
        gc.collect()
        assert world.client.hub.keeper.flush(5)
    assert await database.is_free("a")


@in_a_database
async def test_its_time_runs_out_in_silence(
    world: World, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It was given up, so it can't be lost, however long the transaction takes."""
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a", ttl="5s"))
    await world.get(lease.release(within=connection))
    with quiet(caplog):
        world.clock.advance(6)
        assert not lease.lost
    await world.get(connection.rollback())
    assert not await world.get(lease.release(within=connection))
    with pytest.raises(NotHeld):
        await world.get(lease.renew())
    assert await database.is_free("a")


@in_a_database
async def test_a_killed_session_gave_nothing_up(world: World, database: Database) -> None:
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    await world.get(lease.release(within=connection))
    with database.admin() as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
    world.clock.advance(11)
    lease.ensure()
    with pytest.raises(BackendUnavailable, match="within= broke"):
        await world.get(lease.release(within=connection))
    with pytest.raises(NotHeld):
        lease.ensure()  # it may have been done
    world.clock.advance(11)
    lease.ensure()


@in_a_database
async def test_a_key_that_another_transaction_has_is_not_given_up(
    world: World, database: Database
) -> None:
    lease = await database.acquire(world.client.lock("a"))
    connection = await database.connect()
    with database.admin() as admin, admin.transaction():
        admin.execute("SELECT FROM dibs.keys FOR UPDATE")
        with pytest.raises(BackendUnavailable, match="has not ended"):
            await world.get(lease.release(within=connection))
        lease.ensure()
    assert await world.get(lease.release(within=connection))


@in_a_database
async def test_a_renewal_that_was_under_way_takes_nothing_up(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answered it before the release, and we hear of it afterwards."""
    connection = await database.connect()
    lease = await database.acquire(world.client.lock("a"))
    world.clock.advance(2)
    sent, renewed = world.clock.now(), lease._renewed
    answers: list[Any] = []
    monkeypatch.setattr(type(lease), "_renewed", lambda _, answer: answers.append(answer))
    world.clock.advance(9)
    await world.get(lease.release(within=connection))
    [answer] = answers
    assert answer.sent > sent
    renewed(answer)
    with pytest.raises(NotHeld):
        lease.ensure()
    await world.get(connection.commit())


@in_a_database
async def test_rolled_back_it_is_free_when_its_client_closes(
    world: World, database: Database
) -> None:
    connection = await database.connect()
    client = database.another()
    lease = await database.acquire(client.lock("a", ttl="30s"))
    await world.get(lease.release(within=connection))
    await world.get(connection.rollback())
    await world.get(client.close())
    assert await database.is_free("a")


@in_a_database
async def test_rolled_back_it_is_free_at_the_end_of_a_block_that_max_hold_ended(
    world: World, database: Database
) -> None:
    connection = await database.connect()
    lock = world.client.lock("a", ttl="30s", max_hold="5s")
    lease = await world.enter(lock)
    await world.get(lease.release(within=connection))
    world.clock.advance(6)
    await world.get(connection.rollback())
    await world.leave(lock)
    assert world.client.hub.keeper.flush(5)
    assert await database.is_free("a")


@in_a_database
async def test_another_database_is_refused(world: World, database: Database) -> None:
    lease = await database.acquire(world.client.lock("a"))
    postgres = database.url.rpartition("/")[0] + "/postgres"
    connection = await database.connect(postgres)
    with pytest.raises(NotConfigured, match=r"leads to another database \(postgres\)"):
        await world.get(lease.release(within=connection))
    lease.ensure()
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


@in_both_worlds
async def test_no_other_store_can(world: World) -> None:
    lease = await world.get(world.client.lock("a").acquire())
    with pytest.raises(NotConfigured, match=r"^memory://.* can't be part of a transaction"):
        await world.get(lease.release(within=object()))
    lease.ensure()
    assert await world.get(lease.release())
