"""Two servers of one service, a way to each that can be made to fail, a balancer before both, and faults."""

import random
import threading
from asyncio import Protocol
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from dibs.testing import FaultProxy
from dibs.testing.recorder import Recorder
from tests.server.torture import bugs
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.ports import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.http.processes import DibsServer

CUT_AFTER = (1, 200)
"""Bytes of a message after which a connection is reset: within its head, at most."""

LATE = (0.0, 0.4)
"""Seconds by which pieces are late."""

DRIBBLE = 500.0
"""Bytes a second of a way that dribbles: a few at a time."""

type Fault = Callable[[FaultProxy, random.Random], None]

FAULTS: dict[str, Fault] = {
    "connections cut": lambda way, _: way.cut(),
    "cut in answers": lambda way, draw: way.reset_after(draw.randint(*CUT_AFTER), times=8),
    "cut in requests": lambda way, draw: way.reset_after(
        draw.randint(*CUT_AFTER), "to_server", times=8
    ),
    "black hole": lambda way, _: way.hang(),
    "answers lost": lambda way, _: way.drop_replies(),
    "answers late": lambda way, draw: way.delay(draw.uniform(*LATE), draw.uniform(*LATE)),
    "requests late": lambda way, draw: way.delay(
        draw.uniform(*LATE), draw.uniform(*LATE), "to_server"
    ),
    "dribble": lambda way, _: way.throttle(DRIBBLE),
    "refused": lambda way, _: way.refuse(),
}
"""Faults of a way, which last until it is healed."""


class Balancer(FaultProxy):
    """Spreads connections, each by lot, over the ways to the servers, also to those that are down."""

    def __init__(self, ways: Sequence[FaultProxy], seed: int) -> None:
        self.ways = tuple(ways)
        self._draw = random.Random(seed)
        super().__init__(HOST, ways[0].port, listen=free_port())

    def _accept(self) -> Protocol:
        way = self._draw.choice(self.ways)
        self._upstream = (way.host, way.port)
        return super()._accept()


@dataclass(frozen=True)
class Site:
    servers: Sequence[DibsServer]
    balancer: Balancer

    @property
    def url(self) -> str:
        return f"http://{self.servers[0].key}@{HOST}:{self.balancer.port}"


type StoreName = Literal["sqlite", "redis", "postgres"]


@contextmanager
def running(folder: Path, store: StoreName, seed: int, bug: str = "") -> Generator[Site]:
    with ExitStack() as stack:
        url = started(stack, folder, store)
        program = (bugs.__file__, bug) if bug else ("-m", "dibs")
        servers: list[DibsServer] = []
        for _ in range(2):
            key = servers[0].key if servers else ""
            server = DibsServer(folder / "servers", url, key, program=program)
            servers.append(stack.enter_context(server))
        ports = [(each.port, free_port()) for each in servers]  # such as nobody draws meanwhile
        ways = [stack.enter_context(FaultProxy(HOST, at, listen=new)) for at, new in ports]
        yield Site(servers, stack.enter_context(Balancer(ways, seed)))


def started(stack: ExitStack, folder: Path, store: StoreName) -> str:
    """Start a store: the URL for leases."""
    if store == "sqlite":
        return f"sqlite:///{folder / 'leases.db'}"
    if store == "redis":
        return stack.enter_context(RedisServer(folder / "redis")).url
    server = PostgresServer(folder / "postgres", options=NO_POWER_CUT)
    return stack.enter_context(server).new_database()


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


class Storm:
    """A thread that strikes the servers, and one for each way and the balancer; it counts."""

    def __init__(self, site: Site, ttl: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._site, self._ttl = site, ttl
        self._of_servers = random.Random(seed)
        self._strikes: list[Callable[[], None]] = [self._strike_server]
        ways = [(site.balancer, BALANCER_GAPS), *((way, WAY_GAPS) for way in site.balancer.ways)]
        for number, (way, gaps) in enumerate(ways, seed + 1):
            self._strikes.append(partial(self._strike_way, way, gaps, random.Random(number)))
        self._over = threading.Event()

    @contextmanager
    def raging(self, recorder: Recorder) -> Generator[None]:
        """Strike until the block ends; then everything is well again. Raises what ended a thread."""
        self._recorder = recorder
        self._over.clear()
        with ThreadPoolExecutor() as pool:
            threads = [pool.submit(self._repeat, strike) for strike in self._strikes]
            try:
                yield
            finally:
                self._over.set()
        for thread in threads:
            thread.result()
        recorder.disturbed(0)

    def _repeat(self, strike: Callable[[], None]) -> None:
        while not self._over.is_set():
            strike()

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
                self._over.wait(draw.uniform(*DOWN))
                servers[each].start()
        self._recorder.disturbed(0)

    def _strike_way(self, way: FaultProxy, gaps: tuple[float, float], draw: random.Random) -> None:
        if self._over.wait(draw.uniform(*gaps)):
            return
        kind = draw.choice([*FAULTS])
        FAULTS[kind](way, draw)
        self._count(kind)
        self._over.wait(draw.uniform(*AILING) * self._ttl)
        way.heal()
        self._recorder.disturbed(0)
