"""Hand-off on one key between processes: from just before a release until the next holder runs.

Eight waiters, each of whom acquires, holds for a moment, releases and pauses, again and again. Counted
are the hand-offs to a waiter in another process that was waiting already when the release began.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.contestants.grabbing import BlockingGrab, Grab
from benchmarks.contestants.waiting import (
    WAITING,
    AsyncWaiting,
    BlockingWaiting,
    Single,
    boot,
)
from benchmarks.crew import Crew, Line, wait_for
from benchmarks.crews import Crews, turned
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results

SECTION = "hand-off"
BASELINE = "raw datagram"
REDIS_BASELINE = "bare grant and publish"
POSTGRES_BASELINE = "blocking advisory lock"
ETCD_BASELINE = "one write to etcd"
KUBERNETES_BASELINE = "one PUT to Kubernetes"
UNITS = ("µs, p50", "µs, p99", "turns/s", "overtaken", "overlaps")
HOLD = 0.001
PAUSE = 0.005
"""Between a waiter's turns, so that it is not always the last holder who wins where it is a race."""
ROUND = 1.0
"""The shortest round, in seconds: a poll hands on only some dozens of times in it."""


class Turn(NamedTuple):
    """One waiter's turn, by the boot clock."""

    asked: float
    got: float
    left: float
    waiter: int
    process: int


class Race(NamedTuple):
    """Contestants that take turns, each with its waiters in as many processes."""

    section: str
    baseline: str
    names: Sequence[str]
    server: str = ""
    processes: int | None = None
    """None: as many as the contestant can do with."""
    waiters: int = 2


RACES = (
    Race(
        SECTION,
        BASELINE,
        (
            "dibs sqlite",
            "dibs sqlite, sync",
            BASELINE,
            "bare SQLite, then a datagram",
            "0.1 s poll of SQLite",
            "grelmicro sqlite",
            "filelock",
            "portalocker",
            "fasteners",
        ),
    ),
    *(
        Race(
            f"hand-off on Redis, {processes} × {8 // processes} waiters",
            REDIS_BASELINE,
            (
                "dibs redis",
                "dibs redis, sync",
                REDIS_BASELINE,
                "redis.asyncio.Lock",
                "grelmicro redis",
                "python-redis-lock, sync",
            ),
            "redis",
            processes,
            8 // processes,
        )
        for processes in (2, 1)
    ),
    Race(
        "hand-off on Postgres, 2 × 4 waiters",
        POSTGRES_BASELINE,
        (
            *("dibs postgres", "dibs postgres, sync"),
            *(POSTGRES_BASELINE, "bare grant and notify", "grelmicro postgres"),
        ),
        "postgres",
        2,
        4,
    ),
    Race(
        "hand-off on etcd, 2 × 4 waiters",
        ETCD_BASELINE,
        ("dibs etcd", "dibs etcd, sync", ETCD_BASELINE, "aetcd", "etcd-client-py"),
        *("etcd", 2, 4),
    ),
    Race(
        "hand-off on Kubernetes, 2 × 4 waiters",
        KUBERNETES_BASELINE,
        (
            *("dibs kubernetes", "dibs kubernetes, sync"),
            *(KUBERNETES_BASELINE, "grelmicro kubernetes"),
        ),
        *("kubernetes", 2, 4),
    ),
)


def measure(plan: Plan, results: Results) -> None:
    """All races, one after the other."""
    for race in RACES:
        names = plan.chosen(race.section, "", race.names, race.baseline)
        if names:
            _measure(plan, results, race, names)


def _measure(plan: Plan, results: Results, race: Race, names: list[str]) -> None:
    with Crews(results, race.section, "µs, p50") as crews:
        for name in names:
            crews.start(name, _crew(plan, race, name))
        crews.get_ready()
        for name in names:
            crews.round(name, seconds=0.2)
        for number in range(plan.rounds):
            for name in turned(names, number):
                answers = crews.round(name, seconds=max(plan.seconds, ROUND))
                if isinstance(WAITING[name], Single):
                    _tell_calls(results, race, name, [t for a in answers for t in a["took"]])
                    continue
                turns = [
                    Turn(asked, got, left, waiter, process)
                    for process, answer in enumerate(answers)
                    for asked, got, left, waiter in answer["turns"]
                ]
                _tell(results, race, name, sorted(turns, key=lambda turn: turn.got))


def _crew(plan: Plan, race: Race, name: str) -> Crew:
    folder = plan.folder_for(f"{race.section} {name}", race.server)
    waiting = WAITING[name]
    processes, waiters = race.processes or waiting.processes, race.waiters
    if race.processes is None or isinstance(waiting, Single):
        processes, waiters = waiting.processes, waiting.waiters
    arguments = [
        {"name": name, "folder": folder, "process": process, "waiters": waiters}
        for process in range(processes)
    ]
    return Crew("benchmarks.handoff:work", arguments)


