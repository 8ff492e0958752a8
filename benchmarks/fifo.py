"""First come, first served, between processes: checked where who came first is beyond doubt.

The key is held. Eight waiters in four processes ask one after the other, each only once the store says
that the one before it is in the queue. Then the key is given up, and the tokens tell who came next.
"""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import dibs
from benchmarks.crew import Crew, Line
from benchmarks.crews import Crews
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results

SECTION = "order"
SETTING = "8 waiters in 4 processes"
NAME, UNIT = "dibs sqlite", "out of order"
PROCESSES, WAITERS = 4, 8
KEY = "queued-for"


def measure(plan: Plan, results: Results) -> None:
    """A queue is filled and emptied in each round."""
    if not plan.chosen(SECTION, SETTING, [NAME]):
        return
    folder = plan.folder_for(SECTION)
    with Crews(results, SECTION, SETTING) as crews:
        names = [f"process {number}" for number in range(PROCESSES)]
        for name in names:
            crews.start(name, Crew("benchmarks.fifo:work", [{"folder": folder}]))
        crews.get_ready()
        for _ in range(plan.rounds):
            values = results.row(SECTION, SETTING, NAME, UNIT).values
            values.append(float(asyncio.run(_round(Place(Path(folder)), crews, names))))


async def _round(place: Place, crews: Crews, names: list[str]) -> int:
    async with dibs.connect(place.sqlite_url) as client:
        lock = client.lock(KEY)
        async with lock:
            for waiter in range(WAITERS):
                crews.round(names[waiter % PROCESSES], waiter=waiter)
                until = time.monotonic() + 10
                while (await lock.status()).waiting <= waiter:
                    if time.monotonic() > until:
                        raise RuntimeError(f"waiter {waiter} never came into the queue")
        turns = [turn for name in names for answer in crews.round(name) for turn in answer["turns"]]
    order = [waiter for _, waiter in sorted(turns)]
    missing = WAITERS - len(order)
    return missing + sum(bool(first > second) for first, second in pairwise(order))


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, folder: str) -> None:
    """Ask when told to; tell all tokens when told nothing."""
    asyncio.run(_work(line, Place(Path(folder))))


async def _work(line: Line, place: Place) -> None:
    async with dibs.connect(place.sqlite_url) as client:
        lock = client.lock(KEY)
        turns: list[asyncio.Task[tuple[int, int]]] = []
        line.say(ready=True)
        while order := await asyncio.to_thread(line.hear):
            if "waiter" in order:
                turns.append(asyncio.create_task(_turn(lock, order["waiter"])))
                line.say(asked=True)
            else:
                line.say(turns=await asyncio.gather(*turns))
                turns.clear()


async def _turn(lock: Any, waiter: int) -> tuple[int, int]:
    async with lock.acquire() as lease:
        return lease.token, waiter
