"""What a permit costs on Temporal, by each way of getting one: milliseconds, history events, actions.

`python -m benchmarks.temporal_modes` starts a server for development and a Redis, lets all take turns,
and prints the tables of `benchmarks/README.md`; with `--save` it puts them there.
"""

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType

from benchmarks import temporal_contended
from benchmarks.crews import turned
from benchmarks.place import disk_folder
from benchmarks.plan import Plan
from benchmarks.results import Results, Row
from benchmarks.servers import Servers
from benchmarks.table import shown
from benchmarks.temporal_flows import (
    ACTIVITY,
    BACKOFF,
    BARE,
    FAIR,
    FAIR_LOCK,
    GUIDE,
    IN_PYTHON,
    IN_WORKFLOWS,
    PLAIN_LOCK,
    WAYS,
    Cycles,
    Holds,
    Runs,
    Timed,
)
from benchmarks.temporal_world import World, world
from dibs.stores.temporal.ids import broker_id, permit_workflow_id
from dibs.temporal.slots.acquire import PAUSE, PROBE, Prober
from tests.servers.binaries import temporal_program

SECTION = "Temporal"
FREE, WAITING, CONTENDED = "nobody else wants it", "one waits", "8 × 0.5 s"
STEPS = "the server alone"

ACQUIRE, RELEASE = "ms to acquire", "ms to release"
HOLDER_EVENTS, LOCK_EVENTS, ACTIONS = "events, holder", "events, lock", "actions"
ROUND, HOUR = "events a round, holder", "events in an hour, holder"
WHOLE, HANDOFF, STEP = "s in all", "ms a hand-off", "ms from its start until its workflow knows"

BEGIN, END = "<!-- the tables: --save writes them -->", "<!-- the end of the tables -->"

CYCLES = 10
CONTENDERS = 8
WATCHED = 6.0
"""So long a waiter is watched for what it adds to its history, in seconds."""

COUNTED = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
}
"""What Temporal Cloud bills as an action, each at the one history in which it is found once."""


@dataclass
class Rows:
    """Where the figures go."""

    results: Results

    def add(self, setting: str, way: str, unit: str, value: float) -> None:
        baseline = GUIDE if way != GUIDE and way in (*IN_WORKFLOWS, GUIDE) else ""
        self.results.row(SECTION, setting, way, unit, baseline).values.append(value)


async def free(world: World, rows: Rows, way: str) -> None:
    """One acquire and release, when nobody else wants it."""
    if way in IN_WORKFLOWS:
        await _free_in_workflow(world, rows, way)
    elif way in IN_PYTHON:
        await _free_in_python(world, rows, way)
    elif way == ACTIVITY:
        await _free_for_activity(world, rows, way)


async def _free_for_activity(world: World, rows: Rows, way: str) -> None:
    """Beside the same workflow whose activity needs no lock."""
    bare = await world.start(Runs.run, "bare", CYCLES)
    rows.add(STEPS, "an activity", STEP, median(await bare.result()))
    locked = await world.start(Runs.run, "locked", CYCLES)
    rows.add(FREE, way, ACQUIRE, median(await locked.result()))
    without, own = await world.events(bare.id), await world.events(locked.id)
    rows.add(FREE, way, HOLDER_EVENTS, (len(own) - len(without)) / CYCLES)
    rows.add(FREE, way, ACTIONS, (_actions(own) - _actions(without)) / CYCLES)


async def _free_in_workflow(world: World, rows: Rows, way: str) -> None:
    ask = world.ask(way)
    await (await world.start(Cycles.run, ask, 1)).result()  # starts the broker, if there is one
    lock = _lock_of(way, ask.resource)
    lock_before = [] if lock.startswith("permit") else await world.events(lock)
    handle = await world.start(Cycles.run, ask, CYCLES)
    timed: Timed = await handle.result()
    rows.add(FREE, way, ACQUIRE, median(timed.acquire))
    rows.add(FREE, way, RELEASE, median(timed.release))
    own = (await world.events(handle.id))[timed.before :]
    own = own[: len(own) - 1]  # its completion
    others = (await world.events(lock))[len(lock_before) :]
    times = 1 if lock.startswith("permit") else CYCLES + 1  # a permit is one cycle, a broker all
    rows.add(FREE, way, HOLDER_EVENTS, len(own) / CYCLES)
    rows.add(FREE, way, LOCK_EVENTS, len(others) / times)
    rows.add(FREE, way, ACTIONS, _actions(own) / CYCLES + _actions(others) / times)