def _tell_calls(results: Results, race: Race, name: str, took: list[float]) -> None:
    """A round's figures of a single call."""
    for unit, each in (("µs, p50", 50), ("µs, p99", 99)):
        if len(took) >= 2:
            row = results.row(race.section, unit, name, unit, race.baseline)
            row.values.append(quantiles(took, n=100, method="inclusive")[each - 1] * 1e6)


def _tell(results: Results, race: Race, name: str, turns: list[Turn]) -> None:
    """A round's figures."""
    p50, p99, rate, overtaken, overlaps = (
        results.row(
            race.section, unit, name, unit, race.baseline if "/s" in unit or "µs" in unit else ""
        )
        for unit in UNITS
    )
    pairs = list(pairwise(turns))
    latencies = [
        (following.got - turn.left) * 1e6
        for turn, following in pairs
        if following.asked < turn.left
        and (following.process != turn.process or race.processes == 1)
    ]
    if len(latencies) >= 2:
        p50.values.append(median(latencies))
        p99.values.append(quantiles(latencies, n=100, method="inclusive")[98])
        p99.note = f"({len(latencies)} hand-offs in the last round)"
    if pairs:
        rate.values.append(len(turns) / (turns[-1].left - turns[0].got))
        overtaken.values.append(float(_overtaken(turns)))
        overlaps.values.append(float(sum(b.got < a.left for a, b in pairs)))


def _overtaken(turns: list[Turn]) -> int:
    """Turns during whose wait another waiter had two: its second it must have asked for later."""
    count = 0
    for index, turn in enumerate(turns):
        seen: set[tuple[int, int]] = set()
        for earlier in reversed(turns[:index]):
            if earlier.got < turn.asked:
                break
            who = earlier.process, earlier.waiter
            if who in seen:
                count += 1
                break
            seen.add(who)
    return count


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, name: str, folder: str, process: int, waiters: int) -> None:
    """Serve rounds until there are no more."""
    waiting = WAITING[name]._replace(waiters=waiters)
    place = Place(Path(folder), process)
    if isinstance(waiting, Single):
        asyncio.run(_call(line, waiting, place))
    elif isinstance(waiting, AsyncWaiting):
        asyncio.run(_work_in_loop(line, waiting, place))
    else:
        _work_in_threads(line, waiting, place)


async def _work_in_loop(line: Line, waiting: AsyncWaiting, place: Place) -> None:
    async with waiting.open(place) as grab_for:
        grabs = [grab_for(number) for number in range(waiting.waiters)]
        line.say(ready=True)
        while order := await asyncio.to_thread(line.hear):
            await asyncio.sleep(max(order["at"] - time.monotonic(), 0))
            turns: list[Any] = []
            end = boot() + order["seconds"]
            each = (_turns(grab, end, number, turns) for number, grab in enumerate(grabs))
            await asyncio.gather(*each)
            line.say(turns=turns)


async def _turns(grab: Grab, end: float, number: int, turns: list[Any]) -> None:
    while (asked := boot()) < end:
        release = await grab()
        got = boot()
        await asyncio.sleep(HOLD)
        left = boot()
        await release()
        turns.append((asked, got, left, number))
        await asyncio.sleep(PAUSE)


async def _call(line: Line, waiting: Single, place: Place) -> None:
    """One call after the other, as far apart as a holder holds."""
    async with waiting.open(place) as call:
        line.say(ready=True)
        while order := await asyncio.to_thread(line.hear):
            await asyncio.sleep(max(order["at"] - time.monotonic(), 0))
            took: list[float] = []
            end = boot() + order["seconds"]
            while (begun := boot()) < end:
                await call()
                took.append(boot() - begun)
                await asyncio.sleep(HOLD)
            line.say(took=took)


def _work_in_threads(line: Line, waiting: BlockingWaiting, place: Place) -> None:
    with waiting.open(place) as grab_for:
        grabs = [grab_for(number) for number in range(waiting.waiters)]
        line.say(ready=True)
        while order := line.hear():
            wait_for(order["at"])
            turns: list[Any] = []
            end = boot() + order["seconds"]
            each = (_blocking_turns(grab, end, number, turns) for number, grab in enumerate(grabs))
            _in_threads(list(each))
            line.say(turns=turns)


def _blocking_turns(
    grab: BlockingGrab, end: float, number: int, turns: list[Any]
) -> Callable[[], None]:
    def run() -> None:
        while (asked := boot()) < end:
            release = grab()
            got = boot()
            time.sleep(HOLD)
            left = boot()
            release()
            turns.append((asked, got, left, number))
            time.sleep(PAUSE)

    return run


def _in_threads(bodies: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
