"""A broker on a real server: its queue, clients that wait, its runs, and what it makes of strange calls."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer

from dibs.core.codec import encode
from dibs.core.names import fingerprint
from dibs.errors import DibsError
from dibs.model import (
    Granted,
    Inspect,
    Notification,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
)
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import FORMAT, BrokerCall, BrokerInput, text_of
from dibs.temporal.broker.book import BrokerBook
from dibs.temporal.broker.owners import OwnerWatch
from dibs.temporal.broker.workflow import DibsBroker
from dibs.temporal.worker.served import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import QUICK, Brokered
from tests.temporal.permit_flows import Held, Holding, Wish
from tests.temporal.workers import connected, poll, unique, until_event, worker

pytestmark = [pytest.mark.once, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(temporal_server: TemporalServer) -> AsyncIterator[Brokered]:
    client, look = await connected(temporal_server), [owner_closed]
    async with worker(client, DibsBroker, Holding, activities=look, sandboxed=False) as queue:
        yield Brokered(client, queue)


@pytest.fixture
def here(served: Brokered) -> Brokered:
    """A key of its own on a queue that is served."""
    return Brokered(served.client, served.queue)


async def holder(here: Brokered, **wish: Any) -> WorkflowHandle[Any, Held]:
    """A workflow that wants it."""
    resource = here.key.decode().partition(":")[2]
    return await here.client.start_workflow(
        Holding.run, Wish(resource, here.queue, **wish), id=unique("holder"), task_queue=here.queue
    )


async def check_replay(chain: Sequence[Sequence[Any]]) -> None:
    """Today's code does it again, and has done it at the first try, unless calls came as a run ended."""
    replayer = Replayer(workflows=[DibsBroker], workflow_runner=QUICK)
    late = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    for events in chain:
        for event in events:
            if event.HasField("workflow_task_failed_event_attributes"):
                assert event.workflow_task_failed_event_attributes.cause == late
        await replayer.replay_workflow(WorkflowHistory("a broker", events))


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers continue as new often, and end soon."""
    monkeypatch.setattr(DibsBroker, "EVENTS", 60)
    monkeypatch.setattr(DibsBroker, "IDLE", 1.0)


hasty = pytest.mark.usefixtures("_hasty")


@hasty
async def test_nothing_is_lost_when_it_continues_as_new_under_load(here: Brokered) -> None:
    """Neither what is held, nor who waits: workflows, and clients whose calls wait in the broker."""
    kept = await here.ask(here.acquire("kept", ttl=600.0, capacity=3))
    held: set[int] = set()
    tokens: list[int] = []

    async def client(name: int) -> None:
        for turn in range(4):
            entry_id = f"client {name} {turn}"
            acquire = here.acquire(entry_id, capacity=3, inbox=f"c{name}")
            while not isinstance(reply := await here.ask(acquire), Granted):
                await here.wait(f"c{name}")
            (slot,) = reply.slots
            assert slot not in held
            held.add(slot)
            tokens.append(reply.token)
            await asyncio.sleep(0.01)
            held.discard(slot)
            assert await here.ask(Release(here.key, entry_id)) == Released()

    holders = [await holder(here, capacity=3, hold=0) for _ in range(12)]
    async with asyncio.timeout(45):  # a waiter that was lost would ask again after a minute
        await asyncio.gather(*(client(name) for name in range(4)))
        tokens += [(await each.result()).token or 0 for each in holders]
    assert len(set(tokens)) == len(tokens) == 28
    again = await here.ask(here.acquire("kept", ttl=600.0, capacity=3))
    assert isinstance(kept, Granted)
    assert isinstance(again, Granted)
    assert again.token == kept.token
    status = await here.status()
    assert (len(status.holders), status.waiting) == (1, 0)
    chain = await here.chain()
    assert len(chain) >= 4
    await check_replay(chain)


@hasty
async def test_nobody_is_lost_and_all_stay_in_order_over_several_runs(
    served: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many calls are there before a worker; one by an update comes after them."""
    monkeypatch.setattr(DibsBroker, "PORTION", 10)
    here, many = Brokered(served.client, unique("queue")), 45
    await here.client.start_workflow(
        ids.BROKER, BrokerInput(text_of(here.key)), id=here.handle.id, task_queue=here.queue
    )
    names = ["holder", *(f"w{number}" for number in range(many))]
    for name in names:
        ask = here.acquire(name, ttl=600.0, waiter_ttl=600.0)
        await here.handle.signal(ids.APPLY, BrokerCall([encode(ask)], 1, "nobody", "no-run"))
    late = asyncio.create_task(here.ask(here.acquire("late", waiter_ttl=600.0)))
    async with worker(here.client, DibsBroker, queue=here.queue, workflow_runner=QUICK):
        last = await late
        assert isinstance(last, Queued)
        assert last.position == many
        waiting = [fingerprint(name) for name in (*names[1:], "late")]
        assert [each.lease for each in (await here.status()).waiters] == waiting
        for name in names[1:21]:
            await here.release(name)
        assert [each.lease for each in (await here.status()).waiters] == waiting[20:]
        chain = await here.chain()
    assert len(chain) > 2
    await check_replay(chain)


