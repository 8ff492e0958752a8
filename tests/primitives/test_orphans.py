"""Blocks that nobody is left to leave: their leases are renewed no more."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LeaseLost
from tests.primitives.worlds import World, in_both_worlds

TTL = 30.0

KINDS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a", ttl=TTL),
    "reentrant": lambda client: client.lock("a", ttl=TTL, reentrant=True),
    "semaphore": lambda client: client.semaphore("a", 1, ttl=TTL),
    "writer": lambda client: client.rwlock("a", ttl=TTL).write(),
    "election": lambda client: client.leader_election("a", ttl=TTL),
    "both": lambda client: both(client.lock("a", ttl=TTL), client.lock("b", ttl=TTL)),
}


def both(one: Any, other: Any) -> Any:
    return (dibs.AllOf if isinstance(one, dibs.Lock) else dibs.sync.AllOf)(one, other)


SAID = "is not renewed any more: the task or thread that entered its block has ended"


async def elsewhere(w: World, body: Coroutine[Any, Any, None]) -> None:
    """Run it in a task that fails after it, or in a thread that ends after it."""

    async def fail() -> None:
        await body
        raise ZeroDivisionError

    if w.is_async:
        with suppress(ZeroDivisionError):
            await asyncio.create_task(fail())
    else:
        thread = threading.Thread(target=lambda: w.run(body))
        thread.start()
        thread.join()


@pytest.mark.parametrize("kind", KINDS)
@in_both_worlds
async def test_a_block_whose_task_failed_or_whose_thread_is_dead_is_renewed_no_more(
    w: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    primitive, bystander = KINDS[kind](w.client), w.client.lock("bystander", ttl=TTL)
    leases: list[Any] = []

    async def body() -> None:
        leases.append(await w.get(bystander.acquire()))
        leases.append(await w.enter(primitive))

    await elsewhere(w, body())
    bystanding, lease = leases
    w.clock.advance(TTL + 1)
    assert lease.reason == "expired"
    said = [message for message in caplog.messages if SAID in message]
    assert len(said) == (2 if kind == "both" else 1)
    other = KINDS[kind](w.another())
    await w.enter(other)
    await w.leave(other)
    bystanding.ensure()
    await w.get(bystanding.release())
    with pytest.raises(LeaseLost):
        await w.leave(primitive)


@in_both_worlds
async def test_a_lease_that_no_block_holds_belongs_to_no_task_or_thread(w: World) -> None:
    leases: list[Any] = []

    async def body() -> None:
        leases.append(await w.get(w.client.lock("a", ttl=TTL).acquire()))

    await elsewhere(w, body())
    w.clock.advance(10 * TTL)
    leases[0].ensure()
    await w.get(leases[0].release())


@in_both_worlds
async def test_a_lease_that_another_has_adopted_is_renewed_for_that_one(w: World) -> None:
    lock, leases = w.client.lock("a", ttl=TTL), list[Any]()

    async def body() -> None:
        leases.append(await w.enter(lock))

    await elsewhere(w, body())
    leases[0].adopt()
    w.clock.advance(10 * TTL)
    leases[0].ensure()
    await w.leave(lock)
    leases.clear()


async def test_a_fixture_holds_its_lease_after_the_task_that_entered_it() -> None:
    """As pytest-asyncio runs them: one task to the yield, and another from there."""
    w = World("async")
    lock = w.client.lock("a", ttl=TTL)

    @asynccontextmanager
    async def fixture() -> AsyncIterator[dibs.Lease]:
        async with lock as lease:
            yield lease

    manager = fixture()
    lease = await asyncio.create_task(manager.__aenter__())
    w.clock.advance(10 * TTL)
    lease.ensure()
    await asyncio.create_task(manager.__aexit__(None, None, None))
    assert not await lock.locked()
