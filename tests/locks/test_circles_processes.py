"""Processes that wait for each other, on real stores: one of each circle is told, the others go on.

Run as a program it is one of those processes: `URL WORLD HOLDS WANTS`.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0

CIRCLES = ("de", "abc")
"""Each holds its letter and wants the next one's, the last the first's."""


# -- one process ------------------------------------------------------------------------------------


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


async def in_loop(url: str, holds: str, wants: str) -> None:
    async with dibs.connect(url) as client, client.lock(holds, label=holds):
        say("holds")
        await asyncio.to_thread(sys.stdin.readline)
        try:
            async with client.lock(wants, wait=PATIENCE) as lease:
                say("got", token=lease.token)
        except dibs.Deadlock as error:
            say("deadlock", told=str(error))


def in_thread(url: str, holds: str, wants: str) -> None:
    with dibs.sync.connect(url) as client, client.lock(holds, label=holds):
        say("holds")
        sys.stdin.readline()
        try:
            with client.lock(wants, wait=PATIENCE) as lease:
                say("got", token=lease.token)
        except dibs.Deadlock as error:
            say("deadlock", told=str(error))


# -- all of them ------------------------------------------------------------------------------------


class Process:
    """One of them, as the test sees it."""

    def __init__(self, url: str, world: str, holds: str, wants: str) -> None:
        self.holds = holds
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, world, holds, wants],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.holds} ended with {self._process.wait()}"
        said: dict[str, Any] = json.loads(line)
        return said

    def go(self) -> None:
        """Let it wait for what it wants."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def start(url: str, circle: str) -> list[Process]:
    """Each in a process of its own, in both worlds by turns."""
    wanted = circle[1:] + circle[0]
    return [
        Process(url, ("loop", "thread")[number % 2], holds, wants)
        for number, (holds, wants) in enumerate(zip(circle, wanted, strict=True))
    ]


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])
def test_one_of_each_circle_gives_way(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fixtures = {"redis": "redis_url", "postgresql": "postgres_url"}
    url = f"sqlite:///{tmp_path}/leases.db"
    if store in fixtures:
        url = request.getfixturevalue(fixtures[store])
    with dibs.sync.connect(url) as client:
        assert not list(client.list())  # and the store's tables are there before all come at once
        circles = {circle: start(url, circle) for circle in CIRCLES}
        everybody = [process for circle in circles.values() for process in circle]
        try:
            for process in everybody:
                assert process.hears() == {"what": "holds"}
            for process in everybody:
                process.go()
            for circle, processes in circles.items():
                one_was_told(circle, [process.hears() for process in processes])
        finally:
            for process in everybody:
                process.end()


def one_was_told(circle: str, heard: list[dict[str, Any]]) -> None:
    (told,) = [each["told"] for each in heard if each["what"] == "deadlock"]
    assert [each["what"] for each in heard].count("got") == len(circle) - 1
    for holds, wants in zip(circle, circle[1:] + circle[0], strict=True):
        assert f"/{holds} holds {holds} and waits for {wants}" in told


if __name__ == "__main__":
    _, _url, _world, _holds, _wants = sys.argv
    if _world == "loop":
        asyncio.run(in_loop(_url, _holds, _wants))
    else:
        in_thread(_url, _holds, _wants)
