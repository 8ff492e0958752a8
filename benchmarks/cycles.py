"""Uncontended cycles: how many acquires and releases a second, each task on a key of its own."""

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contestants import contestant
from benchmarks.contestants.family import PRIMITIVES
from benchmarks.contestants.kinds import Async, AsyncRun, Blocking, Program, Run
from benchmarks.crew import Crew, Line, wait_for
from benchmarks.crews import Crews, turned
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results

SECTION = "cycles"
UNIT = "cycles/s"
CPU = "µs of CPU a cycle"
"""Of the client, all its threads; told where the server takes most of the time."""
HEAT = 2.0
"""So long all run before the first round: a log that still grows costs several times more, in seconds."""
PARTS = 50
"""A task looks at the clock about so many times a round: reading it costs a tenth of a fast cycle."""


class Group(NamedTuple):
    """Contestants that take turns, each in as many processes of as many tasks (or threads)."""

    setting: str
    processes: int
    tasks: int
    baseline: str
    contestants: Sequence[str]
    server: str = ""
    cpu: str = ""
    """The unit of the client's CPU, if that is told too."""


_MEMORY = ("dibs memory", "dibs memory, async with", "dibs memory, sync")
_SQLITE = ("dibs sqlite", "dibs sqlite, async with", "dibs sqlite, sync")
_PAIRS = ("bare SQLite pair", "bare SQLite pair, own thread")
_FULL = ("bare SQLite pair, synchronous=FULL",)
_GREL = ("grelmicro sqlite", "grelmicro sqlite, synchronous=NORMAL")
_FILES = ("filelock", "filelock, async", "portalocker", "fasteners")
_LEDGER, _PAIR = "bare ledger, twice", "bare SQLite pair"
_OTHERS = (_LEDGER, "asyncio.Lock", "grelmicro memory")
_REDIS = ("dibs redis", "dibs redis, async with", "dibs redis, sync")
_REDIS_PEERS = ("redis.asyncio.Lock", "pottery", "aioredlock", "grelmicro redis")
_REDIS_GO = ("Go's redislock", "Go's redsync", "Go's rueidis, bare pair")
_REDIS_SYNC = ("redis.Lock, sync", "python-redis-lock, sync", "tooz redis, sync")
_POSTGRES = ("dibs postgres", "dibs postgres, async with", "dibs postgres, sync")
_POSTGRES_PEERS = ("grelmicro postgres", "tooz postgres, sync", "advisory lock, sync")
_RPAIR, _PPAIR = "bare Redis pair", "bare Postgres pair"
_SERVICE = ("dibs service", "dibs service, async with", "dibs service, sync")
_ETCD = ("dibs etcd", "dibs etcd, async with", "dibs etcd, sync")
_ETCD_PEERS = ("aetcd", "etcd-client-py", "Go's concurrency.Mutex")
_KUBE = ("dibs kubernetes", "dibs kubernetes, async with", "dibs kubernetes, sync")
_EPAIR, _PUTS = "bare etcd pair", "bare PUT pair"
_FRAMEWORK, _PLAIN = "bare framework pair", "plain HTTP to the service"
_OF_SERVICE = (*_SERVICE, "Rust SDK", _PLAIN, _FRAMEWORK)

GROUPS: tuple[Group, ...] = (
    Group("memory, 1 task", 1, 1, _LEDGER, (*_MEMORY, *_OTHERS)),
    Group("memory, 64 tasks", 1, 64, _LEDGER, (*_MEMORY, *_OTHERS)),
    Group("memory, 4 processes × 1 task", 4, 1, _LEDGER, (_MEMORY[0], *_OTHERS)),
    Group("disk, 1 task", 1, 1, _PAIR, (*_SQLITE, *_PAIRS, *_FULL, *_GREL, *_FILES)),
    Group("disk, 64 tasks", 1, 64, _PAIR, (*_SQLITE, *_PAIRS, *_GREL, "filelock, async")),
    Group("disk, 4 processes × 1 task", 4, 1, _PAIR, (*_SQLITE, *_PAIRS, _GREL[0], *_FILES)),
    Group("disk, 4 processes × 64 tasks", 4, 64, _PAIR, (_SQLITE[0], *_PAIRS, _GREL[0])),
    Group(
        "Redis, 1 task",
        *(1, 1, _RPAIR, (*_REDIS, _RPAIR, *_REDIS_PEERS, *_REDIS_SYNC, *_REDIS_GO), "redis"),
    ),
    Group(
        "Redis, 64 tasks",
        *(1, 64, _RPAIR, (*_REDIS, _RPAIR, *_REDIS_PEERS, *_REDIS_GO), "redis"),
    ),
    Group("Postgres, 1 task", 1, 1, _PPAIR, (*_POSTGRES, _PPAIR, *_POSTGRES_PEERS), "postgres"),
    Group(
        "Postgres, 64 tasks", 1, 64, _PPAIR, (*_POSTGRES, _PPAIR, _POSTGRES_PEERS[0]), "postgres"
    ),
    Group("service, 1 task", 1, 1, _FRAMEWORK, _OF_SERVICE, "service"),
    Group("service, 64 tasks", 1, 64, _FRAMEWORK, _OF_SERVICE, "service"),
    Group("etcd, 1 task", 1, 1, _EPAIR, (*_ETCD, _EPAIR, *_ETCD_PEERS), "etcd", CPU),
    Group("etcd, 16 tasks", 1, 16, _EPAIR, (*_ETCD, _EPAIR, *_ETCD_PEERS), "etcd", CPU),
    Group("etcd, 64 tasks", 1, 64, _EPAIR, (*_ETCD, _EPAIR, *_ETCD_PEERS), "etcd", CPU),
    *(
        Group(
            f"Kubernetes, {told}",
            *(1, tasks, _PUTS, (*_KUBE, _PUTS, "grelmicro kubernetes"), "kubernetes", CPU),
        )
        for told, tasks in (("1 task", 1), ("16 tasks", 16))
    ),
)


