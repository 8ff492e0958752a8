"""Recorded histories of brokers and mailboxes: today's code must do what the code of then did.

`python -m tests.temporal.broker_histories` records them anew. That is for a release: in between, whatever
changes the commands of a running broker goes behind `workflow.patched`.
"""

import asyncio
import gzip
import tempfile
from pathlib import Path

from temporalio.client import WorkflowHistory

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker_liveness import owner_closed
from leasehold.backends.temporal.wire import News
from leasehold.model import Release, Renew
from leasehold.temporal.permit_workflow import PermitSlotWorkflow
from tests.temporal.brokers import Brokered, HastyBroker, HastyMailbox, Waiter, serving

RECORDED = Path(__file__).parent / "recorded"


def recorded() -> list[str]:
    """Their names."""
    return sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))


def load(name: str) -> WorkflowHistory:
    """One of them."""
    text = gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()).decode()
    return WorkflowHistory.from_json("recorded", text)


def save(name: str, history: WorkflowHistory) -> None:
    """Keep one."""
    RECORDED.mkdir(exist_ok=True)
    packed = gzip.compress(history.to_json().encode(), mtime=0)
    (RECORDED / f"{name}.json.gz").write_bytes(packed)


async def record(here: Brokered) -> None:
    """Have a broker do all that it can do, by itself and with permits, and keep its first two runs."""
    for name, kind, share in (("broker", b"lock:", False), ("sharing", b"semaphore:", True)):
        here.key = kind + b"recorded"
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


async def main() -> None:
    """Record all."""
    from tests.servers.temporal import TemporalServer

    served = (HastyBroker, HastyMailbox, PermitSlotWorkflow, Waiter)
    with tempfile.TemporaryDirectory() as folder, TemporalServer(Path(folder)) as server:
        async with serving(server.address, *served, activities=[owner_closed]) as here:
            await record(here)
            await record_mailbox(here)


if __name__ == "__main__":
    asyncio.run(main())