async def _free_in_python(world: World, rows: Rows, way: str) -> None:
    primitive, lock = _of_store(world, way, f"bench-{uuid4().hex[:12]}")
    async with primitive:
        pass
    before = len(await world.events(lock))
    acquired, released = [], []
    for _ in range(CYCLES):
        begun = perf_counter()
        lease = await primitive.acquire()
        got = perf_counter()
        await lease.release()
        acquired.append((got - begun) * 1e3)
        released.append((perf_counter() - got) * 1e3)
    others = (await world.events(lock))[before:]
    rows.add(FREE, way, ACQUIRE, median(acquired))
    rows.add(FREE, way, RELEASE, median(released))
    rows.add(FREE, way, LOCK_EVENTS, len(others) / CYCLES)
    rows.add(FREE, way, ACTIONS, _actions(others) / CYCLES)


def _of_store(world: World, way: str, name: str) -> tuple[Any, str]:
    """A primitive of plain Python, and the workflow behind it."""
    if way == PLAIN_LOCK:
        return world.store.lock(name), broker_id(f"lock:{name}".encode())
    return world.store.semaphore(name, 1), broker_id(f"semaphore:{name}".encode())


def _lock_of(way: str, resource: str) -> str:
    if way in (FAIR, FAIR_LOCK):
        kind = "lock" if way == FAIR_LOCK else "semaphore"
        return broker_id(f"{kind}:{resource}".encode())
    return permit_workflow_id(resource, "0")


def _actions(events: Sequence[int]) -> int:
    return sum(event in COUNTED for event in events)


async def waiting(world: World, rows: Rows, way: str) -> None:
    """What a waiter adds to its own history."""
    if way not in IN_WORKFLOWS:
        return
    ask = world.ask(way)
    holder = await world.start(Holds.run, ask, "")
    await holder.execute_update(Holds.until_held)
    waiter = await world.start(Holds.run, ask, "")
    await asyncio.sleep(BACKOFF / 2)
    before = await world.events(waiter.id)
    await asyncio.sleep(WATCHED)
    added = (await world.events(waiter.id))[len(before) :]
    await holder.signal(Holds.leave)
    await waiter.signal(Holds.leave)
    await asyncio.gather(holder.result(), waiter.result())
    pauses = added.count(EventType.EVENT_TYPE_TIMER_FIRED)
    rows.add(WAITING, way, ROUND, len(added) / max(pauses, 1))
    rows.add(WAITING, way, HOUR, _in_an_hour(way, len(added)))


def _in_an_hour(way: str, added: int) -> float:
    """With the pauses that each has by itself, reckoned: 5 s the guide's, ours as it paces itself."""
    if way == GUIDE:
        return 3600 / 5 * (PROBE + PAUSE)
    if way in (FAIR, FAIR_LOCK):
        return added
    prober, now, events = Prober(["0"], Random(0), 0.0, backoff=5.0, longest=60.0), 0.0, 0
    while now < 3600:
        for _ in prober.round(now):
            prober.probed()
            events += PROBE
        now += prober.pause(now)
        events += PAUSE
    return events


async def contended(world: World, rows: Rows, way: str) -> None:
    """Eight come at once for one slot, and each keeps it for half a second."""
    world.work.spans.clear()
    await _contend(world, way)
    spans = sorted(world.work.spans)
    pauses = [after[0] - before[1] for before, after in pairwise(spans)]
    if len(spans) != CONTENDERS or min(pauses) < 0:
        raise RuntimeError(f"{way}: {len(spans)} held it, or two of them at once")
    rows.add(CONTENDED, way, WHOLE, spans[-1][1] - spans[0][0])
    rows.add(CONTENDED, way, HANDOFF, median(pauses) * 1e3)


