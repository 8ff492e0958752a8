"""The demo itself: a server, the workers that use it, one of whom is killed now and then."""

import asyncio
import signal
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple

from dibs.cli.demo.crew import Crew, Dead
from dibs.cli.demo.roles import DIRECTORIES, PLANNER, PRINTER, workers
from dibs.cli.demo.story import Story, process_of
from dibs.model import Inspect, Status
from dibs.server.config import ServerConfig
from dibs.server.principal import Scope
from dibs.server.serve import Server

KILLED_EVERY = 15.0
"""Seconds between two deaths; the first comes a little sooner."""

REPLACED_AFTER = 8.0
"""So long nobody takes the place of one that was killed, in seconds: its lease is to be seen running out."""

SUMMED_UP_EVERY = 20.0

GLANCE = 0.5
"""Seconds between two looks at what is due."""

KEY_LASTS = 86400.0
"""The keys of a demo whose folder is kept end some time, in seconds."""

VICTIMS = (b"lock:" + PRINTER.encode(), b"leader:" + PLANNER.encode())
"""Of these in turn the holder is killed."""

EVENTS = 1000
"""So many at most are read at a time."""


class Opened(NamedTuple):
    """What whoever watches has to know."""

    url: str
    sign_in_url: str
    """Good once, for the dashboard."""
    key: str
    """An administrator's."""
    workers: int
    processes: int


type Tell = Callable[[str], None]


class Show:
    """One demo, from its start to its end."""

    def __init__(self, config: ServerConfig, number: int, tell: Tell) -> None:
        self._number = number
        self._tell = tell
        self._server = Server(config)
        self._story = Story()
        self._stopping = asyncio.Event()
        self._due: list[tuple[float, list[str]]] = []
        """Workers that are to come back, and when."""

    async def run(self, opened: Callable[[Opened], None], lasts: float | None) -> None:
        """Play until a signal comes, or for so long, in seconds; nothing is left running."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        await self._server.start()
        serving = asyncio.create_task(self._server.run())
        try:
            key, theirs = await self._keys()
            host = self._server.url.removeprefix("http://")
            with Crew(f"http://{theirs}@{host}", workers(self._number)) as crew:
                opened(self._opened(key, len(crew.processes)))
                if lasts is not None:
                    loop.call_later(lasts, self._stopping.set)
                await self._play(crew)
        finally:
            self._server.stop()
            await serving
        self._tell(self._story.closed())

    def _opened(self, key: str, processes: int) -> Opened:
        server = self._server
        return Opened(server.url, server.sign_in_url or server.url, key, self._number, processes)

    async def _keys(self) -> tuple[str, str]:
        """An administrator's key, and the workers' own, which is good for what they do."""
        keys = self._server.service.keys
        theirs = await keys.create(
            "demo workers", {Scope.ACQUIRE}, DIRECTORIES, expires_in=KEY_LASTS
        )
        if self._server.first_key:
            return self._server.first_key, theirs[1]
        again = await keys.create("demo", {Scope.ADMIN}, (), expires_in=KEY_LASTS)
        return again[1], theirs[1]

    async def _play(self, crew: Crew) -> None:
        """Tell what happens, and see to it that something does."""
        loop, ring = asyncio.get_running_loop(), self._server.service.observatory.ring
        now = loop.time()
        kill_at, sum_up_at, read = now + KILLED_EVERY / 2, now + SUMMED_UP_EVERY, ring.last
        victims = cycle(VICTIMS)
        while not self._stopping.is_set():
            events = ring.after(read, EVENTS)
            read += len(events)
            for event in events:
                if told := self._story.heard(event):
                    self._tell(told)
            self._replace(crew, now := loop.time())
            if now >= kill_at and await self._kill(crew, next(victims)):
                kill_at = now + KILLED_EVERY
            if now >= sum_up_at:
                self._tell(self._story.summed_up(SUMMED_UP_EVERY))
                sum_up_at = now + SUMMED_UP_EVERY
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(GLANCE):
                await self._stopping.wait()
        except TimeoutError:
            pass  # on with it

    async def _kill(self, crew: Crew, key: bytes) -> bool:
        """Kill whoever holds it; False if nobody does whom we could kill."""
        answer = await self._server.service.runtime.call(Inspect(key))
        status = answer.reply
        for holder in status.holders if isinstance(status, Status) else ():
            if dead := crew.kill(process_of(holder.owner)):
                self._tell(self._story.killed(key, holder))
                self._come_back(dead)
                return True
        return False

    def _replace(self, crew: Crew, now: float) -> None:
        """Start those anew whose time has come, or who have ended by themselves."""
        for dead in crew.ended():
            self._tell(f"process {dead.pid} ended by itself, with {', '.join(dead.workers)}")
            self._come_back(dead)
        for at, those in list(self._due):
            if now >= at:
                self._due.remove((at, those))
                crew.start(those)

    def _come_back(self, dead: Dead) -> None:
        """A while from now others take their place."""
        at = asyncio.get_running_loop().time() + REPLACED_AFTER
        self._due.append((at, dead.workers))