def _family(store: str, server: str = "") -> tuple[Group, ...]:
    """Every primitive on a store, beside its lock."""
    names = [f"dibs {store}, {name}" for name in PRIMITIVES]
    return tuple(
        Group(f"all primitives on {store}, {told}", 1, tasks, names[0], names, server)
        for told, tasks in (("1 task", 1), ("64 tasks", 64))
    )


GROUPS += (
    *_family("memory"),
    *_family("sqlite"),
    *_family("redis", "redis"),
    *_family("postgres", "postgres"),
)


def measure(plan: Plan, results: Results) -> None:
    """All groups, one after the other."""
    for group in GROUPS:
        names = list(group.contestants)
        if plan.uvloop:
            names += [f"{names[0]}, uvloop"]
        names = plan.chosen(SECTION, group.setting, names, group.baseline)
        if names:
            _measure_group(plan, results, group, names)


def _measure_group(plan: Plan, results: Results, group: Group, names: list[str]) -> None:
    for name in names:
        results.row(SECTION, group.setting, name, UNIT, group.baseline)
    with Crews(results, SECTION, group.setting) as crews:
        for name in names:
            crews.start(name, _crew(plan, group, name))
        crews.get_ready()
        crews.heat(seconds=HEAT)
        for name in names:
            crews.round(name, seconds=min(plan.seconds, 0.2), warm_up=plan.seconds)
        for number in range(plan.rounds):
            for name in turned(names, number):
                answers = crews.round(name, seconds=plan.seconds)
                if answers:
                    row = results.row(SECTION, group.setting, name, UNIT, group.baseline)
                    row.values.append(sum(a["cycles"] / a["elapsed"] for a in answers))
                if group.cpu and all("cpu" in answer for answer in answers):
                    spent = sum(answer["cpu"] for answer in answers)
                    done = sum(answer["cycles"] for answer in answers)
                    row = results.row(SECTION, group.setting, name, group.cpu, group.baseline)
                    row.values.append(spent / done * 1e6)


def _crew(plan: Plan, group: Group, name: str) -> Crew:
    folder = plan.folder_for(f"{SECTION} {group.setting} {name}", group.server)
    arguments: list[dict[str, Any]] = [
        {"name": name, "folder": folder, "process": process, "tasks": group.tasks}
        for process in range(group.processes)
    ]
    return Crew("benchmarks.cycles:work", arguments)


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, name: str, folder: str, process: int, tasks: int) -> None:
    """Serve rounds until there are no more."""
    found = contestant(name)
    place = Place(Path(folder), process)
    if isinstance(found, Program):
        _work_as_program(line, found, place, tasks)
    elif isinstance(found, Blocking):
        _work_in_threads(line, found, place, tasks)
    else:
        with asyncio.Runner(loop_factory=_uvloop if found.uvloop else None) as runner:
            runner.run(_work_in_loop(line, found, place, tasks))


def _work_as_program(line: Line, found: Program, place: Place, tasks: int) -> None:
    """Its start is in no figure, and its CPU neither."""
    line.say(ready=True)
    while order := line.hear():
        wait_for(order["at"])
        command = found.command(place, tasks, order["seconds"])
        done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        line.say(cycles=done["cycles"], elapsed=done["seconds"])


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _work_in_loop(line: Line, found: Async, place: Place, tasks: int) -> None:
    async with found.open(place) as on:
        runs = [on(place.key(number)) for number in range(tasks)]
        await asyncio.gather(*(run(1) for run in runs))
        line.say(ready=True)
        chunk = 1
        while order := await asyncio.to_thread(line.hear):
            await asyncio.sleep(max(order["at"] - time.monotonic(), 0))
            begun, cpu = time.monotonic(), time.process_time()
            end = begun + order["seconds"]
            done = sum(await asyncio.gather(*(_until(run, end, chunk) for run in runs)))
            chunk = _report(line, order, done, begun, cpu, tasks, chunk)


async def _until(run: AsyncRun, end: float, chunk: int) -> int:
    done = 0
    while time.monotonic() < end:
        await run(chunk)
        done += chunk
    return done


def _work_in_threads(line: Line, found: Blocking, place: Place, tasks: int) -> None:
    with found.open(place) as on:
        runs = [on(place.key(number)) for number in range(tasks)]
        for run in runs:
            run(1)
        line.say(ready=True)
        chunk = 1
        while order := line.hear():
            wait_for(order["at"])
            begun, cpu = time.monotonic(), time.process_time()
            done = _in_threads(runs, begun + order["seconds"], chunk)
            chunk = _report(line, order, done, begun, cpu, tasks, chunk)


def _in_threads(runs: list[Run], end: float, chunk: int) -> int:
    done: list[int] = []

    def until(run: Run) -> None:
        count = 0
        while time.monotonic() < end:
            run(chunk)
            count += chunk
        done.append(count)

    if len(runs) == 1:
        until(runs[0])
    else:
        threads = [threading.Thread(target=until, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(done)


def _report(
    line: Line,
    order: dict[str, Any],
    done: int,
    begun: float,
    cpu: float,
    tasks: int,
    chunk: int,
) -> int:
    """Answer a round; a warm-up also tells how many cycles a task may do between two looks."""
    elapsed = time.monotonic() - begun
    line.say(cycles=done, elapsed=elapsed, cpu=time.process_time() - cpu)
    if "warm_up" not in order:
        return chunk
    return max(1, int(done / tasks / elapsed * order["warm_up"] / PARTS))
