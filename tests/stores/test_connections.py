"""What every connection to a server does when it breaks, hangs, is late, forked or left, on both sides."""

import asyncio
import gc
import os
import secrets
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Granted, Inspect, Queued, Refused, Released, Status
from dibs.stores.registry import store_for
from dibs.testing.proxy import FaultProxy
from tests.connections import connection_to
from tests.servers.ports import free_port
from tests.stores.places import Place, place_of
from tests.stores.sides import (
    Landed,
    Runway,
    Side,
    acquire,
    both_sides,
    granted,
    in_threads,
    release,
)

A, B, C = ("a" * 22, "b" * 22, "c" * 22)
OTHER = Inspect(b"lock:other")


def on(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", stores, indirect=True)


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


@pytest.fixture
def way(place: Place) -> Iterator[tuple[FaultProxy, str]]:
    """The way to the store through a proxy."""
    with place.proxied() as found:
        yield found


async def hand_over(side: Side, url: str, key: bytes) -> None:
    """A grant, a queue, a notification."""
    waiter, other = await side.open(url), await side.open(url)
    await other.apply([acquire(A, key)])
    await waiter.apply([acquire(B, key, queue=True, inbox=waiter.inbox)])
    await other.apply([release(A, key)])
    assert (await side.pushed(waiter, "granted")).key == key


# ---- a network that fails -------------------------------------------------------------------------


@services
@both_sides
async def test_a_connection_that_ended_while_idle_is_replaced(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    proxy, url = way
    connection = await side.open(url, listen=False)
    token = granted((await connection.apply([acquire(A, key)]))[0]).token
    await side.pause(1.1)  # Redis's threads check a connection that was idle for a second
    proxy.cut()
    await side.pause(0.05)
    assert granted((await connection.apply([acquire(A, key)]))[0]).token == token


@services
@both_sides
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
@both_sides
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


@databases
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


@databases
@both_sides
async def test_an_answer_that_is_lost_was_given(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    """The lease was granted, and its id gets the same grant again."""
    proxy, url = way
    connection, other = await side.open(url, listen=False), await side.open(url, listen=False)
    await connection.apply([OTHER])
    proxy.drop_replies()
    with pytest.raises((BackendUnavailable, TimeoutError)):
        await side.within(0.3, connection, acquire(A, key))
    proxy.heal()
    (refused,) = await side.again(other, acquire(B, key))
    assert isinstance(refused, Refused)
    (again,) = await side.again(connection, acquire(A, key))
    assert granted(again).token == refused.holders[0].token


@databases
@pytest.mark.parametrize("count", [0, 1, 20, 40])
@both_sides
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


@databases
@both_sides
async def test_a_large_batch_in_many_pieces(
    side: Side, way: tuple[FaultProxy, str], key: bytes
) -> None:
    proxy, url = way
    connection = await side.open(url)
    proxy.throttle(2_000_000)
    notes = [letter * 60_000 for letter in "abcdefgh"]
    await connection.apply([acquire(note[:22], key, capacity=8, note=note) for note in notes])
    (status,) = await connection.apply([Inspect(key)])
    assert [holder.note for holder in status.holders] == notes


@databases
@both_sides
async def test_a_broken_listener_is_reported_and_made_again(
    side: Side, way: tuple[FaultProxy, str], place: Place, key: bytes
) -> None:
    proxy, url = way
    waiter, other = await side.open(url), await side.open(place.url)
    proxy.cut()
    await side.broken(waiter)
    await side.again(waiter, OTHER)
    await side.resumed(waiter)
    await other.apply([acquire(A, key)])
    await waiter.apply([acquire(B, key, queue=True, inbox=waiter.inbox)])
    await other.apply([release(A, key)])
    assert (await side.pushed(waiter, "granted")).key == key


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


# ---- beginning, end and forks ---------------------------------------------------------------------


@pytest.mark.parametrize("store", ["redis", "postgres", "http", "sqlite", "nats"])
@both_sides
async def test_it_may_be_closed_and_opened_again(
    side: Side, store: str, key: bytes, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its inbox is another one then. None can be guessed."""
    if store == "sqlite":
        url = f"sqlite:///{tmp_path}/leases.db"
    else:
        url = place_of(store, request).url
    connection = connection_to(store_for(url), side.mode)
    assert connection.inbox == "", "making it connects to nothing"
    inboxes = set()
    for _ in range(2):
        await connection.open()
        inboxes.add(connection.inbox)
        await connection.apply([acquire(A, key)])
        await connection.apply([acquire(B, key, queue=True, inbox=connection.inbox)])
        await connection.apply([release(A, key)])
        assert (await side.pushed(connection, "granted")).key == key
        await connection.apply([release(B, key)])
        await connection.close()
        assert connection.inbox == ""
    assert len(inboxes) == 2
    assert all(len(inbox) >= 16 for inbox in inboxes)


@services
@both_sides
async def test_a_fork_leaves_the_parents_connections_alone(
    side: Side, place: Place, key: bytes
) -> None:
    connection, other = await side.open(place.url), await side.open(place.url)
    token = granted((await connection.apply([acquire(A, key)]))[0]).token
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connection.after_fork()
            gc.collect()
            code = 0 if connection.inbox == "" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert granted((await connection.apply([acquire(A, key)]))[0]).token == token
    await connection.apply([acquire(B, key, queue=True, inbox=connection.inbox)])
    await other.apply([release(A, key)])
    assert (await side.pushed(connection, "granted")).key == key


@databases
@in_threads
async def test_a_signal_handler_may_end_a_wait(side: Side, place: Place) -> None:
    connection = await side.open(place.url)
    previous = signal.signal(signal.SIGALRM, lambda *_: connection.wake())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        assert list(await connection.notifications(10)) == []
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, previous)


# ---- batches that are submitted, and answered by a call in the loop -------------------------------


@databases
async def test_two_batches_under_way_are_answered_in_their_order_without_a_task(
    place: Place,
) -> None:
    connection, runway = connection_to(store_for(place.url), "async"), Runway()
    await connection.open(listen=False)
    await connection.apply([acquire(), release()])
    tasks = asyncio.all_tasks()
    connection.submit([acquire("a"), acquire("b")], runway.land)
    connection.submit([release("a"), acquire("b", queue=True)], runway.land)
    assert asyncio.all_tasks() == tasks
    assert runway.landed == [], "they are under way"
    (status,) = await connection.apply([Inspect(acquire().key)])
    assert len(runway.landed) == 2, "what is asked besides takes its turn"
    assert [holder.owner for holder in status.holders] == ["owner-b"]
    assert kinds(runway.landed) == [[Granted, Refused], [Released, Granted]]
    await connection.close()


def kinds(landed: list[Landed]) -> list[list[type]]:
    return [[] if isinstance(each, Exception) else [*map(type, each)] for each in landed]


@databases
async def test_without_a_connection_a_batch_connects(place: Place) -> None:
    connection, runway = connection_to(store_for(place.url), "async"), Runway()
    connection.submit([acquire()], runway.land)
    assert runway.landed == []
    assert kinds(await runway.wait(1)) == [[Granted]]
    await connection.close()


@databases
async def test_batches_that_break_under_way_end_with_an_error(way: tuple[FaultProxy, str]) -> None:
    proxy, url = way
    connection, runway = connection_to(store_for(url), "async"), Runway()
    await connection.open(listen=False)
    await connection.apply([acquire(), release()])
    proxy.hang()
    give_up = connection.submit([acquire("a")], runway.land)
    connection.submit([acquire("b")], runway.land)
    give_up()
    outcomes = await runway.wait(2)
    assert [type(outcome) for outcome in outcomes] == [BackendUnavailable] * 2
    proxy.heal()
    assert isinstance((await connection.apply([acquire("c")]))[0], Granted)
    await connection.close()


@pytest.mark.parametrize(
    ("place", "reading"),
    [("redis", "redis.ledger.read_answer"), ("postgres", "postgres.aio.rows_of")],
    indirect=["place"],
)
async def test_an_answer_that_can_not_be_read_is_an_error(
    place: Place, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise KeyError("what is this")

    connection, runway = connection_to(store_for(place.url), "async"), Runway()
    await connection.open(listen=False)
    monkeypatch.setattr(f"dibs.stores.{reading}", stumble)
    connection.submit([acquire()], runway.land)
    (outcome,) = await runway.wait(1)
    assert isinstance(outcome, BackendUnavailable)
    await connection.close()


@databases
async def test_a_notification_to_oneself_comes_before_the_answer(place: Place) -> None:
    connection, runway = connection_to(store_for(place.url), "async"), Runway()
    events: list[str] = []
    await connection.open(listen=False)
    await connection.subscribe(lambda news: events.extend(each.event for each in news))
    _, queued = await connection.apply(
        [acquire("a"), acquire("b", queue=True, inbox=connection.inbox)]
    )
    assert isinstance(queued, Queued)

    def land(outcome: Landed) -> None:
        assert events == ["granted"]
        runway.land(outcome)

    connection.submit([release("a")], land)
    assert kinds(await runway.wait(1)) == [[Released]]
    await connection.close()