@hasty
async def test_it_ends_once_nothing_is_held_and_its_tokens_go_on(
    here: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DibsBroker, "IDLE", 0.1)
    first = await here.ask(here.acquire("a", ttl=1e12))
    await until_event(here.handle, "TIMER_FIRED", 2)
    assert (await here.status()).holders
    assert len(await here.events()) < 25
    await here.release("a")
    await here.ask(here.acquire("soon over", ttl=0.2))
    await here.handle.result()
    second = await here.ask(here.acquire("b"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.token > first.token


async def test_cancelled_it_ends_when_nothing_is_held(here: Brokered) -> None:
    await here.ask(here.acquire("a"))
    await here.handle.cancel()
    assert isinstance(await here.ask(here.acquire("b")), Queued)
    assert isinstance(await here.ask(Renew(here.key, "a", 30.0)), Renewed)
    await here.release("b")
    run = (await here.handle.describe()).run_id
    await here.release("a")
    await here.client.get_workflow_handle(here.handle.id, run_id=run).result()


async def test_a_run_of_which_nobody_knows_whether_it_is_closed_counts_as_open(
    here: Brokered,
) -> None:
    await here.ask(Inspect(here.key))
    runs = [[here.handle.id, "no run ID at all"], [unique("never"), str(uuid4())]]
    runs.append([here.handle.id, ""])  # its newest
    found = await ActivityEnvironment(client=here.client).run(owner_closed, runs)
    assert found == [False, True, False]


@hasty
async def test_it_looks_in_time_however_often_the_broker_continues_as_new(
    here: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is shorter than the time between two looks."""
    monkeypatch.setattr(OwnerWatch, "EVERY", 2.0)
    await here.ask(Inspect(here.key))
    terms = {"semaphore": {"on_holder_close": "fast"}, "acquire": {"ttl": 600.0}}
    held = await holder(here, **terms)
    await poll(here.status, lambda status: status.holders)
    again = here.acquire("next", ttl=600.0, waiter_ttl=600.0)
    await here.ask(again)
    while len(await here.chain()) < 2:
        await here.ask(Inspect(here.key))
    await held.terminate()
    async with asyncio.timeout(15):
        await poll(lambda: here.ask(again), lambda reply: isinstance(reply, Granted))


async def test_a_newer_call_is_refused_and_leaves_no_trace(here: Brokered) -> None:
    await here.ask(here.acquire("a"))
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await here.call(here.acquire("b"), format=FORMAT + 1)
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "IncompatibleVersion"
    assert str(FORMAT + 1) in str(cause)
    newer = BrokerCall([encode(here.acquire("c"))], 1, "nobody", "no-run", format=FORMAT + 1)
    await here.handle.signal(ids.APPLY, newer)
    assert not (await here.status()).waiting


async def test_with_a_newer_state_nothing_is_granted_and_nothing_lost(here: Brokered) -> None:
    given = BrokerInput(text_of(b"lock:a"), {"book": "?"}, format=FORMAT + 1)
    handle = await here.client.start_workflow(
        ids.BROKER, given, id=here.handle.id, task_queue=here.queue
    )
    (failed, *_) = await poll(lambda: here.events_of("workflow_task_failed"))
    assert f"is of format {given.format}" in failed.failure.message
    await handle.terminate()


async def test_calls_that_make_no_sense_do_no_harm(here: Brokered) -> None:
    await here.ask(here.acquire("a", ttl=1e300, capacity=3))
    huge = here.acquire("b", ttl=1e300, waiter_ttl=1e300, units=3, capacity=3, inbox="x")
    assert isinstance(await here.ask(huge), Queued)
    odd = [["acquire"], ["nothing"], [], {}, "x", encode(huge)[:3]]
    run = str(uuid4())
    for owner in (("nobody", "no-run"), ("", ""), ("x", run), ("\ud800", run)):
        await here.handle.signal(ids.APPLY, BrokerCall(odd, 1, *owner, fast=True))
    await here.handle.signal(ids.APPLY, "no call at all")
    answer = await here.handle.execute_update(ids.APPLY, BrokerCall(odd))
    assert [reply[0] for reply in answer["replies"]] == ["failed"] * 6
    assert isinstance(await here.ask(Renew(here.key, "a", 30.0)), Renewed)


async def test_an_error_of_ours_fails_its_task_and_not_the_broker(
    here: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it ended it would lose all that is held; so its task is tried again, until it is mended."""
    really, planted = BrokerBook.settle, [DibsError("a defect")]

    def broken(book: BrokerBook, now: float, stamp: int) -> list[Notification]:
        if planted and book.key == here.key:
            raise planted.pop()
        return really(book, now, stamp)

    held = await here.ask(here.acquire("a", ttl=600.0))
    monkeypatch.setattr(BrokerBook, "settle", broken)
    again = await here.ask(here.acquire("a", ttl=600.0))
    assert not planted
    assert isinstance(held, Granted)
    assert isinstance(again, Granted)
    assert again.token == held.token
    assert (await here.handle.describe()).status is WorkflowExecutionStatus.RUNNING
    failures = [each.failure.message for each in await here.events_of("workflow_task_failed")]
    assert [each for each in failures if each] == ["the broker can't go on: a defect"]


async def test_no_lease_id_is_shown(here: Brokered, caplog: pytest.LogCaptureFixture) -> None:
    secret = "an-id-that-nobody-may-see"
    caplog.set_level("DEBUG", logger="temporalio.workflow")
    await here.ask(here.acquire(secret, note="the nightly run"))
    await here.ask(here.acquire(f"{secret}-2", inbox="nobody"))
    metadata = str(await here.handle.query("__temporal_workflow_metadata"))
    assert "the nightly run" in metadata
    assert "1 of 1 taken, 1 waiting" in metadata
    assert secret not in metadata
    assert secret not in caplog.text
    for event in await here.events():
        assert secret.encode() not in event.user_metadata.SerializeToString()
