"""Recorded histories of brokers and mailboxes: today's code must do what the code of then did.

`python -m tests.temporal.broker_histories NAME …` records `broker`, `sharing`, `mailbox` or `burst` anew.
That is for what is new: whatever changes the commands of a running broker goes behind `workflow.patched`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from temporalio.client import WorkflowHistory

from dibs.backends.temporal.broker.backlog import Backlog
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.wire import News
from dibs.model import Release, Renew
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from dibs.temporal.worker.liveness import owner_closed
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import (
    QUICK,
    Brokered,
    HastyBroker,
    HastyMailbox,
    Waiter,
    asked_at_once,
    serving,
    unserved,
)
from tests.temporal.histories import save
from tests.temporal.workers import worker

PORTION = 10
"""Of the recorded burst."""


async def record(here: Brokered, name: str) -> None:
    """Have a broker do all that it can do, by itself or with permits, and keep its first two runs."""
    share = name == "sharing"
    here.key = b"semaphore:recorded" if share else b"lock:recorded"
    capacity = 2 if share else 1
    start = {"start": {"share": share}}
    await here.ask(here.acquire("a", ttl=0.6, capacity=capacity, units=capacity), **start)
    dead = await here.waiter("gone", hold=-1, capacity=capacity, fast=True)
    waiters = [await here.waiter(f"w{n}", hold=0, capacity=capacity) for n in range(8)]
    await here.until_waiting(8)
    await dead.terminate()
    for waiter in waiters:
        await waiter.result()
    await here.ask(here.acquire("b", inbox="nobody", capacity=capacity))
    await here.ask(here.acquire("c", inbox="nobody", capacity=capacity, units=capacity))
    while len(await here.chain()) < 3:
        await here.ask(Renew(here.key, "b", 30.0))
    await here.ask(Release(here.key, "b"))
    await keep_first_two(here, name)


async def keep_first_two(here: Brokered, name: str) -> None:
    """Runs of a broker."""
    for number, events in enumerate((await here.chain())[:2]):
        save(f"{name}-{number + 1}", WorkflowHistory("recorded", events))


async def record_mailbox(here: Brokered) -> None:
    """Likewise a mailbox."""
    started = await here.client.start_workflow(
        ids.MAILBOX, id=ids.mailbox_id("recorded"), task_queue=here.queue
    )
    await started.execute_update(ids.TAKE, args=[0, 0.1])
    for _ in range(3):
        await started.signal(ids.NEWS, News(""))
        await started.execute_update(ids.TAKE, args=[0, 1.0])
    await started.result()
    first = here.client.get_workflow_handle(started.id, run_id=started.first_execution_run_id)
    save("mailbox-1", await first.fetch_history())


async def record_burst(server: TemporalServer) -> None:
    """Likewise a broker that finds more than one task may apply, and has to continue as new with the rest."""
    Backlog.PORTION = PORTION
    async with unserved(server) as here:
        crowd = await asked_at_once(here, 45)
        async with worker(here.client, HastyBroker, queue=here.queue, workflow_runner=QUICK):
            await crowd.result()
            await keep_first_two(here, "burst")


async def main(names: list[str]) -> None:
    """Record these."""
    served = (HastyBroker, HastyMailbox, PermitSlotWorkflow, Waiter)
    with tempfile.TemporaryDirectory() as folder, TemporalServer(Path(folder)) as server:
        async with serving(server.address, *served, activities=[owner_closed]) as here:
            for name in names:
                match name:
                    case "mailbox":
                        await record_mailbox(here)
                    case "burst":
                        await record_burst(server)
                    case _:
                        await record(here, name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
