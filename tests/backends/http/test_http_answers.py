"""What comes of answers that nobody hopes for: each says what is the matter, and what to do."""

import asyncio
import pickle
import threading
import time
from pathlib import Path

import pytest

import dibs.sync
from dibs import connect
from dibs.backends import store_for
from dibs.backends.http import wire
from dibs.backends.http.names import encoded
from dibs.backends.http.settings import IDLE
from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    MissingCapability,
    NotConfigured,
)
from dibs.model import Failed, Granted, Inspect, Status
from tests.backends.http.peers import Peer, about, answer, batch, problem, service
from tests.backends.redis.both_worlds import Side, acquire

GRANTED = wire.Granted(7, (0,), 30.0)


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def failure(side: Side, said: bytes | None, *, listen: bool = False) -> DibsError:
    """What a batch that is answered so raises."""
    found: list[DibsError] = []

    async def case() -> None:
        with Peer(service(batch=said)) as peer:
            backend = await side.open(store_for(peer.url), listen=listen)
            with pytest.raises(DibsError) as raised:
                await backend.apply([acquire()])
            assert "secret" not in str(raised.value)
            assert f"127.0.0.1:{peer.port}" in str(raised.value)
            found.append(raised.value)

    side.run(case)
    assert type(pickle.loads(pickle.dumps(found[0]))) is type(found[0])
    return found[0]


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (problem(401, "there is no such key"), Forbidden, "there is no such key"),
        (problem(403, "not there"), Forbidden, "not there"),
        (problem(404), NotConfigured, "is the path in the URL right"),
        (problem(503, "the store is away"), BackendUnavailable, "the store is away"),
        (problem(429, "too many"), BackendUnavailable, "too many"),
        (problem(400, "the batch: nonsense"), DibsError, "the batch: nonsense"),
        (answer(500, b"<html>"), BackendUnavailable, "status 500"),
        (
            answer(502, b"<html>", server=None),
            BackendUnavailable,
            "before the service answered 502",
        ),
        (answer(200, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(404, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(401, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(400, b"hi", server=None), NotConfigured, "want TLS"),
        (
            answer(308, server=None, location="https://elsewhere/"),
            NotConfigured,
            "redirects to https://elsewhere/",
        ),
        (batch(GRANTED, dibs_format="2"), IncompatibleVersion, "format 2"),
        (batch(), BackendUnavailable, "0 replies to 1 commands"),
        (batch(GRANTED, GRANTED), BackendUnavailable, "2 replies to 1 commands"),
        (answer(200, b"\xc1"), BackendUnavailable, "can't be read"),
        (batch(wire.Status("b?d", 1)), BackendUnavailable, "can't be read"),
        (b"SSH-2.0-OpenSSH_9\r\n", NotConfigured, "is no Dibs service"),
        (None, BackendUnavailable, "hung up"),
    ],
)
def test_what_an_answer_means(
    said: bytes | None, kind: type[DibsError], told: str, side: Side
) -> None:
    error = failure(side, said)
    assert type(error) is kind
    assert told in str(error)


def test_when_to_try_again(side: Side) -> None:
    assert failure(side, problem(503, retry_after="3")).retry_after == 3
    assert failure(side, answer(503, server=None, retry_after="7")).retry_after == 7
    assert failure(side, answer(503, server=None, retry_after="soon")).retry_after is None


def test_a_missing_key_is_asked_for(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_API_KEY", raising=False)

    async def case() -> None:
        with Peer(service(about=problem(401, "send an API key"))) as peer:
            with pytest.raises(Forbidden, match="wants an API key: set DIBS_API_KEY"):
                await side.open(store_for(f"http://127.0.0.1:{peer.port}"))
            assert b"authorization" not in peer.heads[0]

    side.run(case)


def test_a_refused_key_is_looked_for_again(side: Side, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("dibs_old")

    async def case() -> None:
        with Peer(lambda path, body: about()) as peer:
            known = service(batch=problem(401, "revoked"))
            peer.say = known
            store = store_for(f"http://127.0.0.1:{peer.port}?key_file={file}")
            backend = await side.open(store, listen=False)
            file.write_text("dibs_new")
            with pytest.raises(Forbidden, match="revoked"):
                await backend.apply([acquire()])
            peer.say = service(batch=batch(GRANTED))
            assert await backend.apply([acquire()]) == [Granted(7, (0,), 30.0)]
            assert [b"dibs_new" in head for head in peer.heads] == [False, False, True]

    side.run(case)


def test_one_command_may_fail(side: Side) -> None:
    async def case() -> None:
        said = batch(GRANTED, wire.Failed("forbidden", "no"), wire.Status(encoded(b"lock:a"), 1))
        with Peer(service(batch=said)) as peer:
            backend = await side.open(store_for(peer.url), listen=False)
            assert list(await backend.apply([acquire(), acquire(), Inspect(b"lock:a")])) == [
                Granted(7, (0,), 30.0),
                Failed("forbidden", "no"),
                Status(b"lock:a", 1),
            ]

    side.run(case)


def test_a_path_before_ours(side: Side) -> None:
    async def case() -> None:
        with Peer(service(batch=batch(GRANTED))) as peer:
            await side.open(store_for(f"{peer.url}/some/where/"), listen=True)
            assert peer.asked == ["/some/where/v1/about", "/some/where/v1/stream"]

    side.run(case)


def test_nobody_there(side: Side) -> None:
    async def case() -> None:
        with Peer(service()) as peer:
            url = peer.url
        with pytest.raises(BackendUnavailable, match=r"reached: nobody listens there; check that"):
            await side.open(store_for(url))

    side.run(case)


def test_a_connection_that_was_closed_meanwhile_is_not_used(side: Side) -> None:
    async def case() -> None:
        with Peer(service(batch=batch(GRANTED))) as peer:
            backend = await side.open(store_for(peer.url), listen=False)
            peer.hang_up()
            await side.pause(0.05)
            assert list(await backend.apply([acquire()])) == [Granted(7, (0,), 30.0)]
            assert len(peer.links) == 2

    side.run(case)


def test_a_service_that_says_goodbye_is_believed(side: Side) -> None:
    async def case() -> None:
        with Peer(service(batch=batch(GRANTED, connection="close"))) as peer:
            backend = await side.open(store_for(peer.url), listen=False)
            for _ in range(3):
                await backend.apply([acquire()])
            assert len(peer.links) == 3  # the first was also asked who is there

    side.run(case)


def test_a_connection_that_was_idle_for_long_is_not_used(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE < 60  # what many a balancer waits
    for world in ("loop_link", "socket_link"):
        monkeypatch.setattr(f"dibs.backends.http.{world}.IDLE", 0.2)

    async def case() -> None:
        with Peer(service(batch=batch(GRANTED))) as peer:
            backend = await side.open(store_for(peer.url), listen=False)
            await backend.apply([acquire()])
            await side.pause(0.25)
            await backend.apply([acquire()])
            assert len(peer.links) == 2

    side.run(case)


def test_a_call_is_given_up_in_time(side: Side) -> None:
    """A renewal must leave time for another; the loop's batcher sees to that there."""

    def say(path: str, body: bytes) -> bytes | None:
        if path.endswith("about"):
            return about()
        over.wait(10)
        return None

    over = threading.Event()

    async def case() -> None:
        with Peer(say) as peer:
            backend = await side.open(store_for(peer.url), listen=False)
            began = time.monotonic()
            with pytest.raises((BackendUnavailable, TimeoutError)):
                if side.mode == "async":
                    async with asyncio.timeout(0.1):
                        await backend.apply([acquire(ttl=0.6)])
                await backend.apply([acquire(ttl=0.6)])
            assert time.monotonic() - began < 5
            over.set()

    side.run(case)


# ---- promises -------------------------------------------------------------------------------------


def test_nothing_is_promised_before_the_service_was_asked(side: Side) -> None:
    async def case() -> None:
        with Peer(service()) as peer:
            store = store_for(peer.url)
            assert not store.capabilities.asked
            assert store.capabilities.names() <= {"cluster", "host", "process"}
            await side.open(store, listen=False)
            assert store.capabilities.asked
            assert {"durable", "crash", "push", "clock"} <= store.capabilities.names()

    side.run(case)


@pytest.mark.parametrize(("word", "kept"), [("durable", True), ("power-loss", False)])
async def test_what_is_required_is_judged_by_the_service_s_word(word: str, kept: bool) -> None:
    with Peer(service(batch=batch(GRANTED))) as peer:
        client = connect(peer.url)
        lock = client.lock("a", require={word})
        if kept:
            lease = await lock.acquire()
            peer.say = service(batch=batch(wire.Released()))
            await lease.release()
        else:
            with pytest.raises(MissingCapability, match="power-loss"):
                await lock.acquire()
        await client.close()


@pytest.mark.parametrize(("word", "kept"), [("durable", True), ("power-loss", False)])
def test_likewise_for_threads(word: str, kept: bool) -> None:
    with Peer(service(batch=batch(GRANTED))) as peer, dibs.sync.connect(peer.url) as client:
        lock = client.lock("a", require={word})
        if kept:
            lease = lock.acquire()
            peer.say = service(batch=batch(wire.Released()))
            lease.release()
        else:
            with pytest.raises(MissingCapability, match="power-loss"):
                lock.acquire()
