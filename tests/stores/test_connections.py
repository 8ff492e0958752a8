"""What every connection to a server does when it breaks, hangs, is late, forked or left, on both sides."""

import gc
import secrets
import signal
import time
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Inspect, Refused, Released, Status
from dibs.stores.port import step
from dibs.stores.registry import store_for
from dibs.testing.proxy import FaultProxy
from tests.connections import connection_to
from tests.servers.ports import free_port
from tests.stores.places import Place
from tests.stores.sides import Side, acquire, both_sides, granted, in_child, in_threads, on, release

A, B = ("a" * 22, "b" * 22)
OTHER = Inspect(b"lock:other")


databases = on("redis", "postgres")
services = on("redis", "postgres", "http")


async def gets_its_own_answer(side: Side, connection: Any) -> None:
    """The answer to what is asked now, not one to what was asked before."""
    (status,) = await side.again(connection, OTHER)
    assert isinstance(status, Status)
    assert status.key == OTHER.key


@pytest.fixture
def key() -> bytes:
    return b"lock:" + secrets.token_hex(6).encode()


@services
async def test_a_connection_that_ended_while_idle_is_replaced(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    proxy, url = way
    connection = await side.open(url, listen=False)
    token = granted((await connection.apply([acquire(A, key)]))[0]).token
    if url.startswith("redis") and side.mode == "blocking":
        await side.pause(1.1)  # they check a connection that was idle for a second
    proxy.cut()
    await side.pause(0.05)
    assert granted((await connection.apply([acquire(A, key)]))[0]).token == token


@services
async def test_a_call_that_hangs_ends_in_time(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    proxy, url = way
    connection = await side.open(url, listen=False)
    await connection.apply([acquire(A, key)])
    proxy.hang()
    began = time.monotonic()
    with pytest.raises((BackendUnavailable, TimeoutError)):
        await side.within(0.2, connection, Inspect(key))
    assert 0.15 < time.monotonic() - began < 3
    proxy.heal()
    await gets_its_own_answer(side, connection)


@databases
async def test_an_old_answer_is_never_taken_for_a_new_one(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    """The first call's answer comes when the second call waits for its own."""
    proxy, url = way
    connection = await side.open(url, listen=False)
    await connection.apply([acquire(A, key), release(A, key)])
    proxy.delay(0.4)
    with pytest.raises((BackendUnavailable, TimeoutError)):
        await side.within(0.2, connection, acquire(A, key))
    proxy.heal()
    await gets_its_own_answer(side, connection)
    await side.pause(0.3)
    assert (await connection.apply([release(A, key)]))[0] == Released()


@pytest.mark.parametrize("place", ["redis", "postgres"], indirect=True)
@in_threads
async def test_an_interrupted_call_leaves_no_answer_for_the_next(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    proxy, url = way
    connection = await side.open(url, listen=False)
    proxy.hang()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            await connection.apply([Inspect(key)])
    finally:
        signal.signal(signal.SIGALRM, before)
    proxy.heal()
    await gets_its_own_answer(side, connection)


@pytest.mark.parametrize("count", [0, 20])
@databases
async def test_a_reset_in_the_middle_of_an_answer(
    side: Side, way: tuple[FaultProxy, str], key: bytes, count: int
) -> None:
    proxy, url = way
    connection = await side.open(url, listen=False)
    token = granted((await connection.apply([acquire(A, key)]))[0]).token
    proxy.reset_after(count, "to_client")
    with pytest.raises(BackendUnavailable):
        await connection.apply([acquire(A, key + b"2"), acquire(A, key)])
    assert proxy.resets == 1
    assert granted((await side.again(connection, acquire(A, key)))[0]).token == token


@pytest.mark.parametrize(
    "url",
    ["redis://{}", "postgresql://app:hunter2@{}/x", "http://hunter2@{}", "nats://hunter2@{}",
     "etcd://app:hunter2@{}", "temporal://{}/default", "s3://bucket?endpoint=http://{}"],
)  # fmt: skip
@both_sides
async def test_where_nobody_listens(side: Side, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    place = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match=place) as failure:
        await side.open(url.format(place))
    assert "check" in str(failure.value)
    assert "hunter2" not in f"{failure.value} {failure.value.__cause__!r}"
    assert time.monotonic() - began < 10


@on("redis", "postgres", "http", "sqlite", "nats")
async def test_it_may_be_closed_and_opened_again(side: Side, place: Place, key: bytes) -> None:
    """Its inbox is another one then. None can be guessed."""
    connection = connection_to(store_for(place.url), side.mode)
    assert connection.inbox == "", "making it connects to nothing"
    inboxes = set()
    for _ in range(2):
        await connection.open()
        inboxes.add(connection.inbox)
        await side.hand_over(connection, connection, key)
        await connection.close()
        assert connection.inbox == ""
    assert len(inboxes) == 2
    assert all(len(inbox) >= 16 for inbox in inboxes)


@on("redis", "postgres", "http", "nats")
async def test_a_fork_leaves_the_parents_connections_alone(
    side: Side, place: Place, key: bytes
) -> None:
    connection, other = await side.open(place.url), await side.open(place.url)
    token = granted((await connection.apply([acquire(A, key)]))[0]).token

    def use_it_too() -> None:
        connection.after_fork()
        gc.collect()
        assert connection.inbox == ""
        if side.mode == "blocking":
            (refused,) = step(connection.apply([acquire(B, key)]))
            assert isinstance(refused, Refused)

    in_child(use_it_too)
    assert granted((await connection.apply([acquire(A, key)]))[0]).token == token
    await side.hand_over(connection, other, key)
    await side.hand_over(other, connection, key)
