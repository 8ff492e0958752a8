"""Two servers of one service, a way to each that can be made to fail, and a balancer before both."""

import random
from asyncio import Protocol
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dibs.testing import FaultProxy
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
    """Spreads connections, each by lot, over those ways that it believes to lead to a server."""

    def __init__(self, ways: Sequence[FaultProxy], seed: int) -> None:
        self.ways = tuple(ways)
        self._believed = list(ways)
        self._draw = random.Random(seed)
        super().__init__(HOST, ways[0].port, listen=free_port())

    def avoid(self, way: FaultProxy) -> None:
        """A look has shown that nobody answers there; the last way is never given up."""
        if self._believed != [way]:
            self._believed = [each for each in self._believed if each is not way]

    def believe(self, way: FaultProxy) -> None:
        self._believed = [each for each in self.ways if each is way or each in self._believed]

    def _accept(self) -> Protocol:
        way = self._draw.choice(self._believed)
        self._upstream = (way.host, way.port)
        return super()._accept()


@dataclass(frozen=True)
class Site:
    """Servers, ways and balancer, while they run."""

    servers: Sequence[DibsServer]
    balancer: Balancer

    @property
    def ways(self) -> Sequence[FaultProxy]:
        return self.balancer.ways

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
