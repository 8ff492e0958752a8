"""Batches that are launched: sent at once, and landed by a call in the loop."""

import asyncio
from typing import Any

import pytest

from dibs.errors import BackendUnavailable, Forbidden
from dibs.model import Granted, Refused, Released
from dibs.stores.redis import RedisStore
from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import acquire, release
from tests.stores.runway import Landed, Runway


async def opened(url: str) -> Any:
    backend = RedisStore(url).backend(blocking=False)
    await backend.open()
    return backend


async def test_two_batches_under_way_land_in_their_order(redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    await backend.apply([acquire(), release()])
    assert backend.launch([acquire("a"), acquire("b")], runway.land)
    assert backend.launch([release("a"), acquire("b")], runway.land)
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
    backend.launch([acquire()], runway.land)
    assert asyncio.all_tasks() == tasks
    await runway.wait(1)
    await backend.close()


async def test_a_script_that_was_flushed(redis_server: RedisServer, redis_url: str) -> None:
    backend, runway = await opened(redis_url), Runway()
    with redis_server.client() as client:
        client.script_flush()
    backend.launch([acquire()], runway.land)
    assert await runway.wait(1) == [None], (
        "nothing was done: the ordinary way sends the whole script"
    )
    assert isinstance((await backend.apply([acquire()]))[0], Granted)
    await backend.close()


async def test_a_push_to_oneself_comes_before_the_landing(redis_url: str) -> None:
    backend, runway = RedisStore(redis_url).backend(blocking=False), Runway()
    seen: list[Any] = []
    deliver_to: Any = backend.deliver_to  # type: ignore[attr-defined]
    deliver_to(seen.extend)
    await backend.open()
    await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])

    def land(outcome: Landed) -> None:
        assert [wakeup.event for wakeup in seen] == ["granted"]
        runway.land(outcome)

    launch: Any = backend.launch  # type: ignore[attr-defined]
    launch([release("a")], land)
    assert await runway.wait(1) == [[Released()]]
    await backend.close()


async def test_without_a_connection_it_must_go_the_other_way(redis_url: str) -> None:
    backend = await opened(redis_url)
    await backend.close()
    assert backend.launch([acquire()], lambda _: None) is None


async def test_what_breaks_under_way_lands_as_an_error(
    redis_server: RedisServer, redis_url: str
) -> None:
    with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        backend, runway = await opened(proxy.url_for(redis_url)), Runway()
        await backend.apply([acquire(), release()])
        proxy.hang()
        give_up = backend.launch([acquire("a")], runway.land)
        backend.launch([acquire("b")], runway.land)
        give_up()
        outcomes = await runway.wait(2)
        assert [type(outcome) for outcome in outcomes] == [BackendUnavailable] * 2
        assert backend.launch([acquire()], runway.land) is None
        proxy.heal()
        assert isinstance((await backend.apply([acquire("c")]))[0], Granted)
        await backend.close()


async def test_what_the_server_refuses_has_to_be_applied(tmp_path: Any) -> None:
    with RedisServer(tmp_path, users=["app on >pw ~dibs:* &dibs:* +@all -evalsha -eval"]) as server:
        backend = await opened(f"redis://app:pw@127.0.0.1:{server.port}")
        runway = Runway()
        backend.launch([acquire()], runway.land)
        assert await runway.wait(1) == [None]
        with pytest.raises(Forbidden):
            await backend.apply([acquire()])
        await backend.close()


async def test_what_can_not_be_read_lands_as_an_error(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise KeyError("what is this")

    backend, runway = await opened(redis_url), Runway()
    monkeypatch.setattr("dibs.stores.redis.looped.read_answer", stumble)
    backend.launch([acquire()], runway.land)
    (outcome,) = await runway.wait(1)
    assert isinstance(outcome, BackendUnavailable)
    await backend.close()


@pytest.mark.parametrize("count", [1, 40])
async def test_launching_is_the_same_as_applying(redis_url: str, count: int) -> None:
    backend, runway = await opened(redis_url), Runway()
    keys = [b"lock:%d" % number for number in range(count)]
    applied = await backend.apply([acquire(key=key) for key in keys])
    backend.launch([acquire(key=key) for key in keys], runway.land)
    (launched,) = await runway.wait(1)
    assert launched == list(applied)
    await backend.close()
