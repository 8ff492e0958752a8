"""One call for an acquire, one that waits for a waiter, and notifications that reach it."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus as Is

import dibs.sync
from dibs.errors import IncompatibleVersion
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Queued,
    Release,
    Released,
    Renew,
    Revoke,
    Status,
)
from dibs.stores.registry import store_for
from dibs.stores.temporal import store as temporal_store
from dibs.stores.temporal import wire
from dibs.stores.temporal.ids import broker_id
from tests.stores.redis.both_worlds import Side, acquire, granted, release
from tests.stores.temporal.looking import Looker, new_key

pytestmark = pytest.mark.once


async def queue(backend: Any, name: str, key: bytes) -> Queued:
    (reply,) = await backend.apply([acquire(name, key, queue=True, inbox=backend.inbox)])
    assert isinstance(reply, Queued), reply
    return reply


def test_what_is_granted_at_once_costs_one_update(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        ask = acquire("a", key, queue=True, inbox=backend.inbox)
        granted((await backend.apply([ask]))[0])
        assert look.updates(broker_id(key)) == 1
        assert await backend.apply([release("a", key)]) == [Released()]
        assert look.updates(broker_id(key)) == 2

    side.run(case)


def test_who_waits_has_one_call_at_the_broker_that_ends_with_its_place(
    url: str, side: Side
) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        holder, waiter = await side.open(store_for(url)), await side.open(store_for(url))
        await holder.apply([acquire("a", key)])
        await queue(waiter, "b", key)
        await queue(waiter, "c", key)
        while look.updates(broker_id(key)) < 4:  # three calls, and one that waits
            await side.pause(0.02)
        await holder.apply([release("a", key)])
        push = await side.pushed(waiter, "granted")
        assert push.key == key
        await waiter.apply([release("b", key), release("c", key)])
        await side.pause(0.3)
        before = look.updates(broker_id(key))
        await side.pause(0.3)
        assert look.updates(broker_id(key)) == before

    side.run(case)


def test_a_holder_that_renews_hears_of_its_revocation(url: str, side: Side) -> None:
    key = new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        await backend.apply([acquire("a", key, queue=True, inbox=backend.inbox)])
        await backend.apply([Renew(key, "a", 30.0, backend.inbox)])
        await backend.apply([Revoke(key, None, "upgrade")])
        assert (await side.pushed(backend, "revoked")).detail == "upgrade"

    side.run(case)


def test_who_waits_at_a_broker_that_is_ended_is_told_and_asks_again(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        holder, waiter = await side.open(store_for(url)), await side.open(store_for(url))
        await holder.apply([acquire("a", key)])
        await queue(waiter, "b", key)
        while look.updates(broker_id(key)) < 3:
            await side.pause(0.02)
        look.terminate(broker_id(key))
        assert "missed" in str(await side.broken(waiter))
        await holder.apply([acquire("a2", key)])
        await queue(waiter, "b", key)
        await holder.apply([release("a2", key)])
        assert (await side.pushed(waiter, "granted")).key == key

    side.run(case)


def test_a_push_that_can_not_be_read_is_told_and_the_next_is_heard(
    url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()

    def fail(*news: object) -> None:
        monkeypatch.undo()
        raise TypeError("no such thing")

    async def case() -> None:
        holder, waiter = await side.open(store_for(url)), await side.open(store_for(url))
        await holder.apply([acquire("a", key)])
        monkeypatch.setattr(temporal_store, "decode_notification", fail)
        await queue(waiter, "b", key)
        await holder.apply([release("a", key)])
        assert "no such thing" in str(await side.broken(waiter))
        granted((await waiter.apply([acquire("b", key, inbox=waiter.inbox)]))[0])

    side.run(case)


def test_ten_that_wait_delay_no_release(url: str, side: Side) -> None:
    """Five may block in a broker; with ten, a server would keep the release off for seconds."""
    key = new_key()

    async def case() -> None:
        holder = await side.open(store_for(url))
        waiters = [await side.open(store_for(url)) for _ in range(10)]
        await holder.apply([acquire("a", key, ttl=600.0)])
        for number, waiter in enumerate(waiters):
            await queue(waiter, f"w{number}", key)
        await side.pause(0.3)
        began = time.monotonic()
        assert await holder.apply([release("a", key)]) == [Released()]
        assert time.monotonic() - began < 1.0
        assert (await side.pushed(waiters[0], "granted")).key == key

    side.run(case)


def test_a_heartbeat_that_finds_a_waiter_in_front_ends_its_pause(
    url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_store, "LEAST_TURN", 600.0)
    monkeypatch.setattr(temporal_store, "MAX_FAR_BACK_PAUSE", 600.0)
    key = new_key()

    async def case() -> None:
        holder = await side.open(store_for(url))
        waiters = [await side.open(store_for(url)) for _ in range(7)]
        await holder.apply([acquire("a", key, ttl=600.0)])
        for number, waiter in enumerate(waiters):
            await queue(waiter, f"w{number}", key)
        await holder.apply([release(f"w{number}", key) for number in range(6)])
        (reply,) = await waiters[6].apply([Renew(key, "w6", 30.0, waiters[6].inbox)])
        assert isinstance(reply, Queued), reply
        await holder.apply([release("a", key)])
        assert (await side.pushed(waiters[6], "granted")).key == key

    side.run(case)


def test_those_behind_the_first_five_are_granted_soon_as_well(url: str) -> None:
    """They ask again in time, and then block in the broker themselves."""
    with dibs.sync.connect(url) as client:
        name = new_key().decode().partition(":")[2]
        held = client.lock(name, ttl=600).acquire()
        order: list[int] = []

        def turn(number: int) -> None:
            with dibs.sync.connect(url) as own, own.lock(name, wait=60):
                order.append(number)

        with ThreadPoolExecutor(8) as threads:
            turns = []
            for number in range(8):
                turns.append(threads.submit(turn, number))
                while client.status(name).waiting <= number:
                    time.sleep(0.01)
            held.release()
            began = time.monotonic()
            for each in turns:
                each.result()
        assert order == [*range(8)]
        assert time.monotonic() - began < 10.0


def test_looking_at_what_nobody_holds_starts_nothing(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        (status,) = await backend.apply([Inspect(key)])
        assert isinstance(status, Status)
        await backend.apply([Renew(key, "a", 30.0), Release(key, "a")])
        assert look.state(broker_id(key)) is None
        await backend.apply([Release(key, "a", tombstone=60.0)])
        assert look.state(broker_id(key)) is Is.RUNNING, "a burial is to be remembered"

    side.run(case)


def test_a_broker_that_was_ended_is_started_again(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        first = granted((await backend.apply([acquire("a", key)]))[0])
        look.terminate(broker_id(key))
        second = granted((await backend.apply([acquire("b", key)]))[0])
        assert second.token > first.token

    side.run(case)


def test_a_long_name_is_listed_by_others(url: str, side: Side) -> None:
    """Its broker's ID has but a hash; its memo has the key."""
    key = new_key() + b"/" + b"\xff" * 400

    async def case() -> None:
        await (await side.open(store_for(url))).apply([acquire("a", key)])
        other = await side.open(store_for(url))
        end = time.monotonic() + 20
        found: list[bytes] = []
        while not found and time.monotonic() < end:  # the server's index lags behind a little
            found = [status.key for status in (await other.scan(key[:40], None, 10)).items]
            await side.pause(0.05)
        assert found == [key]

    side.run(case)


