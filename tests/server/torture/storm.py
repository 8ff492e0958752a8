"""What strikes servers and the ways to them, while clients work."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from dibs.testing import FaultProxy
from dibs.testing.recorder import Recorder
from tests.server.torture.site import FAULTS, Site

NOTICED = 0.3
"""Seconds after which a balancer sees that a server is dead, and that it is back."""

DOWN = (0.0, 2.0)
"""Seconds for which a dead server stays dead, before it takes its time to start."""

PAUSES = (0.5, 1.0, 3.0)
"""How long a server is stopped, in ttls."""

AILING = (0.02, 1.0)
"""How long a way fails, in ttls."""

SERVER_GAPS, WAY_GAPS, BALANCER_GAPS = (0.3, 5.0), (0.0, 0.5), (1.0, 5.0)
"""Seconds between two faults."""

SERVER_FAULTS = {"server killed": 5, "server paused": 4, "server restarted": 2, "both killed": 1}
"""And how often each of them strikes."""


class _Aim(NamedTuple):
    """What one thread strikes, how often, and by which lots."""

    way: FaultProxy
    gaps: tuple[float, float]
    draw: random.Random


class Storm:
    """A thread that strikes the servers, and one for each way and the balancer; it counts."""

    def __init__(self, site: Site, ttl: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.trouble = ""
        """Why it ended before its time."""
        self._site, self._ttl = site, ttl
        self._of_servers = random.Random(seed)
        gaps = [(site.balancer, BALANCER_GAPS), *((way, WAY_GAPS) for way in site.ways)]
        aims = [_Aim(*each, random.Random(seed + n)) for n, each in enumerate(gaps, 1)]
        self._strikes: list[Callable[[], None]] = [self._strike_server]
        self._strikes += [partial(self._strike_way, aim) for aim in aims]
        self._over = threading.Event()

    @contextmanager
    def raging(self, recorder: Recorder) -> Generator[None]:
        """Strike until the block ends; then everything is well again."""
        self._recorder = recorder
        self._over.clear()
        with ExitStack() as stack:
            stack.callback(recorder.disturbed, 0)
            for strike in self._strikes:
                thread = threading.Thread(target=self._repeat, args=(strike,))
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._over.set)
            yield

    def _repeat(self, strike: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                strike()
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._recorder.disturbed(0)

    def _strike_server(self) -> None:
        draw, servers = self._of_servers, self._site.servers
        if self._over.wait(draw.uniform(*SERVER_GAPS)):
            return
        (kind,) = draw.choices([*SERVER_FAULTS], [*SERVER_FAULTS.values()])
        self._count(kind)
        number = draw.randrange(len(servers))
        if kind == "server paused":
            servers[number].pause()
            self._over.wait(draw.choice(PAUSES) * self._ttl)
            servers[number].resume()
        else:
            struck = range(len(servers)) if kind == "both killed" else [number]
            for each in struck:
                servers[each].stop() if kind == "server restarted" else servers[each].kill()
            for each in struck:
                self._stay_down(each)
        self._recorder.disturbed(0)

    def _stay_down(self, number: int) -> None:
        site, way = self._site, self._site.ways[number]
        self._over.wait(NOTICED)
        site.balancer.avoid(way)
        self._over.wait(self._of_servers.uniform(*DOWN))
        site.servers[number].start()
        self._over.wait(NOTICED)
        site.balancer.believe(way)

    def _strike_way(self, aim: _Aim) -> None:
        way, gaps, draw = aim
        if self._over.wait(draw.uniform(*gaps)):
            return
        kind = draw.choice([*FAULTS])
        FAULTS[kind](way, draw)
        self._count(kind)
        self._over.wait(draw.uniform(*AILING) * self._ttl)
        way.heal()
        self._recorder.disturbed(0)
