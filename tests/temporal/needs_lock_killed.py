"""A worker to be killed: `python -m tests.temporal.needs_lock_killed ADDRESS QUEUE STORE`."""

import asyncio
import sys

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from dibs.temporal import LockInterceptor, needs_lock


@activity.defn(name="work")
@needs_lock("x", ttl="1.5s")
async def hold(number: int) -> int:
    """Holds its lock for ever."""
    print("held", flush=True)
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.1)


async def main(address: str, queue: str, store: str) -> None:
    client = await Client.connect(address, interceptors=[LockInterceptor(backend=store)])
    await Worker(client, task_queue=queue, activities=[hold]).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
