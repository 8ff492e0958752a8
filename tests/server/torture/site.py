"""Two servers of one service, a way to each that can be made to fail, and a balancer before both."""

import random
from asyncio import Protocol
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from dibs.testing import FaultProxy
from tests.server.torture import bugs
from tests.servers.certificates import key_of, self_signed
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.ports import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.http.processes import DibsServer

IN_VAIN = 200
"""Bytes of an answer after which a connection is reset: its head, at most."""

DRIBBLE = 500.0
"""Bytes a second of a way that dribbles: a few at a time."""


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


LATE = (0.0, 0.4)
"""Seconds by which pieces are late."""

FAULTS: dict[str, Callable[[FaultProxy, random.Random], None]] = {
    "connections cut": lambda way, draw: way.cut(),
    "cut in answers": lambda way, draw: way.reset_after(draw.randint(1, IN_VAIN), times=8),
    "cut in requests": lambda way, draw: way.reset_after(
        draw.randint(1, IN_VAIN), "to_server", times=8
    ),
    "black hole": lambda way, draw: way.hang(),
    "answers lost": lambda way, draw: way.drop_replies(),
    "answers late": lambda way, draw: way.delay(draw.uniform(*LATE), draw.uniform(*LATE)),
    "requests late": lambda way, draw: way.delay(
        draw.uniform(*LATE), draw.uniform(*LATE), "to_server"
    ),
    "dribble": lambda way, draw: way.throttle(DRIBBLE),
    "refused": lambda way, draw: way.refuse(),
}
"""Faults of a way, which last until it is healed."""

type StoreName = Literal["redis", "postgres", "two redis"]
"""With two of them, everything moves to and fro between them: see `moves`."""

PLACES = ("one", "two")
"""The placements of a service with two stores."""


class Site:
    """Servers, ways and balancer, while they run."""

    def __init__(
        self, servers: list[DibsServer], balancer: Balancer, certificate: Path | None
    ) -> None:
        self.servers = servers
        self.balancer = balancer
        scheme, trust = ("http", "") if certificate is None else ("https", f"?cafile={certificate}")
        self.url = f"{scheme}://{servers[0].key}@{HOST}:{balancer.port}{trust}"

    @property
    def ways(self) -> tuple[FaultProxy, ...]:
        return self.balancer.ways


@contextmanager
def running(
    folder: Path, store: StoreName, seed: int, *, tls: bool = False, bug: str = ""
) -> Generator[Site]:
    with ExitStack() as stack:
        placements: tuple[str | Path, ...] = ()
        if store == "two redis":
            url, placements = "", ("--config", _placements(stack, folder))
        else:
            url = _begun(stack, folder, store)
        certificate = self_signed(folder / "tls" / "server.pem") if tls else None
        options: list[str | Path] = [*placements]
        if certificate is not None:
            options += ["--tls-cert", certificate, "--tls-key", key_of(certificate)]
        program = (bugs.__file__, bug) if bug else ("-m", "dibs")
        servers: list[DibsServer] = []
        for _ in range(2):
            key = servers[0].key if servers else ""
            server = DibsServer(folder / "servers", url, key, options=options, program=program)
            servers.append(stack.enter_context(server))
        ports = [(each.port, free_port()) for each in servers]  # such as nobody draws meanwhile
        ways = [stack.enter_context(FaultProxy(HOST, at, listen=new)) for at, new in ports]
        balancer = stack.enter_context(Balancer(ways, seed))
        yield Site(servers, balancer, certificate)


def _placements(stack: ExitStack, folder: Path) -> Path:
    """The settings of a service over two Redis, with its records in SQLite."""
    lines = [f"records = 'sqlite:///{folder / 'records.db'}'", "placement_fresh = 0.5"]
    for name in PLACES:
        url = stack.enter_context(RedisServer(folder / name)).url
        lines += ["[[placement]]", f"name = '{name}'", f"url = '{url}'"]
    settings = folder / "dibs.toml"
    settings.write_text("\n".join(lines))
    return settings


def _begun(stack: ExitStack, folder: Path, store: StoreName) -> str:
    if store == "redis":
        redis = RedisServer(folder / "redis")
        stack.enter_context(redis)
        return redis.url
    postgres = PostgresServer(folder / "postgres", options=NO_POWER_CUT)
    stack.enter_context(postgres)
    return postgres.new_database()
