"""A PostgreSQL of its own for a test."""

import contextlib
import os
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.binaries import postgres_program
from tests.servers.ports import HOST
from tests.servers.postgres_files import new_cluster, not_root
from tests.servers.process import ServerProcess, children, until_gone
from tests.servers.server import Server

SUPERUSER = "dibs"


class PostgresServer(Server):
    """A PostgreSQL on a free loopback port, whose files lie in `folder`; anybody may log in as anyone.

    `version` is a major one (`"16"`), or `None` for the first found. `options` are settings as in
    `postgresql.conf`. Unless they say otherwise, what is committed is on disk (`fsync`).
    """

    PORT_IS_TAKEN = "could not bind"

    def __init__(
        self, folder: Path, *, version: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.program = postgres_program(version)
        self.data = folder / "data"
        self.options = dict(options or {})

    @property
    def url(self) -> str:
        """The database `postgres`, as the superuser `dibs`."""
        return self.url_of("postgres")

    def url_of(self, database: str, *, user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A plain connection in autocommit mode, to look behind the scenes."""
        return psycopg.connect(self.url_of(database), autocommit=True, **options)

    def new_database(self) -> str:
        """Make an empty database; its URL."""
        name = f"t_{uuid.uuid4().hex}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop one that `new_database` made, whoever is still connected to it."""
        name = url.rpartition("/")[2]
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())

    def kill(self) -> None:
        """SIGKILL to the postmaster and to all that it started, as a crash of the machine would."""
        self._started.signal(signal.SIGSTOP)  # so that it starts no more, and keeps their ids taken
        killed = children(self.pid) if self.running else []
        self._signal_children(signal.SIGKILL)
        self._started.kill()
        until_gone(killed)  # the next start would find them in its shared memory

    def pause(self) -> None:
        """SIGSTOP to the postmaster and every session: connections stay up and nothing answers."""
        super().pause()
        self._signal_children(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all of them."""
        self._signal_children(signal.SIGCONT)
        super().resume()

    def _signal_children(self, number: int) -> None:
        for pid in children(self.pid) if self.running else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _prepare(self) -> None:
        if not self.data.exists():
            new_cluster(self.program, self.data, superuser=SUPERUSER)

    def _launch(self) -> ServerProcess:
        settings = {
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing outlives a kill
            "log_min_messages": "warning",
            **self.options,
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return ServerProcess(
            not_root([self.program.path, "-D", self.data, *options]),
            log=self.folder / "postgres.log",
            stop_signal=signal.SIGINT,  # a fast shutdown: it does not wait for sessions to end
            end_signal=signal.SIGQUIT,  # an immediate one
        )

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2, autocommit=True) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]).samefile(self.data)
