"""A PgBouncer of its own for a test."""

from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.servers.binaries import pgbouncer_program
from tests.servers.ports import HOST
from tests.servers.postgres import SUPERUSER, PostgresServer
from tests.servers.postgres_files import give, not_root
from tests.servers.server import Server


class PgBouncer(Server):
    """A pooler before `server`, on a free loopback port, in transaction mode.

    It lets the superuser and `users` in, without a password.
    """

    PORT_IS_TAKEN = "in use"

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        *,
        pool_size: int = 10,
        users: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self.program = pgbouncer_program()
        self.server = server
        self.pool_size = pool_size
        self.users = (SUPERUSER, *users)

    def url_of(self, database: str, *, user: str = SUPERUSER) -> str:
        """A database of the server's, given by name or by its URL there, through the pooler."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database.rpartition('/')[2]}"

    def _command(self) -> list[str | Path]:
        names = "".join(f'"{user}" ""\n' for user in self.users)
        (self.folder / "users.txt").write_text(names)
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(f"""\
[databases]
* = host={HOST} port={self.server.port}

[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self.folder / "users.txt"}
admin_users = {SUPERUSER}
pool_mode = transaction
default_pool_size = {self.pool_size}
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
""")
        give(self.folder)
        return not_root([self.program.path, configuration])

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url_of("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
