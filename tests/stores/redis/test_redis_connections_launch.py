"""Batches that are submitted: sent at once, and answered by a call in the loop."""

import asyncio
import select
import time
from typing import Any

import pytest

from dibs.errors import BackendUnavailable, Forbidden
from dibs.model import Granted, Refused, Released
from dibs.stores.redis import RedisStore
from dibs.stores.redis.aio import LoopDial, LoopLink
from dibs.stores.redis.connection import connect, pack
from dibs.stores.redis.url import read_url
from dibs.testing.proxy import FaultProxy
from tests.connections import connection_to
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import acquire, release
from tests.stores.runway import Landed, Runway


async def opened(url: str) -> Any:
    backend = connection_to(RedisStore(url), "async")
    await backend.open()
    return backend


async def test_two_batches_under_way_land_in_their_order(redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    await backend.apply([acquire(), release()])
    assert backend.submit([acquire("a"), acquire("b")], runway.land)
    assert backend.submit([release("a"), acquire("b")], runway.land)
    assert runway.landed == [], "they are still under way"
    first, second = await runway.wait(2)
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert [type(reply) for reply in first] == [Granted, Refused]
    assert [type(reply) for reply in second] == [Released, Granted]
    await backend.close()


async def test_it_is_one_call_and_no_task(redis_server: RedisServer, redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    await backend.apply([acquire(), release()])
    tasks = asyncio.all_tasks()
    backend.submit([acquire()], runway.land)
    assert asyncio.all_tasks() == tasks
    await runway.wait(1)
    await backend.close()


async def test_a_function_that_was_flushed(redis_server: RedisServer, redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    with redis_server.client() as client:
        client.function_flush()
    backend.submit([acquire()], runway.land)
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Granted), "nothing was done, so the function was loaded"
    await backend.close()


async def test_a_push_to_oneself_comes_before_the_landing(redis_url: str) -> None:
    backend, runway = connection_to(RedisStore(redis_url), "async"), Runway()
    seen: list[Any] = []
    await backend.open(listen=False)
    await backend.subscribe(seen.extend)
    await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])

    def land(outcome: Landed) -> None:
        assert [notification.event for notification in seen] == ["granted"]
        runway.land(outcome)

    backend.submit([release("a")], land)
    assert await runway.wait(1) == [[Released()]]
    await backend.close()


async def test_without_a_connection_it_connects(redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    await backend.close()
    backend.submit([acquire()], runway.land)
    assert runway.landed == []
    ((reply,),) = await runway.wait(1)  # type: ignore[misc]
    assert isinstance(reply, Granted)
    await backend.close()


async def test_what_breaks_under_way_lands_as_an_error(
    redis_server: RedisServer, redis_url: str
) -> None:
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend, runway = await opened(proxy.url_for(redis_url)), Runway()
        await backend.apply([acquire(), release()])
        proxy.hang()
        give_up = backend.submit([acquire("a")], runway.land)
        backend.submit([acquire("b")], runway.land)
        give_up()
        outcomes = await runway.wait(2)
        assert [type(outcome) for outcome in outcomes] == [BackendUnavailable] * 2
        proxy.heal()
        assert isinstance((await backend.apply([acquire("c")]))[0], Granted)
        await backend.close()


async def test_an_answer_that_came_while_the_loop_stalled_is_not_late(redis_url: str) -> None:
    settings = read_url(redis_url)
    link = await connect(settings, LoopDial(), settings.endpoints[0])
    limit = 0.05
    assert isinstance(link, LoopLink)
    assert link._transport is not None
    answers = link.ask(pack((b"PING",)), 1, limit)
    sock = link._transport.get_extra_info("socket")
    assert select.select([sock], [], [], 10)[0]
    time.sleep(2 * limit)  # the loop stalls
    assert await answers == [b"PONG"]
    await asyncio.sleep(0)
    assert link.usable
    link.close()


async def test_what_the_server_refuses(tmp_path: Any) -> None:
    with RedisServer(
        tmp_path, users=["app on >pw ~dibs:* &dibs:* +@all -fcall -evalsha"]
    ) as server:
        backend, runway = await opened(f"redis://app:pw@127.0.0.1:{server.port}"), Runway()
        backend.submit([acquire()], runway.land)
        (outcome,) = await runway.wait(1)
        assert isinstance(outcome, Forbidden)
        await backend.close()


async def test_what_can_not_be_read_lands_as_an_error(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise KeyError("what is this")

    backend, runway = await opened(redis_url), Runway()
    monkeypatch.setattr("dibs.stores.redis.ledger.read_answer", stumble)
    backend.submit([acquire()], runway.land)
    (outcome,) = await runway.wait(1)
    assert isinstance(outcome, BackendUnavailable)
    await backend.close()


async def test_what_is_given_up_on_another_way_is_told_nothing(
    redis_server: RedisServer, redis_url: str
) -> None:
    """The function is gone, so it goes by a task; that is what is given up then."""
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend, runway = await opened(proxy.url_for(redis_url)), Runway()
        with redis_server.client() as client:
            client.function_flush()
        tasks = asyncio.all_tasks()
        give_up = backend.submit([acquire()], runway.land)
        async with asyncio.timeout(10):
            while asyncio.all_tasks() == tasks:
                await asyncio.sleep(0)
        proxy.hang()
        give_up()
        (outcome,) = await runway.wait(1)
        assert isinstance(outcome, (BackendUnavailable, list))
        proxy.heal()
        await backend.close()
