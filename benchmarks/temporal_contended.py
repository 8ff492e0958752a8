"""Eight workflows want one thing at once, each for half a second of work, on a real Temporal server.

*Bare signals* is what the server itself needs for the same steps, with no lock: a workflow in the middle
tells each of the eight in turn by a signal that it may go on, and hears by a signal that it is done. Four
seconds are work; the rest is the server's own latency. The work is an activity, as timers of a development
server come up to a second late. Timed, by the server's clock, is from the first start to the last end.

    python -m benchmarks.temporal_contended [rounds]
"""

import asyncio
import sys
import tempfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.plan import Plan
from benchmarks.results import Results
from leasehold.backends.temporal.broker import LeaseholdBroker
from leasehold.temporal.permit_workflow import PermitSlotWorkflow
from leasehold.temporal.semaphore import Semaphore

SECTION = "temporal"
SETTING = "8 workflows × 0.5 s of work"
UNIT = "s"
FAIR, SLOTS, BARE = "leasehold fair", "leasehold slots, 1 s backoff", "bare signals"
WORKFLOWS, WORK = 8, 0.5
_MINUTE = timedelta(minutes=1)


def measure(plan: Plan, results: Results) -> None:
    """All contestants in each round, on a server of their own."""
    chosen = plan.chosen(SECTION, SETTING, [FAIR, SLOTS, BARE], BARE)
    if chosen:
        from tests.servers.temporal import TemporalServer

        with TemporalServer(Path(plan.folder_for(SECTION))) as server:
            asyncio.run(_measure(server.address, chosen, plan.rounds, results))


async def _measure(address: str, chosen: list[str], rounds: int, results: Results) -> None:
    client = await Client.connect(address)
    queue = uuid4().hex
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Told, Middle, Fair, Slots, PermitSlotWorkflow, LeaseholdBroker],
        activities=[work],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await _turns(client, queue, BARE)  # the server has yet to get warm
        for _ in range(rounds):
            for name in chosen:
                baseline = BARE if name != BARE else ""
                row = results.row(SECTION, SETTING, name, UNIT, baseline)
                row.values.append(await _turns(client, queue, name))


async def _turns(client: Client, queue: str, name: str) -> float:
    """How long eight turns took."""
    resource = uuid4().hex
    flow: Any = {FAIR: Fair, SLOTS: Slots, BARE: Told}[name]
    handles = [
        await client.start_workflow(
            flow.run, resource, id=f"{resource}-{number}", task_queue=queue, result_type=list[float]
        )
        for number in range(WORKFLOWS)
    ]
    if name == BARE:
        await client.start_workflow(Middle.run, resource, id=resource, task_queue=queue)
    turns = sorted([await handle.result() for handle in handles])
    if any(begun < ended for (_, ended), (begun, _) in pairwise(turns)):
        raise RuntimeError(f"two of {name} held it at once")
    return float(turns[-1][1] - turns[0][0])


# ---- what they do ---------------------------------------------------------------------------------


@activity.defn
async def work() -> None:
    await asyncio.sleep(WORK)


async def turn() -> list[float]:
    """From when to when."""
    begun = workflow.time()
    await workflow.execute_activity(work, start_to_close_timeout=_MINUTE)
    return [begun, workflow.time()]


@workflow.defn
class Fair:
    @workflow.run
    async def run(self, resource: str) -> list[float]:
        queue = workflow.info().task_queue
        async with Semaphore(resource, capacity=1, fair=True, task_queue=queue):
            return await turn()


@workflow.defn
class Slots:
    @workflow.run
    async def run(self, resource: str) -> list[float]:
        queue = workflow.info().task_queue
        semaphore = Semaphore(resource, capacity=1, task_queue=queue)
        async with semaphore.acquire(backoff=1, max_backoff=1):
            return await turn()


@workflow.defn
class Told:
    def __init__(self) -> None:
        self.goes = False

    @workflow.signal
    def go(self) -> None:
        self.goes = True

    @workflow.run
    async def run(self, resource: str) -> list[float]:
        await workflow.wait_condition(lambda: self.goes)
        found = await turn()
        await workflow.get_external_workflow_handle(resource).signal("done")
        return found


@workflow.defn
class Middle:
    def __init__(self) -> None:
        self.done = 0

    @workflow.signal(name="done")
    def is_done(self) -> None:
        self.done += 1

    @workflow.run
    async def run(self, resource: str) -> None:
        for number in range(WORKFLOWS):
            await workflow.get_external_workflow_handle(f"{resource}-{number}").signal("go")
            await workflow.wait_condition(lambda number=number: self.done > number)  # type: ignore[misc]


def main() -> None:
    from benchmarks.servers import Servers

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    results = Results()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = Plan(rounds, 0.0, (), folder, 0, False, Servers(folder))
        measure(plan, results)
    floor = results.row(SECTION, SETTING, BARE, UNIT).median
    for contestant in (FAIR, SLOTS, BARE):
        row = results.row(SECTION, SETTING, contestant, UNIT)
        low, high = row.spread
        print(
            f"{contestant:30} {row.median:6.2f} s  {low:.2f} … {high:.2f}  {row.median / floor:.2f} × bare"
        )


if __name__ == "__main__":
    main()
