"""What strikes servers and the ways to them, and what moves directories, while clients work."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import httpx2

from dibs.testing import FaultProxy
from dibs.testing.recorder import Recorder
from tests.server.torture.site import FAULTS, PLACES, Site

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
            self._recorder.disturbed(0)

    def _repeat(self, strike: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                strike()
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._recorder.disturbed(0)

    # -- servers ------------------------------------------------------------------------------------

    def _strike_server(self) -> None:
        draw = self._of_servers
        if self._over.wait(draw.uniform(*SERVER_GAPS)):
            return
        chosen = [kind for kind in SERVER_FAULTS if kind in self._kinds]
        kind = draw.choices(chosen, [SERVER_FAULTS[each] for each in chosen])[0]
        self._count(kind)
        number = draw.randrange(len(self._site.servers))
        if kind == "server paused":
            self._pause(number)
        else:
            self._end(
                *(range(len(self._site.servers)) if kind == "both killed" else [number]), kind=kind
            )
        self._recorder.disturbed(0)

    def _end(self, *numbers: int, kind: str) -> None:
        for server in (self._site.servers[number] for number in numbers):
            server.stop() if kind == "server restarted" else server.kill()
        for number in numbers:
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
        self._recorder.disturbed(0)


MOVES_EVERY = 5.0
"""Seconds between two orders, at least: each waits until the move before it is finished."""

DEADLINE = 2.0
"""Seconds for which everything drains before holders are revoked."""

LOOK_EVERY = 0.2


class Moves:
    """A thread that orders moves. `finished` counts them."""

    def __init__(self, site: Site) -> None:
        self.finished = 0
        self._site = site
        self._over = threading.Event()

    @contextmanager
    def going_on(self, recorder: Recorder) -> Generator[None]:
        """Move until the block ends. All of it counts as a disturbance: acquires are kept waiting."""
        self._over.clear()
        thread = threading.Thread(target=self._run, args=(recorder,))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self, recorder: Recorder) -> None:
        for to in itertools.cycle(reversed(PLACES)):
            begun, is_ordered = time.monotonic(), False
            while not self._over.wait(LOOK_EVERY):
                recorder.disturbed(0)
                if not is_ordered:
                    is_ordered = bool(self._ask("PUT", {"to": to, "deadline": DEADLINE}))
                    continue
                seen = self._ask("GET")
                if seen and (seen["place"], seen["to"]) == (to, ""):
                    self.finished += 1
                    break
                # an order that a paused server took may come after those that followed it
                is_ordered = not seen or seen["to"] == to
            if self._over.wait(max(0.0, begun + MOVES_EVERY - time.monotonic())):
                return

    def _ask(self, method: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """An answer of any server that is there; empty if none is, as each is struck now and then."""
        for server in self._site.servers:
            headers = {"authorization": f"Bearer {server.key}"}
            url = f"http://127.0.0.1:{server.port}/v1/move"
            try:
                answer = httpx2.request(method, url, json=body, headers=headers, timeout=2.0)
            except httpx2.HTTPError:
                continue
            if answer.status_code == 200:
                found: dict[str, object] = answer.json()
                return found
        return {}
