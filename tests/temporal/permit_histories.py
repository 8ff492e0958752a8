"""Recorded histories of permits and of workflows that hold them, in slot mode and by brokers.

`python -m tests.temporal.permit_histories slot permits late fair` records those named anew: only for what is
new, as today's code has to do what the code of then did.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowHistory

from dibs.backends.temporal.protocol.permits import PermitSlotInput
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow
from tests.servers.temporal import TemporalServer
from tests.temporal.fair_flows import Holding
from tests.temporal.fair_flows import Relay as FairRelay
from tests.temporal.fair_world import World, fair_world
from tests.temporal.histories import history_of, save
from tests.temporal.slot_workflows import Held, Relay
from tests.temporal.slot_world import SlotWorld, slot_world
from tests.temporal.workers import unique, worker


async def record_slot_mode(world: SlotWorld) -> None:
    """A holder that waited for another, and renewed; one that took its permit along through three runs."""
    spec = world.spec(work="gate", acquire={"ttl": 3.0})
    first = await world.hold(spec)
    await world.until_inside(first)
    waiter = await world.hold(world.spec(resource=spec.resource, hold=0.1))
    await asyncio.sleep(2.5)  # a renewal is due, and some tries of the other are in vain
    await first.signal("go")
    await first.result()
    await waiter.result()
    await keep(world.client, "slot-holder", first)
    await keep(world.client, "slot-waiter", waiter)
    relayed = world.spec(runs=3, hold=0.1, acquire={"ttl": 8.0}, semaphore={"quarantine": 9.0})
    relay = await world.start(Relay, relayed, result=Held)
    await relay.result()
    await keep(world.client, "slot-relay", relay)
    await keep(world.client, "permit-handed-over", world.permit(relayed))


async def record_permits(world: SlotWorld) -> None:
    """A permit that was renewed and released, one whose lease ended, one that a cancelled holder had."""
    spec = world.spec(work="gate", acquire={"ttl": 3.0})
    holder = await world.hold(spec)
    await world.until_inside(holder)
    await asyncio.sleep(2.0)
    await holder.signal("go")
    await holder.result()
    await keep(world.client, "permit-released", world.permit(spec))
    resource = unique("slots")
    expired = await world.client.start_workflow(
        "PermitSlotWorkflow",
        PermitSlotInput(resource, "0", 1.0),
        id=f"permit:{resource}:0",
        task_queue=world.permits,
    )
    await expired.execute_update("extend", 1.5)
    await expired.result()
    await keep(world.client, "permit-expired", expired)
    spec = world.spec(work="gate", semaphore={"quarantine": 0.5})
    holder = await world.hold(spec)
    await world.until_inside(holder)
    await holder.terminate()
    await world.permit(spec).result()
    await keep(world.client, "permit-retired", world.permit(spec))


async def record_late_report(world: SlotWorld) -> None:
    """A holder whose permit reports when its lease would be over, as no worker took it up before."""
    ttl, queue = 3.0, unique("queue")
    holder = await world.hold(world.spec(queue=queue, hold=0.1, acquire={"ttl": ttl}))
    await asyncio.sleep(ttl)
    async with worker(world.client, PermitSlotWorkflow, queue=queue):
        await holder.result()
        await keep(world.client, "slot-late", holder)


async def record_fair_mode(world: World) -> None:
    """A holder that renewed, one that waited for it, one that took its permit along through two runs."""
    first = await world.holding(acquire={"ttl": 3})
    waiter = await world.waiting(hold=0)
    await asyncio.sleep(2.0)  # a renewal is due
    await first.signal(Holding.leave)
    await first.result()
    await waiter.result()
    await keep(world.client, "fair-holder", first)
    await keep(world.client, "fair-waiter", waiter)
    relay = await world.start(FairRelay.run, world.wish(hold=0), 2, None)
    await relay.result()
    await keep(world.client, "fair-relay", relay)


async def keep(client: Any, name: str, handle: WorkflowHandle[Any, Any]) -> None:
    """Each of a workflow's runs, by its number if there are several."""
    runs: list[WorkflowHistory] = []
    run_id = handle.first_execution_run_id
    while run_id != "":
        runs.append(await history_of(client, handle.id, run_id))
        end = runs[-1].events[-1].workflow_execution_continued_as_new_event_attributes
        run_id = end.new_execution_run_id
    for number, run in enumerate(runs):
        save(f"{name}-{number + 1}" if len(runs) > 1 else name, run)


async def main(names: list[str]) -> None:
    """Record these."""
    slots = {"slot": record_slot_mode, "permits": record_permits, "late": record_late_report}
    with tempfile.TemporaryDirectory() as folder, TemporalServer(Path(folder)) as server:
        for name in names:
            if name == "fair":
                async with fair_world(server) as fair:
                    await record_fair_mode(fair)
            else:
                async with slot_world(server) as world:
                    await slots[name](world)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
