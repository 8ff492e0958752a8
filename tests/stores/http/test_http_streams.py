"""Streams: what is heard over them, how their end is noticed, and how commands follow them."""

import asyncio
import time
from contextlib import suppress

import msgspec
import pytest

from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from dibs.model import Notification, Released
from dibs.stores.http import wire
from dibs.stores.registry import store_for
from tests.stores.http.peers import Peer, answer, batch, problem, service, stream
from tests.stores.sides import Side, acquire, both_sides, in_threads

PUSH = Notification(b"lock:a", "print", "", "granted", 7, (0,), 1.5, 5.0)
RELEASED = batch(Released())


def event(kind: str, data: bytes = b"{}") -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def pushed(push: Notification = PUSH) -> bytes:
    return event("notification", msgspec.json.encode(wire.to_wire(push)))


@both_sides
async def test_what_was_pushed_arrives(side: Side) -> None:
    strange = event("bye", b"what is this?")
    with Peer(service(stream=stream(b": hello\n\n", strange, pushed(), inbox="s1.x"))) as peer:
        backend = await side.open(store_for(peer.url))
        assert backend.inbox == "s1.x"
        assert await side.pushed(backend, "granted") == Notification(
            b"lock:a", "print", "s1.x", "granted", 7, (0,), 1.5, 5.0
        )


async def test_a_loops_notifications_are_handed_over_at_once() -> None:
    taken = list[Notification]()
    with Peer(service()) as peer:
        connection = store_for(peer.url).async_connection()
        await connection.open()
        await connection.subscribe(
            lambda news: None if isinstance(news, DibsError) else taken.extend(news)
        )
        peer.links[-1].sendall(pushed())
        async with asyncio.timeout(10):
            while not taken:
                await asyncio.sleep(0.005)
        await connection.close()
    assert [each.token for each in taken] == [7]


@both_sides
async def test_who_may_have_missed_some_is_told(side: Side) -> None:
    with Peer(service()) as peer:
        backend = await side.open(store_for(peer.url))
        peer.links[-1].sendall(event("recheck"))
        assert "may have been missed" in str(await side.broken(backend))
        assert list(await backend.notifications(0.01)) == []
        assert backend.inbox == "s1.a"  # it goes on


@both_sides
async def test_a_stream_that_ends_comes_again_as_another_inbox(side: Side) -> None:
    with Peer(service(stream=stream(inbox="s1.one"), batch=RELEASED)) as peer:
        backend = await side.open(store_for(peer.url))
        peer.say = service(stream=stream(pushed(), inbox="s1.two"), batch=RELEASED)
        peer.hang_up()
        assert "hung up" in str(await side.broken(backend))
        assert backend.inbox == "s1.one"  # so that nobody asks every moment meanwhile
        assert (await side.pushed(backend, "granted")).inbox == "s1.two"
        assert backend.inbox == "s1.two"


@both_sides
async def test_a_silent_stream_is_given_up(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.SLACK", 0.1)

    with Peer(service(stream=stream(beat=0.1))) as peer:
        backend = await side.open(store_for(peer.url))
        began = time.monotonic()
        for _ in range(4):  # so long it lives, longer than its silence may be
            peer.links[-1].sendall(b": still here\n\n")
            assert list(await backend.notifications(0.15)) == []
        assert "did not answer in time" in str(await side.broken(backend))
        assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (problem(401, "revoked"), Forbidden, "revoked"),
        (answer(200, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (stream(inbox="").replace(b'"inbox"', b'"box"'), NotConfigured, "can't be read"),
    ],
)
@both_sides
async def test_what_is_no_stream(said: bytes, kind: type[DibsError], told: str, side: Side) -> None:
    with Peer(service(stream=said)) as peer:
        with pytest.raises(kind, match=told) as raised:
            await side.open(store_for(peer.url))
        assert type(raised.value) is kind


@pytest.mark.parametrize("said", [problem(429, "too many streams"), answer(200, b"hi"), None])
@both_sides
async def test_without_a_stream_all_else_goes_on(
    said: bytes | None, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing depends on pushes, least of all a renewal."""
    monkeypatch.setattr("dibs.stores.http.stream.SPREAD", 0.05)

    with Peer(service(stream=said, batch=RELEASED)) as peer:
        backend = await side.open(store_for(peer.url))
        assert backend.inbox.startswith(".")  # so that waiters don't ask every moment
        await backend.apply([acquire(inbox=backend.inbox)])
        for _ in range(3):
            with suppress(BackendUnavailable):  # there is none, still
                assert list(await backend.notifications(0.1)) == []
        assert len(peer.links) < 10
        peer.say = service(stream=stream(pushed(), inbox="s1.x"), batch=RELEASED)
        assert (await side.pushed(backend, "granted")).inbox == "s1.x"
        assert backend.inbox == "s1.x"


@in_threads
async def test_threads_that_wait_for_nothing_have_no_stream(side: Side) -> None:
    with Peer(service()) as peer:
        backend = await side.open(store_for(peer.url), listen=False)
        assert (backend.inbox, list(await backend.notifications(0))) == ("", [])
        assert peer.asked == ["/v1/about"]


# ---- several servers behind one address -----------------------------------------------------------


@both_sides
async def test_commands_follow_the_stream(side: Side) -> None:
    """A balancer spreads connections over two servers: ours end up where the stream is."""
    with Peer(service(batch=batch(Released(), Released(), server="s2"))) as peer:
        backend = await side.open(store_for(peer.url))
        command = acquire(inbox=backend.inbox)
        links = len(peer.links)
        for _ in range(5):
            await backend.apply([acquire(), command])
        assert len(peer.links) == links + 1  # one more try at once, and none soon after
        peer.say = service(batch=RELEASED)
        await backend.apply([command])
        assert len(peer.links) == links + 1
