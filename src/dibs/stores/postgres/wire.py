"""A connection of libpq's that nobody ever waits for inside of libpq.

psycopg opens it: addresses, TLS, authentication and time-outs are its business. From then on our few
statements go straight through libpq's asynchronous calls, for a third of what a cursor costs
(`docs/adr/0007-postgres-through-libpq.md`).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from dibs.stores.postgres.statements import Rows, Statement, Values, dump, load
from dibs.stores.postgres.trouble import sql_error

type Answer = Sequence[PGresult]
type Send = Callable[[], None]


class Wire(ABC):
    """Sends statements and takes in answers. Who waits in between, and how, is up to its children.

    After a failure, or once somebody stopped waiting in the middle of a call, it is cut: an old
    answer is never taken for a new one.
    """

    def __init__(self, pgconn: PGconn) -> None:
        pgconn.nonblocking = 1
        self.pgconn = pgconn
        self.fd = pgconn.socket
        self.is_cut = False
        self._prepared: set[bytes] = set()
        self._parts: list[PGresult] = []

    async def ask(self, statement: Statement, values: Values, patience: float | None) -> Rows:
        """The rows of one statement, in one round trip.

        Raises `SqlError`; `psycopg.Error` when the connection broke; `TimeoutError` when no answer
        came within `patience`. It is cut then, and also when the caller is cancelled or interrupted.
        """
        try:
            answer = await self.exchange(lambda: self.send(statement, values), patience)
        except BaseException:
            self.cut()  # half-way: what comes next would be the answer to this
            raise
        return rows_of(answer)

    async def run(self, script: str, patience: float | None) -> Rows:
        """The rows of the last of several statements, which take no values. Raises like `ask`."""
        pgconn = self.pgconn
        try:
            answer = await self.exchange(lambda: pgconn.send_query(script.encode()), patience)
        except BaseException:
            self.cut()
            raise
        return rows_of(answer)

    async def prepare(self, statement: Statement, patience: float | None) -> None:
        """Have the server keep a statement ready."""
        pgconn = self.pgconn
        answer = await self.exchange(
            lambda: pgconn.send_prepare(statement.name, statement.sql), patience
        )
        rows_of(answer)
        self._prepared.add(statement.name)

    @abstractmethod
    async def exchange(self, send: Send, patience: float | None) -> Answer:
        """Send, and wait for the whole answer."""

    @property
    def is_sound(self) -> bool:
        """It may be used, as far as that can be told at once."""
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
        """Hand on what is still to be sent; tell whether that is all."""
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
    def begin(self, send: Send) -> None:
        """Send what nobody waits for the answer of."""

    @abstractmethod
    async def next_pushes(self, patience: float) -> list[str]:
        """Wait for pushes; none if none comes in time."""

    def pushes(self) -> list[str]:
        """The payloads that have been pushed to us."""
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
