"""A connection to the database, through libpq's asynchronous calls, and what a session needs on it.

psycopg opens it: addresses, TLS, authentication and time-outs are its business. From then on our few
statements go straight through libpq, for a third of what a cursor costs
(`docs/adr/0007-postgres-through-libpq.md`). Event loops and threads wait in their own ways (`aio.py`,
`threads.py`); over a thread's connection none of the coroutines here ever suspends.
"""

import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from dibs.clock import Clock
from dibs.errors import DibsError
from dibs.stores.postgres import schema
from dibs.stores.postgres.errors import (
    SqlError,
    cut_off,
    explain,
    is_of_the_connection,
    is_of_the_schema,
    is_of_unknown_outcome,
    is_worth_another_try,
    no_answer,
    sql_error,
    standby,
)
from dibs.stores.postgres.schema import Rows
from dibs.stores.postgres.url import Address

log: logging.Logger = logging.getLogger("dibs")

TIMEOUT = 10.0
"""Seconds that the server has to answer a call whose caller sets no limit."""


class Site:
    """The address of a database, and what is known about it. Nothing here needs a lock."""

    __slots__ = ("address", "clock", "has_schema", "identity", "is_pooled", "notifies", "work")

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.address: Address = address
        self.clock: Clock | None = clock
        """Replaces the database's clock, in tests."""
        self.has_schema: bool = False
        """The schema is there, in a format that we read."""
        self.identity: tuple[str, str] | None = None
        """Which database it is, once that was asked; another server may answer by now."""
        self.is_pooled: bool = address.pooler == "yes"
        """Something in between may give each transaction another server connection."""
        self.notifies: bool = address.pooler != "yes"
        """Notifications reach us."""
        self.work: int = 0
        """Commands since the last sweep."""

    @property
    def place(self) -> str:
        """Host, port and database, for messages."""
        return self.address.place

    def time(self) -> tuple[float | None, int | None]:
        """The time for the ledger to go by: None if the database reads its own clock."""
        clock = self.clock
        return (None, None) if clock is None else (clock.now(), clock.stamp())


# ---- statements and their rows --------------------------------------------------------------------

_TEXT = 25
"""PostgreSQL's number of the type text."""

type Values = Sequence[str | None]


class Statement:
    """One statement, and the name under which a server keeps it ready. It says what each `%s` is."""

    __slots__ = ("name", "sql", "text")

    def __init__(self, name: str, text: str) -> None:
        first, *others = text.split("%s")
        numbers = count(1)
        self.text: str = first + "".join(f"${next(numbers)}{part}" for part in others)
        self.name: bytes = name.encode()
        self.sql: bytes = self.text.encode()


def dump(values: Values) -> list[bytes | None]:
    """Values as libpq sends them. None may contain a NUL."""
    return [None if value is None else value.encode() for value in values]


def load(result: PGresult) -> Rows:
    """The rows of an answer."""
    if result.ntuples == 1 and result.nfields == 1 and result.ftype(0) == _TEXT:
        value = result.get_value(0, 0)  # as most answers are: a sixth of what is below
        return [(None if value is None else value.decode(),)]
    transformer = Transformer()
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


# ---- one connection -------------------------------------------------------------------------------

type Answer = Sequence[PGresult]
type Send = Callable[[], None]


class Wire(ABC):
    """Sends statements and receives answers. Subclasses decide how to wait in between.

    After a failure, or if the caller stops waiting in the middle of a call, it is cut: an old answer
    is never taken for a new one.
    """

    def __init__(self, pgconn: PGconn) -> None:
        pgconn.nonblocking = 1
        self.pgconn = pgconn
        self.fd: int = pgconn.socket
        self.is_cut: bool = False
        self._prepared: set[bytes] = set()
        self._parts: list[PGresult] = []

    async def ask(self, statement: Statement, values: Values, timeout: float | None) -> Rows:
        """The rows of one statement, in one round trip.

        Raises `SqlError`; `psycopg.Error` when the connection broke; `TimeoutError` when no answer
        came within `timeout`. It is cut then, and also when the caller is cancelled or interrupted.
        """
        return await self._rows(lambda: self.send(statement, values), timeout)

    async def run(self, script: str, timeout: float | None = TIMEOUT) -> Rows:
        """The rows of the last of several statements, which take no values. Raises like `ask`."""
        return await self._rows(lambda: self.pgconn.send_query(script.encode()), timeout)

    async def prepare(self, statement: Statement, timeout: float | None) -> None:
        """Have the server keep a statement ready. Raises like `ask`."""
        await self._rows(lambda: self.pgconn.send_prepare(statement.name, statement.sql), timeout)
        self._prepared.add(statement.name)

    async def _rows(self, send: Send, timeout: float | None) -> Rows:
        try:
            answer = await self.exchange(send, timeout)
        except BaseException:
            self.cut()  # half-way: what comes next would be the answer to this
            raise
        return rows_of(answer)

    @abstractmethod
    async def exchange(self, send: Send, timeout: float | None) -> Answer:
        """Send, and wait for the whole answer."""

    @property
    def is_sound(self) -> bool:
        """It can be used, as far as is known without asking."""
        return not self.is_cut

    def cut(self) -> None:
        """Say goodbye without waiting, and never use it again."""
        if not self.is_cut:
            self.is_cut = True
            self.pgconn.finish()

    def cut_in_child(self) -> None:
        """After a fork: close our copy of the socket without a word to the server."""
        if not self.is_cut:
            self.is_cut = True
            os.close(self.fd)

    def send(self, statement: Statement, values: Values) -> None:
        """Begin a call."""
        if statement.name in self._prepared:
            self.pgconn.send_query_prepared(statement.name, dump(values))
        else:
            self.pgconn.send_query_params(statement.sql, dump(values))

    def flush(self) -> bool:
        """Send what is left; returns whether that is all."""
        return self.pgconn.flush() == 0

    def receive(self) -> Answer | None:
        """Take in what has come; the answer once it is complete, and an empty one if none is due."""
        self.pgconn.consume_input()
        return self.received()

    def received(self) -> Answer | None:
        """The same, of what was taken in already."""
        pgconn = self.pgconn
        while not pgconn.is_busy():
            part = pgconn.get_result()
            if part is None:
                answer, self._parts = self._parts, []
                return answer
            self._parts.append(part)
        return None

    @abstractmethod
    async def next_notifications(self, timeout: float) -> list[str]:
        """Wait for the payloads of notifications; none at the timeout."""

    def payloads(self) -> list[str]:
        """The payloads of the notifications that have arrived."""
        found = []
        while (note := self.pgconn.notifies()) is not None:
            found.append(note.extra.decode("utf-8", "replace"))
        return found


