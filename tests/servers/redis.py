"""A Redis (or Valkey) of its own for a test."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from tests.servers.binaries import Program, redis_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import HOST
from tests.servers.server import Server

type Persistence = Literal["none", "everysec", "always"]

PERSISTENCE: dict[Persistence, list[str]] = {
    "none": ["appendonly no"],
    "everysec": ["appendonly yes", "appendfsync everysec"],
    "always": ["appendonly yes", "appendfsync always"],
}


class RedisServer(Server):
    """A Redis on a free loopback port, whose files lie in `folder`.

    `users` are ACL lines (`"app on >secret ~* &* +@all"`), `extra` further lines of configuration.
    With `tls` the port speaks nothing else, and `certificate` is what clients are to trust. A killed
    server comes back with what its persistence kept: what it had written to its file. `always` writes
    before each answer. `everysec` does so too, except while an fsync is slow: then Redis postpones
    writes, and a kill may lose what it answered in the last second or two.
    """

    PORT_IS_TAKEN = "in use"
    SECOND_PORT = 10_000  # a cluster's bus
    mode: Sequence[str] = ()

    def __init__(
        self,
        folder: Path,
        *,
        persistence: Persistence = "none",
        tls: bool = False,
        unix: bool = False,
        requirepass: str = "",
        users: Sequence[str] = (),
        extra: Sequence[str] = (),
        program: Program | None = None,
    ) -> None:
        super().__init__(folder)
        self.program = program or redis_program(tls=tls)
        self.persistence: Persistence = persistence
        self.tls = tls
        self.unix_path = folder / "redis.sock" if unix else None
        self.requirepass = requirepass
        self.users = tuple(users)
        self.extra = tuple(extra)

    @property
    def url(self) -> str:
        """By TCP, with the password if there is one (and what to trust, if it speaks TLS)."""
        password = f":{quote(self.requirepass, safe='')}@" if self.requirepass else ""
        if self.tls:
            trust = f"?ssl_ca_certs={self.certificate}"
            return f"rediss://{password}localhost:{self.port}/0{trust}"
        return f"redis://{password}{HOST}:{self.port}/0"

    @cached_property
    def certificate(self) -> Path:
        """For `localhost` and 127.0.0.1, signed by itself; its key lies beside it."""
        return self_signed(self.folder / "server.pem")

    def client(self, **options: Any) -> redis.Redis:
        """A plain client, to look behind the scenes."""
        return redis.Redis.from_url(self.url, **options)

    def _command(self) -> list[str | Path]:
        configuration = self.folder / "redis.conf"
        configuration.write_text("".join(f"{line}\n" for line in self._lines()))
        return [self.program.path, configuration, *self.mode]

    def _lines(self) -> list[str]:
        lines = [f"bind {HOST}", f'dir "{self.folder}"', 'save ""', *PERSISTENCE[self.persistence]]
        if self.tls:
            key = key_of(self.certificate)
            lines += ["port 0", f"tls-port {self.port}", "tls-auth-clients no"]
            lines += [f'tls-cert-file "{self.certificate}"', f'tls-key-file "{key}"']
            lines.append(f'tls-ca-cert-file "{self.certificate}"')
        else:
            lines.append(f"port {self.port}")
        lines += [f"user {line}" for line in self.users]
        if self.unix_path is not None:
            lines.append(f'unixsocket "{self.unix_path}"')
        if self.requirepass:
            lines.append(f'requirepass "{self.requirepass}"')
        return [*lines, *self.extra]

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                info = client.info("server")
        except (AuthenticationError, NoPermissionError):
            return True  # it is there, and keeps its default user out
        except RedisError:
            return False
        return bool(info["process_id"] == self.pid)
