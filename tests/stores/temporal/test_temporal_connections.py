"""One call for an acquire, a mailbox only for those who wait, and pushes that reach them."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus as Is

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
from dibs.stores.temporal.client import listening
from dibs.stores.temporal.protocol import wire
from dibs.stores.temporal.protocol.ids import broker_id
from tests.stores.redis.both_worlds import Side, acquire, granted, release
from tests.stores.temporal.looking import Looker, mailbox, new_key

pytestmark = pytest.mark.once


async def queue(backend: Any, name: str, key: bytes) -> Queued:
    (reply,) = await backend.apply([acquire(name, key, queue=True, inbox=backend.inbox)])
    assert isinstance(reply, Queued), reply
    return reply


def test_what_is_granted_at_once_costs_one_update_and_no_mailbox(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        backend = await side.open(store_for(url))
        ask = acquire("a", key, queue=True, inbox=backend.inbox)
        granted((await backend.apply([ask]))[0])
        assert look.updates(broker_id(key)) == 1
        assert await backend.apply([release("a", key)]) == [Released()]
        assert look.updates(broker_id(key)) == 2
        assert look.state(mailbox(backend)) is None

    side.run(case)


def test_who_waits_gets_a_mailbox_that_ends_with_it(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        holder, waiter = await side.open(store_for(url)), await side.open(store_for(url))
        await holder.apply([acquire("a", key)])
        await queue(waiter, "b", key)
        its = mailbox(waiter)
        assert look.state(its) is Is.RUNNING
        before = look.updates(broker_id(key))
        await queue(waiter, "b", key)
        assert look.updates(broker_id(key)) == before + 1, "from now on once is enough"
        await holder.apply([release("a", key)])
        push = await side.pushed(waiter, "granted")
        assert push.key == key
        await waiter.close()
        assert look.state(its) is Is.TERMINATED

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


def test_a_mailbox_that_was_ended_is_made_again(url: str, side: Side) -> None:
    look, key = Looker(url), new_key()

    async def case() -> None:
        holder, waiter = await side.open(store_for(url)), await side.open(store_for(url))
        await holder.apply([acquire("a", key)])
        await queue(waiter, "b", key)
        look.terminate(mailbox(waiter))
        assert "missed" in str(await side.broken(waiter))
        await queue(waiter, "b", key)
        assert look.state(mailbox(waiter)) is Is.RUNNING
        await holder.apply([release("a", key)])
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
        monkeypatch.setattr(listening, "_notifications", fail)
        await queue(waiter, "b", key)
        await holder.apply([release("a", key)])
        assert "no such thing" in str(await side.broken(waiter))
        granted((await waiter.apply([acquire("b", key, inbox=waiter.inbox)]))[0])

    side.run(case)


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


@pytest.mark.parametrize("started_by", ["a client", "a workflow"])
def test_a_long_name_is_listed_by_others(url: str, side: Side, started_by: str) -> None:
    """Its broker's ID has but a hash; its memo or its input has the key."""
    key = new_key() + b"/" + b"\xff" * 400
    if started_by == "a workflow":
        Looker(url).start_broker(key)

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
        fitting = [acquire(f"n{n}", key, capacity=1000, note="y" * 16_000) for n in range(50)]
        replies = await backend.apply([acquire("b", key, capacity=1000), large, *fitting])
        assert replies[1] == Failed("invalid", replies[1].detail)
        assert "16384 bytes" in replies[1].detail
        rest = [replies[0], *replies[2:]]
        assert [reply.slots for reply in rest] == [(slot,) for slot in range(51)]

    side.run(case)
