"""A backend's connection: made when it is needed, thrown away after every doubt, then made anew.

One text for both worlds: over a `ThreadWire` none of these coroutines ever suspends.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import psycopg

from dibs.errors import DibsError
from dibs.stores.postgres import schema
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Rows, Statement, Values
from dibs.stores.postgres.trouble import (
    SqlError,
    cut_off,
    explain,
    is_of_the_connection,
    is_of_the_schema,
    is_of_unknown_outcome,
    is_worth_another_try,
    no_answer,
    standby,
)
from dibs.stores.postgres.wire import Wire

PATIENCE = 10.0
"""Seconds that the server has for an answer that nobody else sets a limit for."""

type Connect[W: Wire] = Callable[[Site], Awaitable[W]]


class Session[W: Wire]:
    """One connection at a time, ready for use."""

    def __init__(
        self,
        site: Site,
        connect: Connect[W],
        keeps: tuple[Statement, ...] = (),
        after: Callable[[W], Awaitable[None]] | None = None,
    ) -> None:
        self.site = site
        self.wire: W | None = None
        self._connect = connect
        self._keeps = keeps
        """What the server is to keep ready."""
        self._after = after
        """What else a new connection is for."""

    async def connected(self) -> W:
        """The connection; another one if the last is no more."""
        wire = self.wire
        if wire is not None and wire.is_sound:
            return wire
        self.wire = None
        wire = await self._connect(self.site)
        try:
            with telling(self.site, PATIENCE):
                await self._make_ready(wire)
        except BaseException:
            wire.cut()
            raise
        self.wire = wire
        return wire

    async def _make_ready(self, wire: W) -> None:
        site = self.site
        await greet(wire, site, PATIENCE)
        if not site.has_schema:
            await schema.ensure(wire, site, PATIENCE)
            site.has_schema = True
        if not site.is_pooled:
            for statement in self._keeps:
                await wire.prepare(statement, PATIENCE)
        if self._after is not None:
            await self._after(wire)

    async def ask(
        self,
        statement: Statement,
        values: Values,
        patience: float | None = PATIENCE,
        expects: Callable[[SqlError], bool] | None = None,
    ) -> Rows:
        """The rows of a statement. Tried once more where nothing was done and that may help.

        Raises our own errors, but for what the caller `expects`.
        """
        try:
            return await self._ask(statement, values, patience)
        except SqlError as error:
            if expects is not None and expects(error):
                raise
            if is_of_unknown_outcome(error):
                self.cut()
                raise explain(error, self.site.place) from None
            if is_of_the_connection(error) or is_of_the_schema(error):
                self.cut()
                self.site.has_schema = False
            elif not is_worth_another_try(error):
                raise explain(error, self.site.place) from None
        try:
            return await self._ask(statement, values, patience)
        except SqlError as error:
            if expects is not None and expects(error):
                raise
            raise explain(error, self.site.place) from None

    async def _ask(self, statement: Statement, values: Values, patience: float | None) -> Rows:
        wire = await self.connected()
        with telling(self.site, patience or 0.0, sql=False):
            return await wire.ask(statement, values, patience)

    def cut(self) -> None:
        """Disconnect."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.cut()

    def after_fork(self) -> None:
        """In the child: drop the parent's connection without a word."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.cut_in_child()


@contextmanager
def telling(site: Site, patience: float, *, sql: bool = True) -> Iterator[None]:
    """Have callers see our errors, in the stead of the driver's and the system's."""
    try:
        yield
    except DibsError:
        raise  # some are OSErrors too
    except TimeoutError as error:
        raise no_answer(site.place, patience) from error
    except (psycopg.Error, OSError) as error:
        raise cut_off(error, site.place) from error
    except SqlError as error:
        if not sql:
            raise
        raise explain(error, site.place) from None


_DIRECT, _POOLED = 0, -1
"""In the stead of a process number: believe it in any case, or in none."""

GREETING = Statement(
    "dibs_greeting",
    """
    SELECT direct, current_setting('transaction_read_only')::bool,
        (SELECT count(set_config(name, value, false))
            FROM (VALUES
                ('default_transaction_isolation', 'read committed', NULL),
                ('enable_bitmapscan', 'off', NULL),
                ('enable_seqscan', 'off', NULL),
                ('extra_float_digits', '1', NULL),
                ('jit', 'off', NULL),
                ('lock_timeout', '5s', '0'),
                ('plan_cache_mode', 'force_generic_plan', NULL),
                ('search_path', 'pg_catalog, pg_temp', NULL),
                ('statement_timeout', '20s', '0'),
                ('synchronous_commit', 'on', 'off'),
                ('synchronous_commit', 'on', 'local')) AS wanted (name, value, instead_of)
            WHERE direct AND coalesce(current_setting(name) = instead_of, true))
    FROM (SELECT %s::int IN (0, pg_backend_pid()) AS direct) AS found
    """,
)
"""A statement that hangs is ended by the server too, should nobody wait for it any more. A lease that was
granted by a commit in memory only could be granted again after a power cut. And a plan that was made while
the tables were small must do when they are large."""


async def greet(wire: Wire, site: Site, patience: float) -> None:
    """Learn whether the server itself answers, and make its session fit.

    A pooler invents the process number that it tells a client, so the server's own is another one.
    What is set for a session would then be set for strangers, so nothing is.
    Raises `BackendUnavailable` for a server that only reads.
    """
    pid = {"no": _DIRECT, "yes": _POOLED}.get(site.address.pooler, wire.pgconn.backend_pid)
    [(is_direct, is_read_only, *_)] = await wire.ask(GREETING, [str(pid)], patience)
    if is_read_only:
        raise standby(site.place)
    if not is_direct:
        site.is_pooled = True
