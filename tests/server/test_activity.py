"""Looks at a store: nothing that goes wrong there ends them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from dibs.errors import BackendUnavailable, Forbidden
from dibs.model import Acquire, Page
from dibs.server import activity, key_changes
from dibs.server.activity import Activity
from dibs.session import session_for
from tests.server.inside import Stores, alone

LONG = 30.0


@pytest.fixture
async def runtime() -> AsyncIterator[Stores]:
    session = session_for(f"memory://{uuid4()}")
    runtime = alone(session.loop_runtime())
    await runtime.ready()
    yield runtime
    await session.close_loop()
    session.close()


def activity_of(runtime: Stores) -> Activity:
    return Activity(runtime.now, runtime.scan)


async def events_told(seen: Activity, news: asyncio.Event) -> list[str]:
    async with asyncio.timeout(LONG):
        await news.wait()
    return [event.what for event in seen.log.after(0, 100)]


@pytest.mark.parametrize("error", [BackendUnavailable("away"), RuntimeError("a bug")])
async def test_a_walk_that_fails_is_begun_again(
    runtime: Stores,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(activity, "FOLLOWED", 0.01)
    scan, failures = runtime.scan, 3

    async def failing(prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise error
        return await scan(prefix, cursor, limit)

    monkeypatch.setattr(runtime, "scan", failing)
    seen, news = activity_of(runtime), asyncio.Event()
    with caplog.at_level(logging.WARNING), seen.following(news):
        async with seen.polling():
            await runtime.call(Acquire(b"lock:x", "i" * 22, "me", 30.0))
            assert await events_told(seen, news) == ["granted"]
    assert len(caplog.records) == 3


async def test_more_keys_than_a_page(runtime: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "FOLLOWED", 0.01)
    monkeypatch.setattr(activity, "PAGE", 3)
    seen = activity_of(runtime)
    for number in range(10):
        await runtime.call(Acquire(b"lock:%d" % number, f"{number:022}", "me", 30.0))
    async with seen.polling(), asyncio.timeout(LONG):
        with seen.following(asyncio.Event()):
            while len(seen.keys.all()) < 10:
                await asyncio.sleep(0.01)
    assert seen.log.last == 10


async def test_nobody_watches_any_more(runtime: Stores) -> None:
    seen, news = activity_of(runtime), asyncio.Event()
    with seen.following(news), seen.following(news, b"lock:x"):
        assert seen._followed == {None: 1, b"lock:x": 1}
    assert not seen._followed


async def test_what_is_over_is_forgotten_where_nothing_can_be_listed(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object) -> Page:
        raise Forbidden("no SCAN for this user")

    monkeypatch.setattr(activity, "FOLLOWED", 0.01)
    monkeypatch.setattr(key_changes, "LATE", 0.0)
    monkeypatch.setattr(runtime, "scan", forbidden)
    seen, news = activity_of(runtime), asyncio.Event()
    for number in range(20):
        for who in ("a", "b"):
            wish = Acquire(b"lock:%d" % number, who * 22, "me", 0.2, queue=True, waiter_ttl=0.2)
            seen.keys.applied(wish, (await runtime.call(wish)).reply)
    for who in ("k", "l"):
        kept = Acquire(b"lock:kept", who * 22, "me", 60.0, queue=True, waiter_ttl=0.2)
        seen.keys.applied(kept, (await runtime.call(kept)).reply)
    assert len(seen.keys.all()) == 21
    async with seen.polling(), asyncio.timeout(LONG):
        with seen.following(news):
            while len(seen.keys.all()) > 1 or seen.keys.all()[0].waiters:
                seen.keys._at(b"lock:kept")  # there are commands about it all the time
                await asyncio.sleep(0.01)
    assert [each.key for each in seen.keys.all()] == [b"lock:kept"]


async def test_what_is_renewed_elsewhere_has_not_ended(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "UNFOLLOWED", 0.3)
    monkeypatch.setattr(key_changes, "LATE", 0.0)
    seen = activity_of(runtime)
    take = Acquire(b"lock:x", "i" * 22, "me", 0.2)
    async with seen.polling():
        for _ in range(20):
            await runtime.call(take)
            await asyncio.sleep(0.05)
    assert [each.what for each in seen.log.after(0, 100)] == ["granted"]


async def test_of_many_keys_the_oldest_are_forgotten(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_changes, "MAX_KEYS", 3)
    seen = activity_of(runtime)
    for number in range(5):
        wish = Acquire(b"lock:%d" % number, f"{number:022}", "me", 60.0)
        seen.keys.applied(wish, (await runtime.call(wish)).reply)
    assert [each.key for each in seen.keys.all()] == [b"lock:2", b"lock:3", b"lock:4"]
