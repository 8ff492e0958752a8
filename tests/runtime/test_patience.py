"""A store that stands still: whoever calls from a thread waits no longer for it than he said."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs import AcquireTimeout, BackendUnavailable
from dibs.sync import connect
from dibs.testing.proxy import FaultProxy
from tests.server.world import World
from tests.servers.redis import RedisServer

LATE = 4.0
"""Seconds: less than a sixth of the ttl, which a call would have otherwise; a second is meant."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[World]:
    world = World.over(tmp_path)
    yield world
    world.close()


@pytest.fixture(params=["redis", "service"])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[FaultProxy, str, str]]:
    """What stands between us and a store, the URL that leads through it, and the one around it."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        port, url = server.port, request.getfixturevalue("redis_url")
    else:
        world: World = request.getfixturevalue("service")
        port = int(world.url.rpartition(":")[2])
        url = world.url.replace("://", f"://{world.admin_key}@")
    with FaultProxy("127.0.0.1", port) as proxy:
        yield proxy, proxy.url_for(url), url


@pytest.mark.once
@pytest.mark.parametrize("when", ["before it is connected", "in the middle"])
def test_a_caller_waits_as_long_as_he_said(way: tuple[FaultProxy, str, str], when: str) -> None:
    proxy, url, _ = way
    with connect(url) as client:
        if when == "in the middle":
            client.lock("patient").acquire().release()
        proxy.hang()
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="in time"):
            client.lock("patient", ttl=60).acquire(wait=0.2)
        assert time.monotonic() - began < LATE
        proxy.heal()
        client.lock("patient").acquire(wait=20).release()


@pytest.mark.once
def test_so_does_who_waits_in_line(
    way: tuple[FaultProxy, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for who is in the way, which it asks, and its leave, which it takes."""
    monkeypatch.setattr("dibs.primitives.deadlock.ASIDE", 0.3)
    monkeypatch.setattr("dibs.primitives.asking.ASIDE", 0.3)
    proxy, url, around = way
    with connect(url) as client, connect(around) as other:
        held = other.lock("patient").acquire()
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, AcquireTimeout)):
            client.lock("patient", ttl=60).acquire(wait=1.5, on_wait=lambda _: proxy.hang())
        assert time.monotonic() - began < 1.5 + LATE
        proxy.heal()
        held.release()
        client.lock("patient").acquire(wait=20).release()
