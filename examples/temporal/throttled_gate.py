"""Six workflows come to a gate that lets two through at a time: each permit is a workflow of its own.

`python examples/temporal/throttled_gate.py` runs on the server of TEMPORAL_ADDRESS (localhost:7233); with
`--dev` on one of its own, which it starts and stops.

Prints: job … enters by slot …
Prints: job … leaves: …
Prints: 6 jobs are done, and never more than 2 were inside
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import pbkdf2_hmac
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.worker import Worker

from dibs.temporal import Semaphore

with workflow.unsafe.imports_passed_through():
    from devserver import run_example, say, temporal

QUEUE = "throttled-gate"
CAPACITY = 2


@workflow.defn
class ThrottledGate:
    """Waits for its turn, then has its work done."""

    @workflow.run
    async def run(self, job: int) -> str:
        gate = Semaphore("app-gate", capacity=CAPACITY)
        async with gate.acquire(ttl="10m", backoff=1, note=f"job {job}") as permit:
            return await workflow.execute_activity(
                do_gated_work,
                args=[job, permit.slot],
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=30),
            )


inside: set[int] = set()
most: list[int] = []


@activity.defn
def do_gated_work(job: int, slot: str) -> str:
    """Derive a key from the job's number, which takes a moment."""
    say(f"job {job} enters by slot {slot}")
    inside.add(job)
    most.append(len(inside))
    key = b""
    for part in range(4):
        key = pbkdf2_hmac("sha256", key + bytes([job]), b"gate", 100_000)
        activity.heartbeat(part)
    inside.discard(job)
    say(f"job {job} leaves: {key.hex()[:12]}")
    return key.hex()


async def main() -> None:
    """Start all at once; whoever finds the gate closed tries again, after ever longer pauses."""
    with ThreadPoolExecutor(6) as threads:
        async with (
            temporal() as client,
            Worker(
                client,
                task_queue=QUEUE,
                workflows=[ThrottledGate],
                activities=[do_gated_work],
                activity_executor=threads,
            ),
        ):
            run = uuid4().hex[:8]
            keys = await asyncio.gather(
                *(
                    client.execute_workflow(
                        ThrottledGate.run, job, id=f"gate-{run}-{job}", task_queue=QUEUE
                    )
                    for job in range(6)
                )
            )
    assert max(most) <= CAPACITY, most
    say(f"{len(set(keys))} jobs are done, and never more than {CAPACITY} were inside")


if __name__ == "__main__":
    run_example(main(), __doc__)
