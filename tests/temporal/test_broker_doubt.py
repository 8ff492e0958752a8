"""A broker grants nothing on a permit that may be gone: of whose end it might not have heard yet."""

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import WorkflowAlreadyStartedError

from dibs.backends.temporal.broker.claims.claims import Claims
from dibs.backends.temporal.broker.claims.doubt import Standing, doubtful
from dibs.backends.temporal.broker.claims.permits import Permits
from dibs.backends.temporal.broker.claims.slots import Slots
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.broker.workflow import DibsBroker
from dibs.model import Acquire, Command, Granted, Lost, Refused, Release, Renew, Resize, Revoke
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import HastyBroker, serving
from tests.temporal.test_broker_sharing import Pool

pytestmark = [pytest.mark.once]

KEY = b"semaphore:pool"


async def taken_by_hand(pool: Pool, slot: int) -> None:
    """Somebody ends the broker's permit, and takes the slot as slot mode does."""
    await pool.permit(slot).terminate()
    while True:
        try:
            await pool.take_permit(slot)
            return
        except WorkflowAlreadyStartedError:
            await asyncio.sleep(0.02)


async def test_a_permit_whose_lease_ended_while_no_worker_was_there_is_not_granted_on(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked meanwhile is handled before the news of its end."""
    monkeypatch.setattr(Permits, "LEASE", 1.5)
    monkeypatch.setattr(Claims, "LINGER", 60.0)
    served = (DibsBroker, PermitSlotWorkflow)
    more: dict[str, Any] = {"activities": [owner_closed]}
    async with serving(temporal_server.address, *served, **more) as here:
        pool = Pool(here, capacity=1)
        assert isinstance(await pool.try_for("a", ttl=0.5), Granted)
        await pool.ask(Release(pool.key, "a"))
    asked = asyncio.create_task(pool.try_for("b"))
    await asyncio.sleep(2.5)  # the lease and a third
    await taken_by_hand(pool, 0)
    async with serving(temporal_server.address, *served, queue=here.queue, **more):
        assert isinstance(await asked, Refused)
        await pool.permit(0).terminate()
        while not isinstance(await pool.try_for("c"), Granted):
            await asyncio.sleep(0.05)


async def test_a_permit_of_an_earlier_run_is_asked_after_before_it_is_granted_on(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells a broker of its end but a look every ten seconds."""
    monkeypatch.setattr(Claims, "LINGER", 60.0)
    served = (HastyBroker, PermitSlotWorkflow)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        pool = Pool(here, capacity=1)
        await pool.try_for("a")
        while len(await pool.chain()) < 2:
            await pool.ask(Renew(pool.key, "a", 30.0))
        first = (await pool.permit(0).describe()).run_id
        await pool.ask(Release(pool.key, "a"))
        assert isinstance(await pool.try_for("b"), Granted)  # the same permit, which is there
        assert (await pool.permit(0).describe()).run_id == first
        await pool.ask(Release(pool.key, "b"))
        await taken_by_hand(pool, 0)
        await asyncio.sleep(Standing.FRESH + 0.1)
        assert isinstance(await pool.try_for("c"), Refused)


async def test_who_waits_has_a_permit_of_an_earlier_run_as_soon_as_it_is_free(
    temporal_server: TemporalServer,
) -> None:
    served = (HastyBroker, PermitSlotWorkflow)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        pool = Pool(here, capacity=1)
        await pool.try_for("a")
        while len(await pool.chain()) < 2:
            await pool.ask(Renew(pool.key, "a", 30.0))
        for leaves, waits in ("ab", "bc", "cd"):
            await pool.try_for(waits, queue=True)
            await pool.ask(Release(pool.key, leaves))
            async with asyncio.timeout(10):
                while not isinstance(await pool.ask(Renew(pool.key, waits, 30.0)), Granted):
                    await asyncio.sleep(0.05)


async def test_the_end_of_one_permit_frees_no_other_slot_of_its_holder(
    temporal_server: TemporalServer,
) -> None:
    """What it began may go on until it has heard of it, or until its ttl ends."""
    served = (DibsBroker, PermitSlotWorkflow)
    async with serving(temporal_server.address, *served, activities=[owner_closed]) as here:
        pool = Pool(here)
        assert isinstance(await pool.try_for("a", units=2), Granted)
        await taken_by_hand(pool, 0)
        while not isinstance(await pool.ask(Renew(pool.key, "a", 30.0)), Lost):
            await asyncio.sleep(0.02)
        assert isinstance(await pool.try_for("b"), Refused)
        await pool.ask(Release(pool.key, "a"))
        granted = await pool.try_for("c")
        assert isinstance(granted, Granted)
        assert granted.slots == (1,)


def ask(entry_id: str, capacity: int, units: int = 1, ttl: float = 60.0) -> Acquire:
    return Acquire(KEY, entry_id, "me", ttl, units=units, capacity=capacity)


def test_a_slot_beyond_the_capacity_is_closed_once_a_greater_one_brings_it_back() -> None:
    """Its permit has ended meanwhile, while that command waited for another's."""
    desk = Desk(KEY)
    for number in range(4):
        desk.apply(ask(f"h{number}", 4), 1.0, 10**6 + number)
    for number in (2, 3):
        desk.apply(Release(KEY, f"h{number}"), 2.0, 2 * 10**6)
    assert isinstance(desk.apply(ask("small", 2), 2.2, 3 * 10**6)[0], Refused)
    ours = {0, 1, 2}  # 3 was lost
    assert doubtful(desk, ask("small", 2), ours, set(), 2.4) == []
    assert doubtful(desk, ask("big", 4, units=2), ours, set(), 2.4) == [3]


def test_an_id_that_has_just_run_out_is_new_and_brings_its_capacity() -> None:
    desk = Desk(KEY)
    desk.apply(ask("x", 2, ttl=5.0), 1.0, 10**6)
    desk.apply(ask("y", 1), 2.0, 2 * 10**6)
    assert doubtful(desk, ask("x", 2), {0}, set(), 5.0) == []
    assert doubtful(desk, ask("x", 2), {0}, set(), 6.0) == [1]


def test_a_slot_in_use_is_doubted_only_when_it_may_become_free() -> None:
    desk = Desk(KEY)
    desk.apply(ask("a", 2, units=2, ttl=5.0), 1.0, 10**6)
    harmless = (None, Renew(KEY, "a", 9.0), Release(KEY, "b"), Resize(KEY, "a", 2, 1))
    ending = (Release(KEY, "a"), Resize(KEY, "a", 1, 1), Revoke(KEY, None, "why"))
    command: Command | None
    for command in harmless:
        assert doubtful(desk, command, set(), set(), 2.0) == []
    for command in ending:
        assert doubtful(desk, command, set(), set(), 2.0) == [0, 1]
        assert doubtful(desk, command, {0}, set(), 2.0) == [1]
        assert doubtful(desk, command, {0}, {1}, 2.0) == []
    assert doubtful(desk, None, set(), set(), 6.0) == [0, 1]


def test_a_closed_slot_is_nobodys() -> None:
    desk = Desk(KEY)
    desk.book.capacity = 1
    Slots(desk).close(0, 1.0)
    assert doubtful(desk, None, set(), set(), 2.0) == [0]


def test_what_makes_a_permit_sure() -> None:
    standing = Standing()
    standing.start(0, 800.0)
    standing.hear(1, 100.0, 800.0, 100.5)
    standing.hear(2, 100.0, 800.0, 111.0)  # too late to be news

    def sure(now: float, *watched: int) -> set[int]:
        return standing.sure({0, 1, 2, 3}, watched, 600.0, now)

    assert sure(101.0) == {1}
    assert sure(101.0, 0, 2) == {0, 1, 2}
    assert sure(102.0, 0) == {0}
    assert sure(790.0, 0, 1) == {1}
    standing.forget(1)
    assert sure(101.0, 1) == set()
