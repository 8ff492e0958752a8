"""Ten thousand waiters on one key: does a turn cost more the longer the queue is?"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.crew import Crew, Line
from benchmarks.crews import Crews
from benchmarks.leases import STORES
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results
from benchmarks.traffic import Traffic

SECTION = "waiters on one key"
SIZES = (10, 10_000)
TURNS = 200


def measure(plan: Plan, results: Results) -> None:
    """Each store with a short queue and with a long one."""
    for waiters in SIZES:
        setting = f"{waiters:,} in the queue"
        for store in plan.chosen(SECTION, setting, [f"dibs {store}" for store in STORES]):
            kind = store.split()[1]
            with Crews(results, SECTION, setting) as crews:
                folder = plan.folder_for(f"crowd {waiters} {kind}", STORES[kind])
                arguments = {"store": kind, "folder": folder, "waiters": waiters}
                crews.start(store, Crew("benchmarks.crowd:work", [arguments]))
                crews.get_ready()
                for answer in crews.round(store):
                    for unit, value in answer.items():
                        results.row(SECTION, setting, store, unit).values.append(value)


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, store: str, folder: str, waiters: int) -> None:
    """One order, one answer."""
    line.say(ready=True)
    if line.hear():
        place = Place(Path(folder))
        urls = {"memory": "memory://crowd", "sqlite": place.sqlite_url}
        line.say(**asyncio.run(_queue(urls.get(store) or place.server_url, waiters)))


async def _queue(url: str, waiters: int) -> dict[str, Any]:
    """Fill the queue, then measure from just before a release until the next one holds."""
    import dibs

    async with dibs.connect(url) as client:
        lock = client.lock("crowded", ttl=60)
        first = await lock.acquire()
        left, took, over = 0.0, list[float](), asyncio.Event()

        async def wait() -> None:
            nonlocal left
            lease = await lock.acquire()
            took.append(time.perf_counter() - left)
            if len(took) >= min(TURNS, waiters):
                over.set()
                await asyncio.Event().wait()
            left = time.perf_counter()
            await lease.release()

        begun = time.perf_counter()
        tasks = [asyncio.create_task(wait()) for _ in range(waiters)]
        while (await lock.status()).waiting < waiters:
            await asyncio.sleep(0.05)
        queued = time.perf_counter() - begun
        traffic = Traffic(url)
        left = time.perf_counter()
        await first.release()
        await over.wait()
        counted = traffic.since(turns=len(took))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return {
            "µs to queue up, each": queued / waiters * 1e6,
            "µs a turn, p50": median(took) * 1e6,
            **counted,
        }
