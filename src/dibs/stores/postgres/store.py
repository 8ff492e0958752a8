"""The store: a URL, and what it can promise."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from psycopg import AsyncConnection, Connection

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores import port
from dibs.stores.port import step
from dibs.stores.postgres import schema
from dibs.stores.postgres.aio import AsyncPostgresConnection
from dibs.stores.postgres.connection import TIMEOUT, Site, dibs_errors
from dibs.stores.postgres.errors import RIGHTS
from dibs.stores.postgres.schema import Migration, Run
from dibs.stores.postgres.threads import BlockingPostgresConnection, connect_thread
from dibs.stores.postgres.transaction import WithinConnection
from dibs.stores.postgres.url import Address


class PostgresStore(port.Store):
    """Leases in schema `dibs` of a PostgreSQL database, shared by all who can reach it.

    `stores/postgres/url.py` says which URLs there are; `clock` stands in for the database's own, in
    tests. An event loop has two connections, one of them only listens; threads have one that renews and
    listens for all of them, and as many as call at the same time, up to `connections`.
    """

    connections: int | None = 8
    """More calls at a time than this only stand in each other's way there, and servers have few."""

    capabilities: Capabilities = Capabilities(
        scope="cluster",
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        address = Address(url)
        self.url: str = address.shown
        self._site = Site(address, clock)

    def async_connection(self) -> port.AsyncConnection:
        return AsyncPostgresConnection(self._site)

    def blocking_connection(self) -> port.BlockingConnection:
        return BlockingPostgresConnection(self._site)

    def within(self, connection: Connection[Any] | AsyncConnection[Any]) -> WithinConnection:
        """Apply in the transaction that the caller has begun on a connection of psycopg.

        What is granted there stands once that commits; others who want the same keys meanwhile are answered
        `Failed("busy")`. Its `open` makes sure that the connection leads to our database.
        """
        return WithinConnection(self._site, connection)

    def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Bring the schema up to date; returns what was applied, or, as a dry run, what would be. Blocks."""

        async def bring(run: Run) -> Sequence[Migration]:
            missing = await schema.missing(run, self._site.place)
            return missing if dry_run or not missing else await schema.upgrade(run)

        return step(self._connected(bring))

    def may_migrate(self) -> bool:
        """Whether this role could. Blocks."""
        return step(self._connected(schema.may_migrate))

    async def _connected[T](self, task: Callable[[Run], Coroutine[Any, Any, T]]) -> T:
        """Do it on a connection of its own."""
        wire = await connect_thread(self._site)
        try:
            with dibs_errors(self._site, TIMEOUT):
                return await task(wire.run)
        finally:
            wire.cut()

    def grants(self, role: str) -> Sequence[str]:
        """What to execute, once the schema is there, so that another role may use the leases.

        The last is for tables of later releases, and holds for the role that executes it.
        """
        later = (
            "ALTER DEFAULT PRIVILEGES IN SCHEMA dibs "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}"
        )
        return [grant.format(role=role) for grant in (*RIGHTS, later)]
