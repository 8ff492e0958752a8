"""Two GPUs for five jobs: each job gets the number of one, and a large job waits until both are free.

Prints: small jobs ran on GPUs 0 and 1, never on one at the same time
Prints: the large job had GPUs (0, 1)
"""

import asyncio

from dibs import Semaphore, connect


async def job(gpus: Semaphore, busy: set[int], seen: set[int]) -> None:
    """Train on one GPU: the slot of the lease is its number."""
    async with gpus.acquire(note="small job") as lease:
        assert lease.slot not in busy
        busy.add(lease.slot)
        seen.add(lease.slot)
        await asyncio.sleep(0.02)
        busy.discard(lease.slot)


async def main() -> None:
    """Start four small jobs and a large one, which queues behind them in order."""
    async with connect() as client:
        gpus = client.semaphore("gpu", capacity=2, ttl="30s")
        seen: set[int] = set()
        busy: set[int] = set()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(job(gpus, busy, seen))
            await asyncio.sleep(0)
            async with gpus.acquire(units=2, wait="30s") as both:
                assert not busy
                slots = both.slots
        print(f"small jobs ran on GPUs {' and '.join(map(str, sorted(seen)))}, ", end="")
        print("never on one at the same time")
        print(f"the large job had GPUs {slots}")


if __name__ == "__main__":
    asyncio.run(main())
