"""Very many leases held by one process: what it costs to keep them, in time and in memory.

All are acquired, then the process does nothing and the keeper renews each of them once, a third of the
ttl after it was acquired. The processor's time of that wave is the cost of so many renewals.
"""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.crew import Crew, Line
from benchmarks.crews import Crews
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results
from dibs.core.timing import renew_after

SECTION = "leases held by one process"
STORES = {"memory": "", "sqlite": "", "redis": "redis", "postgres": "postgres"}
"""And the server that each needs."""
BY_SERVER = 10_000
"""So many are held in a store that is a server."""
TTL = 30.0
SETTING = "all acquired, then each renewed once"
QUIET = 0.9 * renew_after(TTL)
"""So long after it was acquired nothing renews a lease, in seconds."""
TASKS = 64
SAMPLED = 200


def measure(plan: Plan, results: Results) -> None:
    """Each store once: a wave is long enough to be its own average."""
    for store in plan.chosen(SECTION, SETTING, [f"dibs {store}" for store in STORES]):
        with Crews(results, SECTION, SETTING) as crews:
            kind = store.split()[1]
            server = STORES[kind]
            folder = plan.folder_for(f"leases {store}", server)
            count = min(plan.leases, BY_SERVER) if server else plan.leases
            arguments = {"store": kind, "folder": folder, "count": count}
            crews.start(store, Crew("benchmarks.leases:work", [arguments]))
            crews.get_ready()
            for answer in crews.round(store):
                for unit, value in answer.items():
                    results.row(SECTION, SETTING, store, unit).values.append(value)


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, store: str, folder: str, count: int) -> None:
    """One order, one answer."""
    line.say(ready=True)
    if line.hear():
        place = Place(Path(folder))
        urls = {"memory": "memory://bench", "sqlite": place.sqlite_url}
        url = urls.get(store) or place.server_url
        line.say(**asyncio.run(_hold(url, count)))


async def _hold(url: str, count: int) -> dict[str, Any]:
    import dibs

    logging.disable(logging.WARNING)  # closing gives all of them up, and would say so for each
    async with dibs.connect(url) as client:
        await (await client.lock("warm-up").acquire()).release()
        leases: list[Any] = [None] * count
        empty, begun = _resident(), time.monotonic()
        await _acquire(client, leases, 0, count // 2)
        half = _resident()
        await _acquire(client, leases, count // 2, count)
        full, acquired_in = _resident(), time.monotonic() - begun
        told = {
            "leases": float(count),
            "µs to acquire one, 64 tasks": acquired_in / count * 1e6,
            "bytes per lease, 1st half": (half - empty) / (count // 2),
            "bytes per lease, 2nd half": (full - half) / (count - count // 2),
        }
        if acquired_in > QUIET:
            raise RuntimeError("acquiring took so long that renewals began amid it")
        return told | await _watch_a_wave(leases, begun)


async def _acquire(client: Any, leases: list[Any], first: int, end: int) -> None:
    numbers = iter(range(first, end))

    async def some() -> None:
        for number in numbers:
            leases[number] = await client.lock(f"held-{number}", ttl=TTL).acquire()

    await asyncio.gather(*(some() for _ in range(TASKS)))


async def _watch_a_wave(leases: list[Any], begun: float) -> dict[str, Any]:
    """From now, before the first renewal, until the last lease's deadline has moved."""
    before = [time.monotonic() + lease.remaining for lease in leases]
    sample = range(0, len(leases), max(len(leases) // SAMPLED, 1))
    await asyncio.sleep(max(begun + QUIET - time.monotonic(), 0))
    cpu, began, least = time.process_time(), 0.0, TTL
    while True:
        await asyncio.sleep(0.1)
        now = time.monotonic()
        left = {number: leases[number].remaining for number in sample}
        least = min(least, *left.values())
        moved = [number for number in sample if now + left[number] > before[number] + 1]
        if moved and not began:
            began = now
        if len(moved) == len(sample) and _all_moved(leases, before):
            break
        if any(leases[number].lost for number in sample):
            break
    spent = time.process_time() - cpu
    return {
        "ms of CPU per 1,000 renewals": spent / len(leases) * 1e6,
        "s, the whole wave": time.monotonic() - began,
        "s left at least": least,
        "lost": float(sum(lease.lost for lease in leases)),
    }


def _all_moved(leases: list[Any], before: list[float]) -> bool:
    now = time.monotonic()
    return all(now + lease.remaining > old + 1 for lease, old in zip(leases, before, strict=True))


def _resident() -> int:
    """What of this process is in memory, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
