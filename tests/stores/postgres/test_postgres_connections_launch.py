"""Batches that are submitted: sent in line, and answered by a call in the loop."""

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Failed, Granted, Inspect, Refused, Release, Released, Status
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.errors import SqlError
from tests.connections import connection_to
from tests.stores.postgres.connections_help import KEY, acquire, wire_of
from tests.stores.runway import Landed, Runway


async def opened(url: str) -> Any:
    backend = connection_to(PostgresStore(url), "async")
    await backend.open(listen=False)
    return backend


async def test_they_land_in_their_order_and_without_a_task(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    tasks = asyncio.all_tasks()
    assert backend.submit([acquire("a"), acquire("b")], runway.land)
    assert backend.submit([Release(KEY, "a")], runway.land)
    assert backend.submit([acquire("b")], runway.land)
    assert asyncio.all_tasks() == tasks
    assert runway.landed == [], "they are under way"
    first, second, third = await runway.wait(3)
    assert isinstance(first, Sequence)
    assert [type(reply) for reply in first] == [Granted, Refused]
    assert list(second or ()) == [Released()]  # type: ignore[arg-type]
    assert isinstance(third, Sequence)
    assert isinstance(third[0], Granted)
    await backend.close()


async def test_what_is_asked_besides_takes_its_turn(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    backend.submit([acquire("a")], runway.land)
    [status] = await backend.apply([Inspect(KEY)])
    assert len(runway.landed) == 1
    assert isinstance(status, Status)
    assert len(status.holders) == 1
    await backend.close()


async def test_without_a_connection_it_connects(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    await backend.close()
    backend.submit([acquire("a")], runway.land)
    assert runway.landed == []
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Granted)
    await backend.close()


async def test_what_breaks_under_way_lands_as_an_error_and_can_be_asked_again(
    postgres_url: str,
) -> None:
    backend, runway = await opened(postgres_url), Runway()
    again: list[asyncio.Task[Any]] = []

    def land(outcome: Landed) -> None:
        runway.land(outcome)
        again.append(asyncio.ensure_future(backend.apply([Inspect(KEY)])))

    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("LOCK TABLE dibs.keys IN ACCESS EXCLUSIVE MODE")
        give_up = backend.submit([acquire("a")], land)
        backend.submit([acquire("b"), acquire("c")], land)
        give_up()
        assert [type(each) for each in await runway.wait(2)] == [BackendUnavailable] * 2
    for task in again:
        assert isinstance((await task)[0], Status)
    await backend.close()


async def test_one_that_has_not_left_is_given_up_alone(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("LOCK TABLE dibs.keys IN ACCESS EXCLUSIVE MODE")
        backend.submit([acquire("a")], runway.land)
        backend.submit([acquire("b")], lambda _: None)()
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Granted)
    assert isinstance((await backend.apply([acquire("b")]))[0], Refused)
    await backend.close()


async def test_a_server_that_ends_the_session_is_noticed(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [wire_of(backend).pgconn.backend_pid])
    backend.submit([acquire("a")], runway.land)
    (outcome,) = await runway.wait(1)
    assert isinstance(outcome, (BackendUnavailable, Sequence))
    assert isinstance((await backend.apply([acquire("a")]))[0], Granted)
    await backend.close()


async def test_an_error_of_the_database_is_that_command_s_reply(postgres_url: str) -> None:
    backend, runway = await opened(postgres_url), Runway()
    await backend.apply([acquire("a")])
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("UPDATE dibs.keys SET used = 7")
    backend.submit([acquire("b")], runway.land)
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Failed)
    assert reply.reason == "corrupt"
    await backend.close()


async def test_what_can_not_be_read_lands_as_an_error(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise KeyError("what is this")

    backend, runway = await opened(postgres_url), Runway()
    monkeypatch.setattr("dibs.stores.postgres.aio.rows_of", stumble)
    backend.submit([acquire("a")], runway.land)
    (outcome,) = await runway.wait(1)
    assert isinstance(outcome, BackendUnavailable)
    await backend.close()


async def test_what_may_have_been_done_is_not_asked_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler says so whose server has gone, perhaps after the commit."""

    def lose(*_: object) -> None:
        raise SqlError("08P01", "server conn crashed?")

    backend, runway = await opened(postgres_url), Runway()
    wire = wire_of(backend)
    monkeypatch.setattr("dibs.stores.postgres.aio.rows_of", lose)
    backend.submit([acquire("a")], runway.land)
    backend.submit([acquire("b"), acquire("c")], runway.land)
    assert [type(each) for each in await runway.wait(2)] == [BackendUnavailable] * 2
    assert wire.is_cut
    [status] = await backend.apply([Inspect(KEY)])
    assert isinstance(status, Status)
    assert len(status.holders) == 1, "it was done"
    await backend.close()
