"""What strikes servers and the ways to them, while clients are struck by somebody else."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from dibs.testing import FaultProxy
from dibs.testing.recorder import Recorder
from tests.server.torture.balancer import FAULTS
from tests.server.torture.servers import Site

NOTICED = 0.3
"""Seconds after which a balancer sees that a server is dead, and that it is back."""
DOWN = (0.0, 2.0)
"""Seconds for which a dead server stays dead, before it takes its time to start."""
PAUSES = (0.5, 1.0, 3.0)
"""How long a server is stopped, in ttls."""
AILING = (0.02, 1.0)
"""How long a way fails, in ttls."""
SERVER_GAPS = (0.3, 5.0)
WAY_GAPS = (0.0, 0.5)
BALANCER_GAPS = (1.0, 5.0)
"""Seconds between two faults."""

SERVER_FAULTS = {"server killed": 5, "server paused": 4, "server restarted": 2, "both killed": 1}
"""And how often each of them strikes."""
ALL_FAULTS = (*SERVER_FAULTS, *FAULTS)


class _Aim(NamedTuple):
    """What one thread strikes, how often, and by which lots."""

    way: FaultProxy
    gaps: tuple[float, float]
    draw: random.Random


class Storm:
    """A thread that strikes the servers, and one for each way and the balancer; it counts."""

    def __init__(self, site: Site, ttl: float, seed: int, kinds: Collection[str] = ()) -> None:
        """`kinds`: only these faults."""
        self.counts: Counter[str] = Counter()
        self.trouble = ""
        """Why it ended before its time."""
        self._site, self._ttl = site, ttl
        self._kinds = frozenset(kinds or ALL_FAULTS)
        self._of_servers = random.Random(seed)
        self._aims = [_Aim(site.balancer, BALANCER_GAPS, random.Random(seed + 1))]
        for way in site.ways:
            self._aims.append(_Aim(way, WAY_GAPS, random.Random(seed + 1 + len(self._aims))))
        self._over = threading.Event()
        self._strikes: dict[str, Callable[[int], None]] = {
            "server killed": self._kill,
            "server paused": self._pause,
            "server restarted": self._restart,
            "both killed": self._kill_both,
        }

    @contextmanager
    def raging(self, recorder: Recorder) -> Generator[None]:
        """Strike until the block ends; then everything is well again."""
        self._recorder = recorder
        self._over.clear()
        strikes: list[Callable[[], None]] = []
        if self._kinds & SERVER_FAULTS.keys():
            strikes.append(self._strike_server)
        if self._kinds & FAULTS.keys():
            strikes += [partial(self._strike_way, aim) for aim in self._aims]
        threads = [threading.Thread(target=self._repeat, args=(strike,)) for strike in strikes]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            self._disturb()

    def _repeat(self, strike: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                strike()
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _disturb(self) -> None:
        self._recorder.disturbed(0)

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._disturb()

    # -- servers ------------------------------------------------------------------------------------

    def _strike_server(self) -> None:
        draw = self._of_servers
        if self._over.wait(draw.uniform(*SERVER_GAPS)):
            return
        chosen = [kind for kind in SERVER_FAULTS if kind in self._kinds]
        kind = draw.choices(chosen, [SERVER_FAULTS[each] for each in chosen])[0]
        self._count(kind)
        self._strikes[kind](draw.randrange(len(self._site.servers)))
        self._disturb()

    def _kill(self, number: int) -> None:
        self._site.servers[number].kill()
        self._stay_down(number)

    def _kill_both(self, _: int) -> None:
        for server in self._site.servers:
            server.kill()
        for number in range(len(self._site.servers)):
            self._stay_down(number)

    def _stay_down(self, number: int) -> None:
        site, way = self._site, self._site.ways[number]
        self._over.wait(NOTICED)
        site.balancer.avoid(way)
        self._over.wait(self._of_servers.uniform(*DOWN))
        site.servers[number].start()
        self._over.wait(NOTICED)
        site.balancer.believe(way)

    def _pause(self, number: int) -> None:
        server = self._site.servers[number]
        server.pause()
        self._over.wait(self._of_servers.choice(PAUSES) * self._ttl)
        server.resume()

    def _restart(self, number: int) -> None:
        self._site.servers[number].stop()
        self._stay_down(number)

    # -- ways ---------------------------------------------------------------------------------------

    def _strike_way(self, aim: _Aim) -> None:
        way, gaps, draw = aim
        if self._over.wait(draw.uniform(*gaps)):
            return
        kind = draw.choice([kind for kind in FAULTS if kind in self._kinds])
        FAULTS[kind](way, draw)
        self._count(kind)
        self._over.wait(draw.uniform(*AILING) * self._ttl)
        way.heal()
        self._disturb()
