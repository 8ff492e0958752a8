"""Renewals at the service while many connections send their requests byte by byte: is a lease lost?

Each lease has a task and a connection of its own, and is renewed as a keeper would, at the shortest ttl that
the service takes. Connections drip from a process of their own: one half their headers, the other a body.
"""

import asyncio
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from secrets import token_urlsafe
from statistics import median, quantiles
from typing import Any

from benchmarks.contestants.service import request
from benchmarks.crew import Crew, Line, wait_for
from benchmarks.crews import Crews, turned
from benchmarks.place import Place
from benchmarks.plan import Plan
from benchmarks.results import Results
from dibs.stores.http.aio import dial
from dibs.stores.http.url import HttpSettings, read_url

SECTION = "renewals under dripping connections"
TTL = 1.0
LEASES = 100
SETTING = f"service, {LEASES} leases of {TTL:g} s"
QUIET, DRIPPING = "nobody drips", "500 connections drip"
DRIPS = {QUIET: 0, DRIPPING: 500}
P50, P99, LOST = "ms, p50", "ms, p99", "lost"
EVERY = 0.1
"""Seconds between two bytes of a connection."""
BODY = 5000
"""Bytes that a body is said to have: more than come."""
HEAD_START = 1.0
"""Seconds in which all connections are made, before renewals are timed."""
ROUND = 2.0
"""The shortest round, in seconds: 600 renewals."""


def measure(plan: Plan, results: Results) -> None:
    """With drips and without, by turns, at one service."""
    names = plan.chosen(SECTION, SETTING, list(DRIPS), QUIET)
    with Crews(results, SECTION, SETTING) as crews:
        for name in names:
            folder = plan.folder_for(f"{SECTION} {name}", "service")
            drips = [{"role": "drip", "folder": folder, "count": DRIPS[name]}]
            renews = {"role": "renew", "folder": folder, "count": LEASES}
            everybody = [renews, *(drips if DRIPS[name] else ())]
            crews.start(name, Crew("benchmarks.dripping:work", everybody))
        crews.get_ready()
        for number in range(plan.rounds + 1):  # the first is to warm up
            for name in turned(names, number):
                answers = crews.round(name, seconds=max(plan.seconds, ROUND))
                if number:
                    _note(results, name, answers)


def _note(results: Results, name: str, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        for unit, value in answer.get("told", {}).items():
            baseline = "" if unit == LOST else QUIET
            results.row(SECTION, SETTING, name, unit, baseline).values.append(value)


# ---- in a worker ----------------------------------------------------------------------------------


def work(line: Line, role: str, folder: str, count: int) -> None:
    """Serve rounds until there are no more."""
    settings = read_url(Place(Path(folder)).server_url)
    asyncio.run(_work(line, settings, role, count))


async def _work(line: Line, settings: HttpSettings, role: str, count: int) -> None:
    line.say(ready=True)
    while order := await asyncio.to_thread(line.hear):
        wait_for(order["at"])
        end = time.monotonic() + HEAD_START + order["seconds"]
        if role == "drip":
            await asyncio.gather(*(_drip(settings, number, end) for number in range(count)))
            line.say()
        else:
            line.say(told=await _renew_all(settings, count, end, order["seconds"]))


async def _renew_all(
    settings: HttpSettings, count: int, end: float, seconds: float
) -> dict[str, float]:
    took: list[float] = []
    renewing = (_renew(settings, number, end, seconds, took) for number in range(count))
    lost = await asyncio.gather(*renewing)
    p99 = quantiles(took, n=100, method="inclusive")[98]
    return {P50: median(took) * 1000, P99: p99 * 1000, LOST: float(sum(lost))}


async def _renew(
    settings: HttpSettings, number: int, end: float, seconds: float, took: list[float]
) -> bool:
    """One lease until then, and how long each renewal took; whether it was lost."""
    name = urlsafe_b64encode(f"dripped-on/{number}-{token_urlsafe(6)}".encode()).decode()
    path, lease = f"/v1/locks/base64:{name.rstrip('=')}", token_urlsafe(18)
    link = await dial(settings)
    held = await link.ask(request(settings, "POST", f"{path}?id={lease}&ttl={TTL:g}"))
    assert held.status == 200, held
    await asyncio.sleep(TTL / 3 * number / LEASES)  # not all at once
    renewal = request(settings, "PATCH", f"{path}?id={lease}&ttl={TTL:g}")
    begins = end - seconds
    lost = False
    while not lost and time.monotonic() < end:
        begun = time.monotonic()
        lost = (await link.ask(renewal)).status != 200
        if begun >= begins:
            took.append(time.monotonic() - begun)
        await asyncio.sleep(max(begun + TTL / 3 - time.monotonic(), 0.0))
    await link.ask(request(settings, "DELETE", f"{path}?id={lease}"))
    link.close()
    return lost


async def _drip(settings: HttpSettings, number: int, end: float) -> None:
    """One connection that never comes to the end of its request."""
    _, writer = await asyncio.open_connection(settings.host, settings.port)
    drops = request(settings, "POST", "/v1/batch", length=BODY)
    if number % 2:
        writer.write(drops)
        drops = b" " * BODY
    for drop in drops:
        if time.monotonic() >= end:
            break
        writer.write(bytes([drop]))
        await asyncio.sleep(EVERY)
    writer.close()