async def _contend(world: World, way: str) -> None:
    """Until each has had it; all note by one clock when their work began and ended."""
    if way == BARE:
        await temporal_contended.take_turns(world.client, world.queue, "holding", CONTENDERS)
    elif way in IN_PYTHON:
        primitive, _ = _of_store(world, way, f"bench-{uuid4().hex[:12]}")
        async with primitive:
            pass
        await asyncio.gather(*(_in_turn(world, primitive) for _ in range(CONTENDERS)))
    else:
        run: tuple[Any, ...] = (Holds.run, world.ask(way), "holding")
        if way == ACTIVITY:
            run = (Runs.run, "locked holding", 1)
        started = [await world.start(*run) for _ in range(CONTENDERS)]
        await asyncio.gather(*(each.result() for each in started))


async def _in_turn(world: World, primitive: Any) -> None:
    async with primitive:
        await world.work.hold()


# ---- the section and the command ----------------------------------------------------------------------


def measure(plan: Plan, results: Results) -> None:
    """All ways, by turns."""
    chosen = _chosen(plan)
    if any(ways for _, ways in chosen):
        asyncio.run(_measure(plan, Rows(results), chosen))


def _chosen(plan: Plan) -> list[tuple[Any, list[str]]]:
    return [(part, plan.chosen(SECTION, name, WAYS)) for part, name in PARTS]


PARTS = ((free, FREE), (waiting, WAITING), (contended, CONTENDED))


async def _measure(plan: Plan, rows: Rows, chosen: list[tuple[Any, list[str]]]) -> None:
    folder = Path(plan.folder_for(SECTION))
    async with world(folder) as made:
        for number in range(plan.rounds):
            for part, ways in chosen:
                if part is waiting and number:
                    continue  # the same each time
                for way in turned(list(ways), number):
                    begun = perf_counter()
                    await part(made, rows, way)
                    told = f"  round {number + 1}, {part.__name__}, {way}"
                    print(f"{told}: {perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


def markdown(results: Results) -> str:
    """The tables of the page: a line for each way."""
    tables = (
        (
            FREE,
            (ACQUIRE, RELEASE, HOLDER_EVENTS, LOCK_EVENTS, ACTIONS),
        ),
        (WAITING, (ROUND, HOUR)),
        (CONTENDED, (WHOLE, HANDOFF)),
        (STEPS, (STEP,)),
    )
    found = (_markdown(results, setting, units) for setting, units in tables)
    return "\n".join(table for table in found if table)


def _markdown(results: Results, setting: str, units: Sequence[str]) -> str:
    rows = {(row.contestant, row.unit): row for row in results if row.setting == setting}
    units = [unit for unit in units if any(key[1] == unit for key in rows)]
    ways = list(dict.fromkeys(key[0] for key in rows))
    if not units:
        return ""
    lines = [f"| {setting} | {' | '.join(units)} |", f"|---|{'---|' * len(units)}"]
    for way in ways:
        cells = (_cell(rows.get((way, unit))) for unit in units)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row.spread
    told = shown(row.median)
    return told if shown(low) == shown(high) else f"{told} ({shown(low)} … {shown(high)})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.temporal_modes", description=__doc__
    )
    parser.add_argument("pattern", nargs="*", help="only rows whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--save", action="store_true", help="put the tables into the page")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dibs-bench-", dir=disk_folder()))
    load, results = os.getloadavg()[0], Results()
    plan = Plan(given.rounds, 0.0, tuple(given.pattern), folder, 0, False, Servers(folder))
    try:
        for pattern in given.pattern:
            if not any(ways for _, ways in _chosen(replace(plan, patterns=(pattern,)))):
                parser.error(f"no row has {pattern!r} in its name: there are {', '.join(WAYS)}")
        measure(plan, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = (
        f"{markdown(results)}\n`{' '.join(['python', '-m', 'benchmarks.temporal_modes', *sys.argv[1:]])}`: "
        f"{given.rounds} rounds, {temporal_program().label}, Python {platform.python_version()}, "
        f"{len(os.sched_getaffinity(0))} processors, "
        f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after it."
    )
    print(text)
    if given.save:
        save(text)


def save(text: str) -> None:
    """Put them into the page, in the stead of the run before."""
    page = Path(__file__).with_name("README.md")
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
