"""Two GPUs for four models and one evaluation that wants both: a broker keeps the order in which they come.

The models are trained by workflows, the evaluation is plain Python, as a shell's `dibs run` would
be: both queue at the same broker. `python examples/temporal/gpu_pool.py` runs on the server of
TEMPORAL_ADDRESS (localhost:7233); with `--dev` on one of its own, which it starts and stops.

Prints: model 0 trains on GPU …
Prints: model 1 trains on GPU …
Prints: the evaluation has GPUs (0, 1)
Prints: model … trains on GPU …
Prints: served in the order in which they came: model 0, model 1, evaluation, model 2, model 3
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

import dibs
from dibs.temporal import Semaphore

with workflow.unsafe.imports_passed_through():
    from devserver import run_example, say, temporal

QUEUE = "gpu-training"
GPUS = 2


@workflow.defn
class GpuTraining:
    """Waits in line for a GPU, then trains on it."""

    @workflow.run
    async def run(self, model: str) -> int:
        pool = Semaphore("gpu-pool", capacity=GPUS, fair=True)
        async with pool.acquire(ttl="1m", note=model) as gpu:
            await workflow.execute_activity(
                train,
                args=[model, gpu.slot_index],
                start_to_close_timeout=timedelta(minutes=30),
                heartbeat_timeout=timedelta(minutes=3),
            )
            return gpu.token  # what the model is saved with: an older one must not overwrite it


@activity.defn
def train(model: str, gpu: int) -> float:
    """Find how a random matrix stretches most, by multiplying with it again and again."""
    say(f"{model} trains on GPU {gpu}")
    random, size = Random(model), 60
    rows = [[random.random() for _ in range(size)] for _ in range(size)]
    vector, stretch = [1.0] * size, 0.0
    for step in range(1500):
        product = [sum(a * b for a, b in zip(row, vector, strict=True)) for row in rows]
        stretch = max(product)
        vector = [each / stretch for each in product]
        if step % 100 == 0:
            activity.heartbeat(step)
    return stretch


async def training(client: Client, model: str) -> int:
    """Have a workflow do it."""
    return await client.execute_workflow(
        GpuTraining.run, model, id=f"training-{uuid4()}", task_queue=QUEUE
    )


async def evaluate(pool: dibs.Semaphore) -> int:
    """Needs both, and is no workflow."""
    async with pool.acquire(units=2, note="evaluation") as lease:
        say(f"the evaluation has GPUs {lease.slots}")
        return lease.token


async def in_order(client: Client, pool: dibs.Semaphore) -> dict[str, int]:
    """Have each come when the one before it stands in line; which token each was given."""
    models = [f"model {number}" for number in range(4)]
    comers = [*models[:2], "evaluation", *models[2:]]
    found: dict[str, asyncio.Task[int]] = {}
    async with asyncio.TaskGroup() as group:
        for name in comers:
            coming = evaluate(pool) if name == "evaluation" else training(client, name)
            found[name] = group.create_task(coming)
            while not found[name].done() and name not in await names(pool):
                await asyncio.sleep(0.02)
    return {name: task.result() for name, task in found.items()}


async def names(pool: dibs.Semaphore) -> set[str]:
    """Who is at the broker: holds something, or waits."""
    status = await pool.status()
    return {each.note for each in (*status.holders, *status.waiters)}


async def main() -> None:
    """Start all, one after the other, and compare tokens: each grant has a greater one."""
    with ThreadPoolExecutor(4) as threads:
        async with temporal() as client:
            host = client.service_client.config.target_host
            async with (
                dibs.connect(f"temporal://{host}/{client.namespace}") as store,
                Worker(
                    client,
                    task_queue=QUEUE,
                    workflows=[GpuTraining],
                    activities=[train],
                    activity_executor=threads,
                ),
            ):
                tokens = await in_order(client, store.semaphore("gpu-pool", GPUS, ttl="1m"))
    served = sorted(tokens, key=tokens.__getitem__)
    say(f"served in the order in which they came: {', '.join(served)}")


if __name__ == "__main__":
    run_example(main(), __doc__)
