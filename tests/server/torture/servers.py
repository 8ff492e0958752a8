"""Two servers of one service over one store, each behind a way of its own, and a balancer before both."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from dibs.testing import FaultProxy
from tests.server.torture.balancer import Balancer
from tests.servers.certificates import key_of, self_signed
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.ports import HOST, free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.http.processes import DibsServer

type StoreName = Literal["redis", "postgres", "two redis"]
"""With two of them, everything moves to and fro between them: see `moves`."""

PLACES = ("one", "two")
"""The placements of a service with two stores."""

BROKEN = Path(__file__).with_name("broken.py")
"""Starts a server with a bug."""


class Site:
    """All of it, while it runs."""

    def __init__(
        self, servers: list[DibsServer], balancer: Balancer, certificate: Path | None
    ) -> None:
        self.servers = servers
        self.balancer = balancer
        scheme, trust = ("http", "") if certificate is None else ("https", f"?cafile={certificate}")
        self.url = f"{scheme}://{servers[0].key}@{HOST}:{balancer.port}{trust}"

    @property
    def ways(self) -> tuple[FaultProxy, ...]:
        """That to each server, in their order."""
        return self.balancer.ways


@contextmanager
def running(
    folder: Path, store: StoreName, seed: int, *, tls: bool = False, bug: str = ""
) -> Generator[Site]:
    """Start all of it, and end all of it."""
    with ExitStack() as stack:
        placements: tuple[str | Path, ...] = ()
        if store == "two redis":
            url, placements = "", ("--config", _placements(stack, folder))
        else:
            url = _begun(stack, folder, store)
        certificate = self_signed(folder / "tls" / "server.pem") if tls else None
        options = (*placements, *(() if certificate is None else _encrypted(certificate)))
        program = (BROKEN, bug) if bug else ("-m", "dibs")
        servers: list[DibsServer] = []
        for _ in range(2):
            key = servers[0].key if servers else ""
            server = DibsServer(folder / "servers", url, key, options=options, program=program)
            servers.append(stack.enter_context(server))
        ports = [(each.port, free_port()) for each in servers]  # such as nobody draws meanwhile
        ways = [stack.enter_context(FaultProxy(HOST, at, listen=new)) for at, new in ports]
        balancer = stack.enter_context(Balancer(ways, seed))
        yield Site(servers, balancer, certificate)


def _encrypted(certificate: Path) -> tuple[str | Path, ...]:
    return "--tls-cert", certificate, "--tls-key", key_of(certificate)


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
    """The URL of a store."""
    if store == "redis":
        redis = RedisServer(folder / "redis")
        stack.enter_context(redis)
        return redis.url
    postgres = PostgresServer(folder / "postgres", options=NO_POWER_CUT)
    stack.enter_context(postgres)
    return postgres.new_database()