def test_many_who_ask_at_once_share_calls(url: str, side: Side) -> None:
    """A server takes ten updates of a workflow at a time, and 2,000 of a run."""
    look, key = Looker(url), new_key()

    async def at_once(backend: Any, asks: list[Acquire]) -> list[Any]:
        if side.mode == "blocking":  # a backend of one thread, which asks for all of its threads
            return list(await backend.apply(asks))
        found = await asyncio.gather(*(backend.apply([ask]) for ask in asks))
        return [reply for (reply,) in found]

    async def case() -> None:
        backend = await side.open(store_for(url))
        replies = await at_once(backend, [acquire(f"n{n}", key, capacity=60) for n in range(60)])
        assert [type(reply) for reply in replies] == [Granted] * 60
        assert len({reply.slots for reply in replies}) == 60
        assert look.updates(broker_id(key)) <= 3

    side.run(case)


def test_a_client_that_is_newer_than_the_workers_is_told(
    url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BrokerCall", partial(wire.BrokerCall, format=wire.FORMAT + 1))

    async def case() -> None:
        backend = await side.open(store_for(url))
        with pytest.raises(
            IncompatibleVersion,
            match=f"the worker of this broker knows {wire.FORMAT}: update that first",
        ):
            await backend.apply([acquire("a", new_key())])

    side.run(case)


def test_what_is_too_large_is_refused_before_it_harms_its_key(url: str, side: Side) -> None:
    """Between 2 and 4 MB the server takes it, and the broker could never answer."""
    key = new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        large = Acquire(key, "a", "me", 30.0, capacity=1000, note="x" * 3_000_000)
        fitting = [acquire(f"n{n}", key, capacity=1000, note="y" * 1_900) for n in range(300)]
        replies = await backend.apply([acquire("b", key, capacity=1000), large, *fitting])
        assert replies[1] == Failed("invalid", replies[1].detail)
        assert f"{wire.TEXTS} bytes" in replies[1].detail
        rest = [replies[0], *replies[2:]]
        assert [reply.slots for reply in rest] == [(slot,) for slot in range(301)]

    side.run(case)
