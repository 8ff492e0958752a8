"""Small costs that are paid often: constructing, cancelling, starting the command line."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.crews import turned
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results

SECTION = "costs"
CONSTRUCTING, CANCELLING, STARTING = "constructing", "cancelling", "starting the command line"
CONSTRUCTED, CANCELLED = 2000, 50
QUEUED = 0.002
"""So long a waiter is given to be really in the queue before it is cancelled, in seconds."""


def measure(plan: Plan, results: Results) -> None:
    """Each kind in rounds of its own."""
    _measure_constructing(plan, results)
    asyncio.run(_measure_cancelling(plan, results))
    _measure_starting(plan, results)


# ---- constructing ---------------------------------------------------------------------------------


def _constructors() -> dict[str, Callable[[str], object]]:
    from grelmicro import coordination
    from grelmicro.coordination.memory import MemoryLockAdapter

    import dibs

    client = dibs.connect("memory://constructed")
    config, backend = dibs.LockConfig(), MemoryLockAdapter()
    peers = coordination.LockConfig(worker="worker")
    make, from_config = coordination.Lock, coordination.Lock.from_config
    return {
        "dibs.Lock(name)": lambda name: dibs.Lock(name, client=client),
        "dibs.Lock.from_config": lambda name: dibs.Lock.from_config(name, config, client=client),
        "dibs.Lock.from_config, named store": lambda name: dibs.Lock.from_config(
            name, config, client="constructed"
        ),
        "asyncio.Lock()": lambda name: asyncio.Lock(),
        "grelmicro Lock(name)": lambda name: make(name, backend=backend),
        "grelmicro Lock.from_config": lambda name: from_config(name, peers, backend=backend),
    }


def _measure_constructing(plan: Plan, results: Results) -> None:
    makers = _constructors()
    names = plan.chosen(SECTION, CONSTRUCTING, makers)
    keys = [f"key-{number}" for number in range(CONSTRUCTED)]
    for number in range(plan.rounds):
        for name in turned(names, number):
            make = makers[name]
            begun = time.perf_counter()
            for key in keys:
                make(key)
            spent = time.perf_counter() - begun
            results.row(SECTION, CONSTRUCTING, name, "µs").values.append(spent / len(keys) * 1e6)


# ---- cancelling -----------------------------------------------------------------------------------

type Acquire = Callable[[], Any]
type Waiting = Callable[[], Any]


@asynccontextmanager
async def _dibs(url: str) -> AsyncIterator[tuple[Acquire, Waiting]]:
    import dibs

    async with dibs.connect(url) as client:
        lock = client.lock("wanted")
        async with lock:

            async def waiting() -> int:
                return (await lock.status()).waiting

            yield lock.acquire, waiting


@asynccontextmanager
async def _asyncio() -> AsyncIterator[tuple[Acquire, Waiting]]:
    lock = asyncio.Lock()
    async with lock:

        async def waiting() -> int:
            return len(lock._waiters or ())

        yield lock.acquire, waiting


async def _measure_cancelling(plan: Plan, results: Results) -> None:
    place = Place(Path(plan.folder_for("cancelling")))
    openers: dict[str, Callable[[], Any]] = {
        "dibs memory": lambda: _dibs("memory://cancelled"),
        "dibs sqlite": lambda: _dibs(place.sqlite_url),
        "asyncio.Lock": _asyncio,
    }
    names = plan.chosen(SECTION, CANCELLING, openers)
    for number in range(plan.rounds):
        for name in turned(names, number):
            async with openers[name]() as (acquire, waiting):
                spent = sum([await _cancel_one(acquire) for _ in range(CANCELLED)])
                left = await _left_behind(waiting)
            for unit, value in (
                ("µs for the caller", spent / CANCELLED * 1e6),
                ("left behind", float(left)),
            ):
                results.row(SECTION, CANCELLING, name, unit).values.append(value)


async def _cancel_one(acquire: Acquire) -> float:
    async def ask() -> None:
        await acquire()

    task = asyncio.create_task(ask())
    await asyncio.sleep(QUEUED)
    begun = time.perf_counter()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return time.perf_counter() - begun


async def _left_behind(waiting: Waiting) -> int:
    """Places that are still there after the background has had its time."""
    until = time.monotonic() + 2
    while (left := await waiting()) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return int(left)


# ---- the command line -----------------------------------------------------------------------------


def _measure_starting(plan: Plan, results: Results) -> None:
    script = str(Path(sys.executable).parent / "dibs")
    place = Place(Path(plan.folder_for("command line")))
    environment = os.environ | {"DIBS_URL": place.sqlite_url}
    baseline = "python -c pass"
    commands = {
        "dibs version": [script, "version"],
        "dibs run x -- true": [script, "run", "x", "--", "true"],
        baseline: [sys.executable, "-c", "pass"],
    }
    names = plan.chosen(SECTION, STARTING, commands, baseline)
    for name in list(names):
        try:
            _cpu_of(commands[name], environment)
        except (OSError, RuntimeError) as error:
            results.row(SECTION, STARTING, name, "ms of CPU")
            results.fail(SECTION, STARTING, name, str(error))
            names.remove(name)
    for number in range(plan.rounds):
        for name in turned(names, number):
            row = results.row(SECTION, STARTING, name, "ms of CPU", baseline)
            row.values.append(_cpu_of(commands[name], environment) * 1000)


def _cpu_of(command: list[str], environment: dict[str, str]) -> float:
    """The processor's time of a command and of what it starts and waits for, in seconds."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[1:]} ended with code {process.returncode}")
    return usage.ru_utime + usage.ru_stime
