"""Many waiters on one semaphore: does a cycle cost more the more of them there are?

All hold a slot in turn, for no time at all, and queue again: what is measured is the store and the client.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.crew import Crew, Line
from benchmarks.crews import Crews, turned
from benchmarks.leases import STORES
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results

SECTION = "waiters on a semaphore of 64"
UNIT = "µs a cycle"
CAPACITY = 64
FEW, MANY = "64 waiters", "1,024 waiters"
WAITERS = {FEW: 64, MANY: 1024}
ROUND = 1.0
"""The shortest round, in seconds: a turn of all takes a tenth of that."""


def measure(plan: Plan, results: Results) -> None:
    """Each store with few and with many waiters, by turns."""
    for kind, server in STORES.items():
        store = f"dibs {kind}"
        names = plan.chosen(SECTION, store, list(WAITERS), FEW)
        if names:
            _measure(plan, results, store, names, server)


def _measure(plan: Plan, results: Results, store: str, names: list[str], server: str) -> None:
    kind = store.split()[1]
    with Crews(results, SECTION, store) as crews:
        for name in names:
            folder = plan.folder_for(f"{SECTION} {store} {name}", server)
            arguments = {"store": kind, "folder": folder, "waiters": WAITERS[name]}
            crews.start(name, Crew("benchmarks.queues:work", [arguments]))
        crews.get_ready()
        for number in range(plan.rounds + 1):  # the first is to warm up
            for name in turned(names, number):
                answers = crews.round(name, seconds=max(plan.seconds, ROUND))
                if answers and number:
                    row = results.row(SECTION, store, name, UNIT, FEW)
                    row.values.append(sum(answer["spent"] for answer in answers))


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, store: str, folder: str, waiters: int) -> None:
    """Serve rounds until there are no more."""
    place = Place(Path(folder))
    urls = {"memory": "memory://queues", "sqlite": place.sqlite_url}
    asyncio.run(_work(line, urls.get(store) or place.server_url, waiters))


async def _work(line: Line, url: str, waiters: int) -> None:
    import dibs

    async with dibs.connect(url) as client:
        semaphore = client.semaphore("crowded", CAPACITY)
        await (await semaphore.acquire()).release()
        line.say(ready=True)
        while order := await asyncio.to_thread(line.hear):
            begun = time.monotonic()
            end = begun + order["seconds"]
            turns = (_turns(semaphore, end) for _ in range(CAPACITY + waiters))
            cycles = sum(await asyncio.gather(*turns))
            line.say(spent=(time.monotonic() - begun) / cycles * 1e6)


async def _turns(semaphore: Any, end: float) -> int:
    done = 0
    while time.monotonic() < end:
        lease = await semaphore.acquire()
        await lease.release()
        done += 1
    return done
