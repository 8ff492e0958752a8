"""Notifications: over one subscription, which is made again when it breaks."""

from pathlib import Path

import pytest

from dibs.testing.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, release
from tests.stores.redis.counting import calls, ours, reset


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def test_a_notification_reaches_its_inbox(side: Side, redis_url: str) -> None:
    async def case() -> None:
        url = f"{redis_url}?protocol=3"  # which is accepted and makes no difference
        waiter, other = await side.open(url), await side.open(url)
        await other.apply([acquire("a")])
        await waiter.apply([acquire("b", queue=True, inbox=waiter.inbox)])
        await other.apply([release("a")])
        push = await side.pushed(waiter, "granted")
        assert (push.key, push.inbox) == (KEY, waiter.inbox)

    side.run(case)


def test_a_push_to_oneself_takes_no_way_round(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])
        reset(redis_server)
        await backend.apply([release("a")])
        assert (await backend.notifications(0))[0].event == "granted"
        assert "publish" not in calls(redis_server)

    side.run(case)


def test_inboxes_can_not_be_guessed(side: Side, redis_url: str) -> None:
    async def case() -> None:
        inboxes = {(await side.open(redis_url)).inbox for _ in range(4)}
        assert len(inboxes) == 4
        assert all(len(inbox.rpartition(":")[2]) >= 22 for inbox in inboxes)

    side.run(case)


def test_garbage_in_an_inbox_harms_nobody(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        with redis_server.client() as client:
            for garbage in (b"", b"\xff\0", b"1|2|3", b"x" * 100_000):
                client.publish(backend.inbox, garbage)
        await backend.apply([acquire("a"), acquire("b", queue=True, inbox=backend.inbox)])
        await backend.apply([release("a")])
        assert (await side.pushed(backend, "granted")).key == KEY

    side.run(case)


def test_a_killed_subscription_is_told_and_made_again(
    side: Side, redis_server: RedisServer, redis_url: str
) -> None:
    async def case() -> None:
        backend = await side.open(redis_url)
        inbox = backend.inbox
        with redis_server.client() as client:
            for each in ours(redis_server, subscribed=True):
                client.client_kill_filter(_id=each["id"])
        await side.broken(backend)
        await side.resumed(backend)
        assert backend.inbox == inbox
        other = await side.open(redis_url)
        await other.apply([acquire("a")])
        await backend.apply([acquire("b", queue=True, inbox=inbox)])
        await other.apply([release("a")])
        assert (await side.pushed(backend, "granted")).inbox == inbox

    side.run(case)


def test_a_subscription_ends_with_its_server_and_comes_again(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path) as server:
            backend = await side.open(server.url)
            server.kill()
            await side.broken(backend)
            await side.broken(backend)  # it can't be made again yet
            server.start()
            await side.again(backend, acquire("a"))
            await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
            other = await side.open(server.url)
            await side.resumed(backend)
            await other.apply([release("a")])
            assert (await side.pushed(backend, "granted")).key == KEY

    side.run(case)


def test_a_subscription_that_has_gone_silent_is_found_out(
    side: Side, redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aio", "threads"):
        monkeypatch.setattr(f"dibs.stores.redis.{module}.PING_EVERY", 0.2)

    async def case() -> None:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            backend = await side.open(proxy.url_for(redis_url))
            assert list(await backend.notifications(1.0)) == []  # pings are answered
            proxy.hang()
            await side.broken(backend, within=20.0)

    side.run(case)
