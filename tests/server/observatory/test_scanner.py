"""Looks at a store: nothing that goes wrong there ends them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from dibs.errors import BackendUnavailable, Forbidden
from dibs.model import Acquire, Page
from dibs.server.observatory import picture, scanner
from dibs.server.observatory.observatory import Observatory
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


async def events_told(observatory: Observatory, bell: asyncio.Event) -> list[str]:
    async with asyncio.timeout(LONG):
        await bell.wait()
    return [event.what for event in observatory.ring.after(0, 100)]


@pytest.mark.parametrize("error", [BackendUnavailable("away"), RuntimeError("a bug")])
async def test_a_walk_that_fails_is_begun_again(
    runtime: Stores,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(scanner, "WATCHED", 0.01)
    scan, failures = runtime.connection.scan, 3

    async def failing(prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise error
        return await scan(prefix, cursor, limit)

    monkeypatch.setattr(runtime.connection, "scan", failing)
    observatory, bell = Observatory(runtime), asyncio.Event()
    with caplog.at_level(logging.WARNING), observatory.watched(bell):
        async with observatory.at_work():
            await runtime.call(Acquire(b"lock:x", "i" * 22, "me", 30.0))
            assert await events_told(observatory, bell) == ["granted"]
    assert len(caplog.records) == 3


async def test_more_keys_than_a_page(runtime: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "WATCHED", 0.01)
    monkeypatch.setattr(scanner, "PAGE", 3)
    observatory = Observatory(runtime)
    for number in range(10):
        await runtime.call(Acquire(b"lock:%d" % number, f"{number:022}", "me", 30.0))
    async with observatory.at_work(), asyncio.timeout(LONG):
        with observatory.watched(asyncio.Event()):
            while len(observatory.picture) < 10:
                await asyncio.sleep(0.01)
    assert observatory.ring.last == 10


async def test_nobody_watches_any_more(runtime: Stores) -> None:
    observatory, bell = Observatory(runtime), asyncio.Event()
    with observatory.watched(bell), observatory.watched(bell, b"lock:x"):
        assert observatory.scanner.is_close(b"lock:x")
    assert not observatory.scanner.is_watched
    assert not observatory.scanner.is_close(b"lock:x")


async def test_what_is_over_is_forgotten_where_nothing_can_be_listed(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object) -> Page:
        raise Forbidden("no SCAN for this user")

    monkeypatch.setattr(scanner, "WATCHED", 0.01)
    monkeypatch.setattr(picture, "LATE", 0.0)
    monkeypatch.setattr(runtime.connection, "scan", forbidden)
    observatory, bell = Observatory(runtime), asyncio.Event()
    for number in range(20):
        for who in ("a", "b"):
            wish = Acquire(b"lock:%d" % number, who * 22, "me", 0.2, queue=True, waiter_ttl=0.2)
            observatory.picture.saw(wish, (await runtime.call(wish)).reply)
    for who in ("k", "l"):
        kept = Acquire(b"lock:kept", who * 22, "me", 60.0, queue=True, waiter_ttl=0.2)
        observatory.picture.saw(kept, (await runtime.call(kept)).reply)
    assert len(observatory.picture) == 21
    async with observatory.at_work(), asyncio.timeout(LONG):
        with observatory.watched(bell):
            while len(observatory.picture) > 1 or observatory.picture.all()[0].places:
                observatory.picture._at(b"lock:kept")  # there are commands about it all the time
                await asyncio.sleep(0.01)
    assert [each.key for each in observatory.picture.all()] == [b"lock:kept"]


async def test_what_is_renewed_elsewhere_has_not_ended(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "UNWATCHED", 0.3)
    monkeypatch.setattr(picture, "LATE", 0.0)
    observatory = Observatory(runtime)
    take = Acquire(b"lock:x", "i" * 22, "me", 0.2)
    async with observatory.at_work():
        for _ in range(20):
            await runtime.call(take)
            await asyncio.sleep(0.05)
    assert [each.what for each in observatory.ring.after(0, 100)] == ["granted"]


async def test_of_many_keys_the_oldest_are_forgotten(
    runtime: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "MOST", 3)
    observatory = Observatory(runtime)
    for number in range(5):
        wish = Acquire(b"lock:%d" % number, f"{number:022}", "me", 60.0)
        observatory.picture.saw(wish, (await runtime.call(wish)).reply)
    assert [each.key for each in observatory.picture.all()] == [b"lock:2", b"lock:3", b"lock:4"]
