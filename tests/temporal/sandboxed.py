"""A holder and its permit in Temporal's sandbox with nothing passed through, replayed for each task.

A program of its own (`python -m tests.temporal.sandboxed HOST:PORT`): under pytest each import in a sandbox
is rewritten anew, which takes ten times as long.
"""

import asyncio
import os
import sys

from temporalio.client import Client

from dibs.temporal.slots.workflow import PermitSlotWorkflow
from tests.temporal.slot_workflows import Relay, Spec
from tests.temporal.workers import history_of, replay, unique, worker


async def main(address: str) -> None:
    client = await Client.connect(address)
    resource = unique("slots")
    async with worker(client, PermitSlotWorkflow, Relay, cached=False) as queue:
        spec = Spec(resource, queue, runs=2, hold=0.05, acquire={"ttl": 300.0})
        relay = await client.start_workflow(Relay.run, spec, id=unique("holder"), task_queue=queue)
        held = await relay.result()
    os.environ["TEMPORAL_TASK_QUEUE"] = "another"  # of a worker that replays
    for run in (relay.first_execution_run_id, None):
        await replay(await history_of(client, relay.id, run), Relay)
    permit = f"permit:{resource}:0"
    await replay(await history_of(client, permit, held.run_id), PermitSlotWorkflow)
    print(await client.get_workflow_handle(permit, run_id=held.run_id).result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # Temporal's threads may crash an interpreter that is being taken apart