def rows_of(answer: Answer) -> Rows:
    """The rows of the last part of an answer. Raises `SqlError` if any part is an error."""
    rows: Rows = []
    for part in answer:
        if part.status == ExecStatus.TUPLES_OK:
            rows = load(part)
        elif part.status not in (ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
            raise sql_error(part)
    return rows


# ---- a session: connections that are made ready ---------------------------------------------------

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
        self.site: Site = site
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
            with dibs_errors(self.site, TIMEOUT):
                await self._make_ready(wire)
        except BaseException:
            wire.cut()
            raise
        self.wire = wire
        return wire

    async def _make_ready(self, wire: W) -> None:
        site = self.site
        await greet(wire, site, TIMEOUT)
        if not site.has_schema:
            await schema.ensure(wire.run, site.place, may_migrate=site.address.may_migrate)
            site.has_schema = True
        if not site.is_pooled:
            for statement in self._keeps:
                await wire.prepare(statement, TIMEOUT)
        if self._after is not None:
            await self._after(wire)

    async def ask(
        self, statement: Statement, values: Values, timeout: float | None = TIMEOUT
    ) -> Rows:
        """The rows of a statement. Tried once more if nothing was done and that may help.

        Raises our own errors.
        """
        try:
            return await self._ask(statement, values, timeout)
        except SqlError as error:
            if is_of_unknown_outcome(error):
                self.cut()
                raise explain(error, self.site.place) from None
            if is_of_the_connection(error) or is_of_the_schema(error):
                self.cut()
                self.site.has_schema = False
            elif not is_worth_another_try(error):
                raise explain(error, self.site.place) from None
        try:
            return await self._ask(statement, values, timeout)
        except SqlError as error:
            raise explain(error, self.site.place) from None

    async def _ask(self, statement: Statement, values: Values, timeout: float | None) -> Rows:
        wire = await self.connected()
        with dibs_errors(self.site, timeout or 0.0, sql=False):
            return await wire.ask(statement, values, timeout)

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
def dibs_errors(site: Site, timeout: float, *, sql: bool = True) -> Iterator[None]:
    """Raise our errors instead of the driver's and the system's."""
    try:
        yield
    except DibsError:
        raise  # some are OSErrors too
    except TimeoutError as error:
        raise no_answer(site.place, timeout) from error
    except (psycopg.Error, OSError) as error:
        raise cut_off(error, site.place) from error
    except SqlError as error:
        if not sql:
            raise
        raise explain(error, site.place) from None


_DIRECT, _POOLED = 0, -1
"""Instead of a process number: the connection is direct in any case, or in none."""

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


async def greet(wire: Wire, site: Site, timeout: float) -> None:
    """Learn whether the server itself answers, and make its session fit.

    A pooler invents the process number that it tells a client, so the server's own is another one.
    What is set for a session would then be set for strangers, so nothing is.
    Raises `BackendUnavailable` for a server that only reads.
    """
    pid = {"no": _DIRECT, "yes": _POOLED}.get(site.address.pooler, wire.pgconn.backend_pid)
    [(is_direct, is_read_only, *_)] = await wire.ask(GREETING, [str(pid)], timeout)
    if is_read_only:
        raise standby(site.place)
    if not is_direct:
        site.is_pooled = True


# ---- listening ------------------------------------------------------------------------------------

TEST = "dibs test"
"""The payload of a test notification."""

SOON = 1.0
"""Seconds after which a test notification that has not arrived never will."""

_NOTIFY = Statement("dibs_notify", "SELECT pg_notify(%s, %s)")


def new_inbox() -> str:
    """A channel that nobody can guess: anybody who knows its name could notify it."""
    return f"dibs_{secrets.token_hex(16)}"


async def listen[W: Wire](wire: W, inbox: str, site: Site, connect: Connect[W]) -> bool:
    """Listen, and return whether notifications come through.

    A transaction pooler lends us a server connection for one statement at a time: it takes the
    LISTEN, and what the server sends later is lost on the way. So behind a pooler of any kind
    another connection sends a test, while this one is idle.
    """
    await wire.run(f'LISTEN "{inbox}"', TIMEOUT)
    if not site.is_pooled:
        return True
    other = Session(site, connect)
    try:
        await other.ask(_NOTIFY, [inbox, TEST])
    finally:
        other.cut()
    if TEST in await wire.next_notifications(SOON):
        return True
    await wire.run(f'UNLISTEN "{inbox}"', TIMEOUT)
    if site.notifies:
        site.notifies = False
        log.warning(
            "%s is behind a transaction pooler, which passes no notifications: waiters poll every "
            "few hundredths of a second. A URL of the server itself is faster",
            site.place,
        )
    return False
